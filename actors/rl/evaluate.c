/* The one entry point of a training step: loss, gradient and statistics of a micro-batch. It
 * gathers a sequence's unmasked tokens, lets correction.c and loss.c work on them, adds KL and
 * entropy terms, and scales by the step's denominators. Nothing reaches the caller's arrays
 * before everything was finite. */
#include "parts.h"

#include <troupe/ext/base.h>

#include <float.h>
#include <math.h>
#include <string.h>

/* What a call writes to, and the answers that wait for its success. */
typedef struct tr_evaluation {
    const troupe_rl_options *options;
    const troupe_rl_globals *globals;
    const troupe_rl_batch *batch;
    float *dlogp, *dentropy; /* [T] */
    troupe_rl_stats stats;
} tr_evaluation;

/* A token's KL to the reference: the value and derivative that the loss takes. */
typedef struct tr_kl {
    double value, dlp;
} tr_kl;

static troupe_status evaluate_sequence(
    tr_evaluation *e, int32_t s, tr_sequence *sequence, troupe_error *err);
static troupe_status check_inputs(const tr_evaluation *e, float *dentropy, troupe_error *err);
static double scale_of(const tr_evaluation *e, int32_t count);
static tr_kl kl_of(const tr_evaluation *e, const tr_token *token);
static void count_token(tr_evaluation *e, const tr_token *token);
static troupe_status bad_token(
    const char *what, int32_t s, int32_t token, double value, troupe_error *err);

troupe_status
troupe_rl_evaluate(const troupe_rl_options *options, const troupe_rl_globals *globals,
    const troupe_rl_batch *batch, float *dlogp, float *dentropy, troupe_rl_stats *stats,
    troupe_error *err)
{
    TR_ASSERT(globals != NULL && dlogp != NULL && stats != NULL);
    tr_evaluation e = {.options = options, .globals = globals, .batch = batch};
    troupe_status status = check_inputs(&e, dentropy, err);
    if (status != TROUPE_OK) {
        return status;
    }
    const size_t total = (size_t)batch->starts[batch->sequences];
    e.dlogp = tr_zalloc(total, sizeof *e.dlogp);
    e.dentropy = tr_zalloc(total, sizeof *e.dentropy);
    tr_token *tokens = tr_zalloc((size_t)tr_rl_longest(batch), sizeof *tokens);
    for (int32_t s = 0; status == TROUPE_OK && s < batch->sequences; s++) {
        tr_sequence sequence = {.tokens = tokens};
        status = tr_rl_gather(options, batch, s, &sequence, err);
        if (status == TROUPE_OK && sequence.count > 0) {
            status = evaluate_sequence(&e, s, &sequence, err);
        }
    }
    if (status == TROUPE_OK) {
        memcpy(dlogp, e.dlogp, total * sizeof *dlogp);
        if (dentropy != NULL) {
            memcpy(dentropy, e.dentropy, total * sizeof *dentropy);
        }
        troupe_rl_stats_add(stats, &e.stats);
    }
    tr_free(tokens);
    tr_free(e.dentropy);
    tr_free(e.dlogp);
    return status;
}

