/* The dynamic linker's list of what is mapped, both ways. */
#include <troupe/ext/base.h>
#include <troupe/ext/module.h>

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

struct search {
    uintptr_t address;
    const char *path; /* NULL: look for the address */
    uint64_t offset;
    char found_path[PATH_MAX]; /* "" for the main image */
    uintptr_t base;
    bool seen_main;
    bool found;
};

static bool
holds(const struct dl_phdr_info *module, uintptr_t address)
{
    for (size_t i = 0; i < module->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &module->dlpi_phdr[i];
        const uintptr_t from = (uintptr_t)module->dlpi_addr + (uintptr_t)part->p_vaddr;
        if (part->p_type == PT_LOAD && address >= from && address - from < part->p_memsz) {
            return true;
        }
    }
    return false;
}

/* The main image comes first and has no name; what else has none, or no path, is the kernel's. */
static int
visit(struct dl_phdr_info *module, size_t size, void *arg)
{
    (void)size;
    struct search *s = arg;
    const bool is_main = !s->seen_main;
    s->seen_main = true;
    char path[PATH_MAX] = "";
    if (!is_main &&
        (strchr(module->dlpi_name, '/') == NULL || realpath(module->dlpi_name, path) == NULL)) {
        return 0;
    }
    const bool right = s->path == NULL ? holds(module, s->address) : strcmp(path, s->path) == 0;
    if (!right) {
        return 0;
    }
    s->base = (uintptr_t)module->dlpi_addr;
    memcpy(s->found_path, path, sizeof path);
    s->found = s->path == NULL || holds(module, s->base + (uintptr_t)s->offset);
    return 1;
}

bool
tr_module_find(const void *address, char *path, size_t size, uint64_t *offset)
{
    struct search s = {.address = (uintptr_t)address};
    (void)dl_iterate_phdr(visit, &s);
    if (!s.found || strlen(s.found_path) >= size) {
        return false;
    }
    memcpy(path, s.found_path, strlen(s.found_path) + 1);
    *offset = s.address - s.base;
    return true;
}

const void *
tr_module_address(const char *path, uint64_t offset)
{
    TR_ASSERT(path != NULL);
    struct search s = {.path = path, .offset = offset};
    (void)dl_iterate_phdr(visit, &s);
    if (!s.found && s.base == 0 && path[0] == '/' && dlopen(path, RTLD_NOW | RTLD_LOCAL) != NULL) {
        s = (struct search){.path = path, .offset = offset};
        (void)dl_iterate_phdr(visit, &s);
    }
    const uintptr_t address = s.base + (uintptr_t)offset;
    const void *found = NULL;
    if (s.found) {
        memcpy(&found, &address, sizeof found);
    }
    return found;
}
