/* What the roles of the pipeline share. */
#ifndef PIPELINE_POINTS_H
#define PIPELINE_POINTS_H

#include <troupe/troupe.h>

enum {
    GROUPS = 8, /* a step */
    MEMBERS = 4,
    STEPS = 30
};

#define STREAM "points"

/* What is published: where to look. */
typedef struct region {
    double centre[2], width;
} region;

extern const troupe_class guesser_class; /* the source */
extern const troupe_class meter_class;   /* a stage */
extern const troupe_class chooser_class; /* the sink */

/* Calls the stream again and again until it has answered: every message to it may be repeated.
 * Takes the arguments. */
void ask(
    troupe_ctx *ctx, const char *method, troupe_args *args, troupe_answer_fn answered, void *user);
/* True when the stream agreed; otherwise the actor, and so the run, ends with its reason. */
bool agreed(troupe_ctx *ctx, troupe_answer *answer);

#endif