static troupe_status
check_inputs(const tr_evaluation *e, float *dentropy, troupe_error *err)
{
    troupe_status status = troupe_rl_options_check(e->options, err);
    if (status == TROUPE_OK) {
        status = tr_rl_check_batch(e->options, e->batch, true, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    if (troupe_rl_needs_entropy(e->options) && dentropy == NULL) {
        return troupe_fail(err, TROUPE_INVALID,
            "loss: entropy-coef is not 0 but there is no dentropy to write the gradient to");
    }
    const troupe_rl_globals *g = e->globals;
    if (!(g->tokens >= 0 && g->sequences >= 0 && g->weight_mean > 0 && g->m2po_limit >= 0)) {
        return troupe_fail(err, TROUPE_INVALID,
            "loss: globals (tokens %g, sequences %g, weight mean %g) were not filled by "
            "troupe_rl_globals_of over the whole step",
            g->tokens, g->sequences, g->weight_mean);
    }
    return TROUPE_OK;
}

static troupe_status
evaluate_sequence(tr_evaluation *e, int32_t s, tr_sequence *sequence, troupe_error *err)
{
    tr_rl_correct(e->options, e->globals, sequence);
    tr_rl_losses(e->options, sequence);
    const double scale = scale_of(e, sequence->count);
    const double beta = tr_rl_kl_in_reward(e->options) ? 0 : e->options->kl_coef;
    const double alpha = e->options->entropy_coef;
    e->stats.sequences += 1;
    for (int32_t i = 0; i < sequence->count; i++) {
        const tr_token *token = &sequence->tokens[i];
        count_token(e, token);
        if (token->rejected != 0) {
            continue;
        }
        const tr_kl kl = beta > 0 ? kl_of(e, token) : (tr_kl){0};
        const double entropy = alpha != 0 ? (double)e->batch->entropy[token->at] : 0;
        const double policy_loss = scale * token->loss;
        const double kl_loss = scale * beta * kl.value;
        const double entropy_loss = -scale * alpha * entropy;
        const double dlp = scale * (token->dlp + beta * kl.dlp);
        if (!(fabs(dlp) <= (double)FLT_MAX) || !isfinite(policy_loss + kl_loss + entropy_loss)) {
            return bad_token("gradient", s, token->at - e->batch->starts[s], dlp, err);
        }
        e->dlogp[token->at] = (float)dlp;
        e->dentropy[token->at] = (float)(-scale * alpha);
        e->stats.policy_loss += policy_loss;
        e->stats.kl_loss += kl_loss;
        e->stats.entropy_loss += entropy_loss;
        e->stats.loss += policy_loss + kl_loss + entropy_loss;
    }
    return TROUPE_OK;
}

/* What a token's loss is multiplied by. `count` are the sequence's unmasked tokens, rejected or
 * not. */
static double
scale_of(const tr_evaluation *e, int32_t count)
{
    const troupe_rl_globals *g = e->globals;
    switch (e->options->aggregation) {
    case TROUPE_AGG_TOKEN_MEAN:
        return g->tokens > 0 ? 1 / g->tokens : 0;
    case TROUPE_AGG_SEQ_MEAN_TOKEN_MEAN:
        return g->sequences > 0 ? 1 / (g->sequences * count) : 0;
    case TROUPE_AGG_SEQ_MEAN_TOKEN_SUM:
        return g->sequences > 0 ? 1 / g->sequences : 0;
    case TROUPE_AGG_SEQ_MEAN_TOKEN_CONST:
        return g->sequences > 0 ? 1 / (g->sequences * e->options->length_const) : 0;
    }
    return 0;
}

static tr_kl
kl_of(const tr_evaluation *e, const tr_token *token)
{
    const double ref = (double)e->batch->lp_ref[token->at];
    bool flat = false;
    const double d = tr_rl_clamp(token->lp - ref, &flat);
    tr_kl kl = {.value = troupe_rl_kl_estimate(e->options->kl, token->lp, ref)};
    switch (e->options->kl) {
    case TROUPE_KL_K1:
        kl.dlp = 1;
        break;
    case TROUPE_KL_K2:
        kl.dlp = d;
        break;
    case TROUPE_KL_K3:
    case TROUPE_KL_K3_UNBIASED:
        kl.dlp = 1 - exp(-d);
        break;
    }
    kl.dlp = flat ? 0 : kl.dlp;
    if (e->options->kl == TROUPE_KL_K3_UNBIASED) {
        /* (w k3)' = w k3 + w (1 - exp(-d)) = w d: the gradient of the KL itself, DeepSeek-V3.2. */
        bool cut = false;
        const double w = exp(tr_rl_clamp(token->lp - token->lp_b, &cut));
        kl.dlp = w * (kl.dlp + (cut ? 0 : kl.value));
        kl.value *= w;
    }
    return kl;
}

/* --- input ----------------------------------------------------------------------------------- */

static troupe_status
missing(const char *array, const char *why, troupe_error *err)
{
    return troupe_fail(
        err, TROUPE_INVALID, "loss: the batch has no %s, which %s needs", array, why);
}

troupe_status
tr_rl_check_batch(const troupe_rl_options *options, const troupe_rl_batch *batch, bool need_lp_cur,
    troupe_error *err)
{
    TR_ASSERT(batch->sequences >= 0 && batch->starts != NULL && batch->starts[0] == 0);
    for (int32_t s = 0; s < batch->sequences; s++) {
        if (batch->starts[s + 1] < batch->starts[s]) {
            return troupe_fail(err, TROUPE_INVALID,
                "loss: sequence %d starts at token %d and ends at %d", (int)s,
                (int)batch->starts[s], (int)batch->starts[s + 1]);
        }
    }
    if (batch->lp_behaviour == NULL) {
        return missing("lp_behaviour", "every correction and statistic", err);
    }
    if (troupe_rl_needs_prox(options) && batch->lp_prox == NULL) {
        return missing("lp_prox of the whole step", "m2po or batch-norm", err);
    }
    if (troupe_rl_needs_lag(options) && batch->lag == NULL) {
        return missing("lag", "proximal=loglinear", err);
    }
    if (!need_lp_cur) {
        return TROUPE_OK;
    }
    if (batch->lp_cur == NULL) {
        return missing("lp_cur", "every loss", err);
    }
    if ((batch->advantage == NULL) == (batch->token_advantage == NULL)) {
        return troupe_fail(err, TROUPE_INVALID,
            "loss: give exactly one of advantage (a sequence) and token_advantage (a token)");
    }
    if (troupe_rl_needs_ref(options) && !tr_rl_kl_in_reward(options) && batch->lp_ref == NULL) {
        return missing("lp_ref", "kl-coef", err);
    }
    if (troupe_rl_needs_entropy(options) && batch->entropy == NULL) {
        return missing("entropy", "entropy-coef", err);
    }
    return TROUPE_OK;
}

int32_t
tr_rl_longest(const troupe_rl_batch *batch)
{
    int32_t longest = 0;
    for (int32_t s = 0; s < batch->sequences; s++) {
        longest = TR_MAX(longest, batch->starts[s + 1] - batch->starts[s]);
    }
    return longest;
}

static double
proximal_of(const troupe_rl_options *options, const troupe_rl_batch *batch, const tr_token *token)
{
    switch (options->proximal) {
    case TROUPE_PROX_RECOMPUTED:
        if (batch->lp_prox != NULL) {
            return (double)batch->lp_prox[token->at];
        }
        return batch->lp_cur != NULL ? token->lp : token->lp_b;
    case TROUPE_PROX_BEHAVIOUR:
        return token->lp_b;
    case TROUPE_PROX_LOGLINEAR: {
        const double lag = batch->lag[token->at];
        const double share = lag > 1 ? (lag - 1) / lag : 0;
        return batch->lp_cur != NULL ? token->lp_b + share * (token->lp - token->lp_b)
                                     : token->lp_b;
    }
    }
    return token->lp_b;
}

/* The first array of the batch that holds no finite number at this token, or NULL. */
static const char *
not_finite(const troupe_rl_batch *batch, int32_t at, double *value)
{
    const struct {
        const char *name;
        const float *array;
    } arrays[] = {
        {"lp_cur", batch->lp_cur},
        {"lp_behaviour", batch->lp_behaviour},
        {"lp_prox", batch->lp_prox},
        {"lp_ref", batch->lp_ref},
        {"entropy", batch->entropy},
        {"token_advantage", batch->token_advantage},
    };

    for (size_t i = 0; i < TR_COUNT(arrays); i++) {
        if (arrays[i].array != NULL && !isfinite(arrays[i].array[at])) {
            *value = (double)arrays[i].array[at];
            return arrays[i].name;
        }
    }
    return NULL;
}

static troupe_status
bad_token(const char *what, int32_t s, int32_t token, double value, troupe_error *err)
{
    return troupe_fail(err, TROUPE_CORRUPT,
        "loss: %s is %g at token %d of sequence %d; the step has to be skipped", what, value,
        (int)token, (int)s);
}

troupe_status
tr_rl_gather(const troupe_rl_options *options, const troupe_rl_batch *batch, int32_t s,
    tr_sequence *sequence, troupe_error *err)
{
    const float *advantage = batch->advantage;
    double advantages = 0;
    sequence->count = 0;
    for (int32_t at = batch->starts[s]; at < batch->starts[s + 1]; at++) {
        if (batch->mask != NULL && batch->mask[at] == 0) {
            continue;
        }
        double value = advantage != NULL ? (double)advantage[s] : 0;
        const char *bad = isfinite(value) ? not_finite(batch, at, &value) : "advantage";
        if (bad != NULL) {
            return bad_token(bad, s, at - batch->starts[s], value, err);
        }
        tr_token *token = &sequence->tokens[sequence->count];
        *token = (tr_token){.at = at, .weight = 1, .advantage = value};
        if (batch->token_advantage != NULL) {
            token->advantage = (double)batch->token_advantage[at];
        }
        token->lp = batch->lp_cur != NULL ? (double)batch->lp_cur[at] : 0;
        token->lp_b = (double)batch->lp_behaviour[at];
        token->lp_p = proximal_of(options, batch, token);
        const bool two = options->proximal == TROUPE_PROX_BEHAVIOUR && batch->lp_cur != NULL;
        token->log_rho = (two ? token->lp : token->lp_p) - token->lp_b;
        advantages += token->advantage;
        sequence->count++;
    }
    sequence->advantage = sequence->count > 0 ? advantages / sequence->count : 0;
    return TROUPE_OK;
}

/* --- statistics ------------------------------------------------------------------------------ */

static void
count_ratios(troupe_rl_stats *stats, const tr_token *token)
{
    const double w = tr_rl_ratio(token->lp - token->lp_b);
    const double u = tr_rl_ratio(token->lp - token->lp_p);
    const double rho = tr_rl_ratio(token->log_rho);
    const bool first = stats->tokens == 0;
    stats->is_sum += w;
    stats->is_square_sum += w * w;
    stats->ratio_sum += u;
    stats->ratio_min = first ? u : TR_MIN(stats->ratio_min, u);
    stats->ratio_max = first ? u : TR_MAX(stats->ratio_max, u);
    stats->rho_sum += rho;
    stats->rho_min = first ? rho : TR_MIN(stats->rho_min, rho);
    stats->rho_max = first ? rho : TR_MAX(stats->rho_max, rho);
    stats->lp_behaviour_sum += token->lp_b;
    stats->lp_prox_sum += token->lp_p;
}

static void
count_token(tr_evaluation *e, const tr_token *token)
{
    troupe_rl_stats *stats = &e->stats;
    const troupe_rl_batch *batch = e->batch;
    count_ratios(stats, token);
    stats->tokens += 1;
    stats->capped += token->capped ? 1 : 0;
    stats->rejected_tokens += token->rejected != 0 ? 1 : 0;
    for (unsigned kind = 0; kind < TROUPE_MASK_KINDS; kind++) {
        stats->rejected[kind] += (token->rejected >> kind & 1U) != 0 ? 1 : 0;
    }
    if (token->rejected == 0) {
        stats->clipped_high += token->clip == TR_CLIP_HIGH ? 1 : 0;
        stats->clipped_low += token->clip == TR_CLIP_LOW ? 1 : 0;
        stats->clipped_dual += token->clip == TR_CLIP_DUAL ? 1 : 0;
    }
    if (batch->lp_ref != NULL) {
        const double ref = (double)batch->lp_ref[token->at];
        stats->kl_sum += troupe_rl_kl_estimate(TROUPE_KL_K3, token->lp, ref);
        stats->kl_tokens += 1;
    }
    if (batch->entropy != NULL) {
        stats->entropy_sum += (double)batch->entropy[token->at];
        stats->entropy_tokens += 1;
    }
    if (batch->fresh != NULL && batch->fresh[token->at] != 0) {
        const double lp_p = batch->lp_prox != NULL ? (double)batch->lp_prox[token->at] : token->lp;
        stats->mismatch_sum += troupe_rl_kl_estimate(TROUPE_KL_K3, token->lp_b, lp_p);
        stats->mismatch_tokens += 1;
        stats->mismatch_max = TR_MAX(stats->mismatch_max, fabs(token->lp_b - lp_p));
    }
}
