/* Configurations for tests: a small file of each family, and what comes out when some of its
 * keys are changed. */
#ifndef LM_IO_CONFIG_SUPPORT_H
#define LM_IO_CONFIG_SUPPORT_H

#include "support.h"

/* 300 tokens, 3 layers; Llama has 4 heads of 12, the others 32. */
extern const char llama_text[];
extern const char qwen2_text[];
extern const char qwen3_text[];
/* Changes that ask for Llama 3.1's rope, in the spelling of transformers 4 and of 5. */
extern const char llama3_old[];
extern const char llama3_new[];

/* Parses `base` with the members of the JSON object `changes` put over it, and `generation` (may be
 * NULL) as generation_config.json. */
troupe_status config_parse(const char *base, const char *changes, const char *generation,
    troupe_lm_config *config, troupe_error *err);
/* The same, which must succeed. */
troupe_lm_config config_good(const char *base, const char *changes);
/* The same, which must fail with `wanted`, and with a message that names the file and each of
 * `keys` (separated by |). */
void config_refuse(const char *base, const char *changes, troupe_status wanted, const char *keys);

#endif
