/* The reward role: one number for each sample, by a built-in reward, a C function of the program,
 * or an external program. An error is an error, never a number: the stream tries again and then
 * fails the whole group. */
#include "role.h"

#include <troupe/ext/protocol.h>
#include <troupe/reward.h>
#include <troupe/roles.h>
#include <troupe/troupe.h>

#include <string.h>

typedef struct reward {
    json_t *config;
    tr_prompts prompts;
    troupe_reward *reward;
    tr_buf prompt, text;
    uint64_t failures;
} reward;

_Static_assert(sizeof(reward) <= TROUPE_REWARD_STATE_SIZE, "raise TROUPE_REWARD_STATE_SIZE");

troupe_status
troupe_reward_role_init(troupe_ctx *ctx, const char *config,
    const troupe_reward_function *functions, size_t function_count, troupe_error *err)
{
    reward *r = troupe_state(ctx);
    troupe_status status = tr_config_parse(config, &r->config, err);
    if (status == TROUPE_OK) {
        status = tr_prompts_open(r->config, &r->prompts, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    const char *command = tr_config_text(r->config, "reward-cmd", NULL);
    troupe_reward_options options = {
        .size = sizeof options,
        .name = command == NULL ? tr_config_text(r->config, "reward", "exact") : NULL,
        .command = command,
        .pattern = tr_config_text(r->config, "reward-pattern", NULL),
        .timeout_ns = (uint64_t)(tr_config_real(r->config, "reward-timeout", 10) * 1e9),
        .functions = functions,
        .function_count = function_count,
    };
    return troupe_reward_open(&r->reward, &options, err);
}

void
troupe_reward_role_fini(troupe_ctx *ctx)
{
    reward *r = troupe_state(ctx);
    troupe_reward_close(r->reward);
    tr_prompts_close(&r->prompts);
    tr_buf_fini(&r->prompt);
    tr_buf_fini(&r->text);
    json_decref(r->config);
}

void
troupe_reward_role_score(troupe_ctx *ctx, troupe_call *call)
{
    reward *r = troupe_state(ctx);
    const troupe_sample *sample = troupe_arg_sample(call, 0);
    uint64_t row_number = troupe_arg_u64(call, 1);
    if (!troupe_args_ok(call)) {
        return;
    }
    troupe_error err = {0};
    troupe_lm_sample tokens;
    troupe_row row;
    tr_buf_clear(&r->prompt);
    tr_buf_clear(&r->text);
    troupe_status status = tr_lm_sample_of(sample, &tokens, &err);
    if (status == TROUPE_OK) {
        status = tr_prompts_row(&r->prompts, row_number, &row, &err);
    }
    if (status == TROUPE_OK) {
        status = tr_prompts_text(&r->prompts, row_number, &r->prompt, &err);
    }
    double value = 0;
    if (status == TROUPE_OK) {
        troupe_tokenizer_decode(r->prompts.tokenizer, tokens.tokens, (size_t)tokens.token_count,
            TROUPE_DECODE_SKIP_SPECIAL, &r->text);
        troupe_reward_input input = {
            .prompt = r->prompt.data,
            .text = r->text.data != NULL ? r->text.data : "",
            .text_size = r->text.size,
            .answer = row.answer,
            .fields = row.fields,
        };
        status = troupe_reward_score(r->reward, &input, &value, &err);
    }
    if (status != TROUPE_OK) {
        /* DIED and TIMEOUT are said of the reward's program; as the answer's own status the stream
         * would take them for this actor's end, of which it waits to hear from the directory. */
        if (r->failures++ == 0) {
            troupe_log(ctx, "the first reward that failed: %s", err.text);
        }
        (void)troupe_reply_error(
            call, TROUPE_FAILED, "%s: %s", troupe_status_name(status), err.text);
    } else {
        (void)troupe_reply_f64(call, value);
    }
}

static troupe_status
plain_init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    return troupe_reward_role_init(ctx, config, NULL, 0, err);
}

const troupe_class troupe_lm_reward = TROUPE_REWARD_CLASS("lm_reward", plain_init);
