/* What a life page says, in words. */
#include "node/launcher.h"

#include <stdio.h>

static const char *
method_name(const struct tr_plan *plan, uint32_t role, uint32_t id, const char **class_name)
{
    *class_name = role < plan->role_count ? plan->roles[role].type->name : "?";
    for (uint32_t i = 0; i < plan->role_count; i++) {
        /* The role's own class first: a method of it is meant. */
        const troupe_class *type = plan->roles[(role + i) % plan->role_count].type;
        for (const troupe_method *m = type->methods; m->name != NULL; m++) {
            if (tr_method_id(m->name) == id) {
                return m->name;
            }
        }
    }
    return "?";
}

void
tr_life_describe(
    const struct tr_plan *plan, tr_life_loop note, uint64_t now_ns, char *out, size_t size)
{
    const char *class_name = NULL;
    const char *method =
        method_name(plan, tr_life_role_of(note.what), tr_life_method_of(note.what), &class_name);
    double s = now_ns > note.since_ns ? (double)(now_ns - note.since_ns) / 1e9 : 0;
    switch (tr_life_kind_of(note.what)) {
    case TR_LIFE_METHOD:
        (void)snprintf(out, size, "%s.%s for %.1f s", class_name, method, s);
        break;
    case TR_LIFE_ANSWER:
        (void)snprintf(out, size, "%s, at the answer to %s, for %.1f s", class_name, method, s);
        break;
    case TR_LIFE_INIT:
        (void)snprintf(out, size, "%s.init for %.1f s", class_name, s);
        break;
    case TR_LIFE_START:
        (void)snprintf(out, size, "%s.start for %.1f s", class_name, s);
        break;
    case TR_LIFE_STOP:
        (void)snprintf(out, size, "%s.stop for %.1f s", class_name, s);
        break;
    default:
        (void)snprintf(out, size, "%s.idle for %.1f s", class_name, s);
        break;
    }
}
