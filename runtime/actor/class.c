/* Two methods of one id could not be told apart by a message, so a class with such is refused
 * here, once, before any actor of it exists. */
#include "actor/class.h"

#include <troupe/ext/frame.h>

#include <string.h>

static troupe_status
count_methods(struct tr_class_info *info, troupe_error *err)
{
    const troupe_class *type = info->type;
    for (int i = 0; type->methods[i].name != NULL; i++) {
        if (i == TROUPE_METHODS_MAX) {
            return troupe_fail(err, TROUPE_INVALID,
                "class %s: more than %d methods, or the list does not end with an empty one",
                type->name, TROUPE_METHODS_MAX);
        }
        info->ids[i] = tr_method_id(type->methods[i].name);
        info->method_count = i + 1;
    }
    return TROUPE_OK;
}

static troupe_status
check_methods(const struct tr_class_info *info, troupe_error *err)
{
    const troupe_method *methods = info->type->methods;
    for (int i = 0; i < info->method_count; i++) {
        if (methods[i].run == NULL) {
            return troupe_fail(err, TROUPE_INVALID, "class %s: method %s has no function",
                info->type->name, methods[i].name);
        }
        if (strchr(methods[i].name, '@') != NULL) {
            return troupe_fail(err, TROUPE_INVALID,
                "class %s: method %s: an @ separates a method from a group; rename it",
                info->type->name, methods[i].name);
        }
        for (int j = 0; j < i; j++) {
            if (info->ids[i] == info->ids[j]) {
                return troupe_fail(err, TROUPE_INVALID,
                    "class %s: methods %s and %s have one name or one id; rename one",
                    info->type->name, methods[j].name, methods[i].name);
            }
        }
    }
    return TROUPE_OK;
}

static int
index_of(const struct tr_class_info *info, const char *method)
{
    for (int i = 0; i < info->method_count; i++) {
        if (strcmp(info->type->methods[i].name, method) == 0) {
            return i;
        }
    }
    return -1;
}

static troupe_status
add_group(struct tr_class_info *info, int at, troupe_error *err)
{
    const troupe_group *group = &info->type->groups[at];
    if (at == TROUPE_GROUPS_MAX || group->open_max < 1 || group->open_max > UINT16_MAX) {
        return troupe_fail(err, TROUPE_INVALID,
            "class %s, group %s: at most %d groups, each with an open_max of 1 to 65535",
            info->type->name, group->name, TROUPE_GROUPS_MAX);
    }
    for (int i = 0; i <= TROUPE_GROUP_METHODS_MAX && group->methods[i] != NULL; i++) {
        int method = index_of(info, group->methods[i]);
        if (i == TROUPE_GROUP_METHODS_MAX || method < 0 || info->groups[method] != 0) {
            return troupe_fail(err, TROUPE_INVALID,
                "class %s, group %s: %s is no method of the class, is in a group already, or the "
                "list is longer than %d",
                info->type->name, group->name, group->methods[i], TROUPE_GROUP_METHODS_MAX);
        }
        info->groups[method] = (uint8_t)(at + 1);
    }
    info->group_count = at + 1;
    return TROUPE_OK;
}

/* Every method in every group: few, and only classes with groups pay for them. */
static troupe_status
add_overrides(struct tr_class_info *info, troupe_error *err)
{
    size_t count = (size_t)info->method_count * (size_t)info->group_count;
    info->overrides = tr_zalloc(count, sizeof *info->overrides);
    tr_buf name = {0};
    troupe_status status = TROUPE_OK;
    for (size_t i = 0; i < count && status == TROUPE_OK; i++) {
        size_t method = i / (size_t)info->group_count, group = i % (size_t)info->group_count;
        uint8_t at = 0, in = 0;
        tr_buf_clear(&name);
        tr_buf_printf(
            &name, "%s@%s", info->type->methods[method].name, info->type->groups[group].name);
        uint32_t id = tr_method_id(name.data);
        if (tr_class_find(info, id, &at, &in)) {
            status = troupe_fail(err, TROUPE_INVALID,
                "class %s: %s has the id of another method; rename the method or the group",
                info->type->name, name.data);
        }
        info->overrides[info->override_count++] = (struct tr_override){
            .id = id, .method = (uint8_t)(method + 1), .group = (uint8_t)(group + 1)};
    }
    tr_buf_fini(&name);
    return status;
}

static void
free_info(struct tr_class_info *info)
{
    tr_free(info->overrides);
    tr_free(info);
}

static troupe_status
make(const troupe_class *type, struct tr_class_info **out, troupe_error *err)
{
    struct tr_class_info *info = tr_zalloc(1, sizeof *info);
    info->type = type;
    troupe_status status = count_methods(info, err);
    if (status == TROUPE_OK) {
        status = check_methods(info, err);
    }
    for (int i = 0; status == TROUPE_OK && type->groups[i].name != NULL; i++) {
        status = add_group(info, i, err);
    }
    if (status == TROUPE_OK && info->group_count > 0) {
        status = add_overrides(info, err);
    }
    if (status != TROUPE_OK) {
        free_info(info);
        return status;
    }
    *out = info;
    return TROUPE_OK;
}

troupe_status
tr_class_hold(struct tr_class_info **list, const troupe_class *type, struct tr_class_info **out,
    troupe_error *err)
{
    struct tr_class_info *info = *list;
    while (info != NULL && info->type != type) {
        info = info->next;
    }
    if (info == NULL) {
        troupe_status status = make(type, &info, err);
        if (status != TROUPE_OK) {
            return status;
        }
        info->next = *list;
        *list = info;
    }
    info->users++;
    *out = info;
    return TROUPE_OK;
}

void
tr_class_release(struct tr_class_info **list, struct tr_class_info *info)
{
    if (--info->users > 0) {
        return;
    }
    struct tr_class_info **at = list;
    while (*at != info) {
        at = &(*at)->next;
    }
    *at = info->next;
    free_info(info);
}

bool
tr_class_find(const struct tr_class_info *info, uint32_t id, uint8_t *method, uint8_t *group)
{
    for (int i = 0; i < info->method_count; i++) {
        if (info->ids[i] == id) {
            *method = (uint8_t)(i + 1);
            *group = info->groups[i];
            return true;
        }
    }
    for (uint32_t i = 0; i < info->override_count; i++) {
        if (info->overrides[i].id == id) {
            *method = info->overrides[i].method;
            *group = info->overrides[i].group;
            return true;
        }
    }
    return false;
}
