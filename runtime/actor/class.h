/* What is worked out once of a class and shared by its instances on a host: the ids of its
 * methods, their groups, and the ids of methods in other groups than their own. */
#ifndef TR_ACTOR_CLASS_H
#define TR_ACTOR_CLASS_H

#include <troupe/actor.h>

/* "fetch@io" as an id. */
struct tr_override {
    uint32_t id;
    uint8_t method; /* index + 1, as in messages */
    uint8_t group;
};

struct tr_class_info {
    struct tr_class_info *next;
    const troupe_class *type;
    uint32_t users; /* actors */
    int method_count;
    int group_count;
    uint32_t ids[TROUPE_METHODS_MAX];
    uint8_t groups[TROUPE_METHODS_MAX]; /* index + 1, 0 for none */
    uint32_t override_count;
    struct tr_override *overrides;
};

/* The info of a class, found in or added to the list, with one more user. INVALID names what is
 * wrong with the class. */
troupe_status tr_class_hold(struct tr_class_info **list, const troupe_class *type,
    struct tr_class_info **out, troupe_error *err);
/* One user less; the last one frees it. A class may lie in memory that is used again. */
void tr_class_release(struct tr_class_info **list, struct tr_class_info *info);
/* The method and group (both index + 1) that an id means; false for none. */
bool tr_class_find(const struct tr_class_info *info, uint32_t id, uint8_t *method, uint8_t *group);

#endif
