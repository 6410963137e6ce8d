/* A small model to write checkpoints of. */
#ifndef LM_IO_CHECKPOINT_SUPPORT_H
#define LM_IO_CHECKPOINT_SUPPORT_H

#include "support.h"

typedef struct toy {
    troupe_lm_config config;
    troupe_lm_layout layout;
    float *params, *master, *m, *v; /* all different, gaps zero */
    troupe_checkpoint_parts parts;  /* optimiser, texts; copy_from is NULL */
} toy;

/* Qwen3-like, untied, about 5000 parameters; odd sizes, so that the layout has gaps. */
void toy_init(toy *t, troupe_dtype dtype);
void toy_fini(toy *t);
/* Writes FOLDER/NAME, which must succeed. */
void toy_write(const toy *t, const char *folder, const char *name);
/* FOLDER/NAME holds exactly `t`: configuration, parameters as rounded, optimiser, texts, and its
 * hashes are right. */
void toy_expect(const toy *t, const char *folder, const char *name);

/* "FOLDER/NAME"; good until sixteen calls later. */
const char *in_folder(const char *folder, const char *name);

#endif
