/* The search for a kind's shared object. It stays loaded: a GPU's run-time library cannot be
 * unloaded safely, and dlopen of what is loaded already is cheap. */
#include "cuda/load.h"

#include <troupe/ext/base.h>
#include <troupe/ext/device.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A search under way: what was looked for where, for the error. */
struct search {
    const char *kind;
    tr_buf tried; /* the folders, for a person */
    tr_buf path;  /* the file, once it was found */
};

/* Looks into `folder` of `size` characters; true when the file is there. */
static bool
look(struct search *s, const char *folder, size_t size)
{
    if (size == 0 || s->path.size > 0) {
        return s->path.size > 0;
    }
    tr_buf_append(&s->path, folder, size);
    tr_buf_printf(&s->path, "/libtroupe_%s.so", s->kind);
    if (access(s->path.data, R_OK) == 0) {
        return true;
    }
    tr_buf_clear(&s->path);
    tr_buf_printf(
        &s->tried, "%s%.*s", s->tried.size > 0 ? ", " : "", (int)TR_MIN(size, 200), folder);
    return false;
}

/* The folder of the program or library that this code is in, where an installation puts the shared
 * objects beside it, and where a build tree has them, seen from its programs. All relative: a
 * folder's name that was compiled in could be somebody else's by the time the program runs. */
static void
look_beside_us(struct search *s)
{
    static const char *const tails[] = {"", "/../lib/troupe", "/troupe", "/../troupe",
        "/../kernels/cuda", "/../../kernels/cuda", "/../../../kernels/cuda"};
    Dl_info info;
    /* Any address in this object will do; a text's is one without a cast. */
    if (dladdr(TROUPE_DEVICE_MODULE_SYMBOL, &info) == 0 || info.dli_fname == NULL) {
        return;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    for (size_t i = 0; slash != NULL && i < TR_COUNT(tails); ++i) {
        tr_buf folder = {0};
        tr_buf_append(&folder, info.dli_fname, (size_t)(slash - info.dli_fname));
        tr_buf_puts(&folder, tails[i]);
        (void)look(s, folder.data, folder.size);
        tr_buf_fini(&folder);
    }
}

static bool
find(struct search *s)
{
    const char *given = getenv("TROUPE_DEVICE_PATH");
    if (given == NULL) {
        look_beside_us(s);
        return s->path.size > 0;
    }
    while (*given != '\0') {
        size_t size = strcspn(given, ":");
        (void)look(s, given, size);
        given += size + (given[size] == ':');
    }
    return s->path.size > 0;
}

static troupe_status
load(const struct search *s, const troupe_device_module **out, troupe_error *err)
{
    void *object = dlopen(s->path.data, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (object == NULL) {
        return troupe_fail(err, TROUPE_UNSUPPORTED,
            "%s, the code of \"%s\" devices, cannot be loaded: %s; build or install it again for "
            "this machine",
            s->path.data, s->kind, dlerror());
    }
    const troupe_device_module *module = dlsym(object, TROUPE_DEVICE_MODULE_SYMBOL);
    if (module == NULL || module->abi != TROUPE_DEVICE_ABI ||
        module->table_size != sizeof(troupe_device_table) ||
        module->ops_size != sizeof(troupe_ops)) {
        return troupe_fail(err, TROUPE_UNSUPPORTED,
            "%s is of another version than this program (%s); build both from one source, or point "
            "TROUPE_DEVICE_PATH at the right folder",
            s->path.data,
            module == NULL ? "it has no " TROUPE_DEVICE_MODULE_SYMBOL : "its tables differ");
    }
    *out = module;
    return TROUPE_OK;
}

troupe_status
tr_module_open(const char *kind, const char *name, const troupe_device_options *options,
    troupe_device **out, troupe_error *err)
{
    struct search s = {.kind = kind};
    const troupe_device_module *module = NULL;
    troupe_status status = TROUPE_OK;
    if (find(&s)) {
        status = load(&s, &module, err);
    } else {
        status = troupe_fail(err, TROUPE_UNSUPPORTED,
            "device \"%s\": libtroupe_%s.so, the code of such devices, is in none of: %s; build "
            "with nvcc in the PATH, or name its folder in TROUPE_DEVICE_PATH",
            name, kind, s.tried.size > 0 ? s.tried.data : "(TROUPE_DEVICE_PATH is empty)");
    }
    tr_buf_fini(&s.tried);
    tr_buf_fini(&s.path);
    return status == TROUPE_OK ? module->open(name, options, out, err) : status;
}
