/* Off-policy corrections: the weight of each token and what is rejected, from rho = proximal /
 * behaviour. All of it is constant for the gradient. Whatever looks at more than one sequence
 * (M2PO's threshold, the mean weight, the denominators) is settled here once for the whole step,
 * so that the answer does not depend on how the step is cut into micro-batches. */
#include "parts.h"

#include <troupe/ext/base.h>

#include <math.h>
#include <stdlib.h>

static void weigh(const troupe_rl_options *options, tr_sequence *sequence, double log_product);
static unsigned rejected_sequence(
    const troupe_rl_options *options, const tr_sequence *sequence, double log_product);
static troupe_status count_tokens(const troupe_rl_options *options, const troupe_rl_batch *batch,
    troupe_rl_globals *globals, tr_token *tokens, double *squares, troupe_error *err);
static double m2po_limit(double *squares, size_t count, double max);
static troupe_status mean_weight(const troupe_rl_options *options, const troupe_rl_batch *batch,
    troupe_rl_globals *globals, tr_token *tokens, troupe_error *err);

static bool
outside(double ratio, double low, double high)
{
    return ratio < low || ratio > high;
}

void
tr_rl_correct(
    const troupe_rl_options *options, const troupe_rl_globals *globals, tr_sequence *sequence)
{
    if (sequence->count == 0) {
        return;
    }
    double log_product = 0;
    for (int32_t i = 0; i < sequence->count; i++) {
        log_product += sequence->tokens[i].log_rho;
    }
    weigh(options, sequence, log_product);
    const unsigned whole = rejected_sequence(options, sequence, log_product);
    for (int32_t i = 0; i < sequence->count; i++) {
        tr_token *token = &sequence->tokens[i];
        token->rejected |= whole;
        if ((options->masks & TROUPE_MASK_TOKEN_RS) != 0 &&
            outside(tr_rl_ratio(token->log_rho), options->token_rs_low, options->token_rs_high)) {
            token->rejected |= TROUPE_MASK_TOKEN_RS;
        }
        if ((options->masks & TROUPE_MASK_M2PO) != 0 &&
            token->log_rho * token->log_rho > globals->m2po_limit) {
            token->rejected |= TROUPE_MASK_M2PO;
        }
        token->weight /= globals->weight_mean;
    }
}

static void
weigh(const troupe_rl_options *options, tr_sequence *sequence, double log_product)
{
    const bool whole =
        options->weight == TROUPE_WEIGHT_SEQ_TIS || options->weight == TROUPE_WEIGHT_SEQ_MIS;
    for (int32_t i = 0; i < sequence->count; i++) {
        tr_token *token = &sequence->tokens[i];
        const double rho = tr_rl_ratio(whole ? log_product : token->log_rho);
        switch (options->weight) {
        case TROUPE_WEIGHT_NONE:
            token->weight = 1;
            break;
        case TROUPE_WEIGHT_TOKEN_TIS:
        case TROUPE_WEIGHT_SEQ_TIS:
            token->capped = rho > options->weight_high;
            token->weight = TR_MIN(rho, options->weight_high);
            break;
        case TROUPE_WEIGHT_TOKEN_MIS:
        case TROUPE_WEIGHT_SEQ_MIS:
            token->weight = rho;
            if (outside(rho, options->weight_low, options->weight_high)) {
                token->capped = true;
                token->rejected |= TR_REJECTED_BY_WEIGHT;
            }
            break;
        }
    }
}

/* The rejections that fall on a whole sequence. */
static unsigned
rejected_sequence(const troupe_rl_options *options, const tr_sequence *sequence, double log_product)
{
    if (options->masks == 0) {
        return 0;
    }
    double k3 = 0;
    double drift = 0;
    double least = HUGE_VAL;
    for (int32_t i = 0; i < sequence->count; i++) {
        const tr_token *token = &sequence->tokens[i];
        k3 += troupe_rl_kl_estimate(TROUPE_KL_K3, token->lp_b, token->lp_b + token->log_rho);
        drift += token->lp_b - token->lp;
        least = TR_MIN(least, token->log_rho);
    }
    const double n = sequence->count;
    const double geo = tr_rl_ratio(log_product / n);
    unsigned rejected = 0;
    if (outside(tr_rl_ratio(log_product), options->seq_rs_low, options->seq_rs_high)) {
        rejected |= TROUPE_MASK_SEQ_RS;
    }
    if (outside(geo, options->geo_rs_low, options->geo_rs_high)) {
        rejected |= TROUPE_MASK_GEO_RS;
    }
    if (k3 / n > options->k3_rs_max) {
        rejected |= TROUPE_MASK_K3_RS;
    }
    if (tr_rl_ratio(least) < options->veto_min) {
        rejected |= TROUPE_MASK_VETO;
    }
    if (sequence->advantage < 0 && drift / n > options->opsm_max) {
        rejected |= TROUPE_MASK_OPSM;
    }
    return rejected & options->masks;
}

/* --- of the whole step ----------------------------------------------------------------------- */

troupe_status
troupe_rl_globals_of(const troupe_rl_options *options, const troupe_rl_batch *batch,
    troupe_rl_globals *globals, troupe_error *err)
{
    troupe_status status = troupe_rl_options_check(options, err);
    if (status == TROUPE_OK) {
        status = tr_rl_check_batch(options, batch, false, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    troupe_rl_globals found = {.weight_mean = 1, .m2po_limit = HUGE_VAL};
    const bool m2po = (options->masks & TROUPE_MASK_M2PO) != 0;
    tr_token *tokens = tr_zalloc((size_t)tr_rl_longest(batch), sizeof *tokens);
    double *squares = NULL;
    if (m2po) {
        squares = tr_zalloc((size_t)batch->starts[batch->sequences], sizeof *squares);
    }
    status = count_tokens(options, batch, &found, tokens, squares, err);
    if (status == TROUPE_OK && m2po) {
        found.m2po_limit = m2po_limit(squares, (size_t)found.tokens, options->m2po_max);
    }
    if (status == TROUPE_OK && options->batch_norm) {
        status = mean_weight(options, batch, &found, tokens, err);
    }
    if (status == TROUPE_OK) {
        *globals = found;
    }
    tr_free(squares);
    tr_free(tokens);
    return status;
}

/* Counts, and gathers every unmasked token's (log rho)^2 where `squares` asks for it. */
static troupe_status
count_tokens(const troupe_rl_options *options, const troupe_rl_batch *batch,
    troupe_rl_globals *globals, tr_token *tokens, double *squares, troupe_error *err)
{
    for (int32_t s = 0; s < batch->sequences; s++) {
        tr_sequence sequence = {.tokens = tokens};
        const troupe_status status = tr_rl_gather(options, batch, s, &sequence, err);
        if (status != TROUPE_OK) {
            return status;
        }
        for (int32_t i = 0; squares != NULL && i < sequence.count; i++) {
            squares[(size_t)globals->tokens + (size_t)i] = tokens[i].log_rho * tokens[i].log_rho;
        }
        globals->tokens += sequence.count;
        globals->sequences += sequence.count > 0 ? 1 : 0;
    }
    return TROUPE_OK;
}

static int
ascending(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* M2PO (Zheng et al., 2025): the largest go first until the mean of the rest is at most `max`.
 * Equal ones go or stay together, so that the order of the tokens does not matter; the smallest
 * always stay. */
static double
m2po_limit(double *squares, size_t count, double max)
{
    if (count == 0) {
        return HUGE_VAL;
    }
    qsort(squares, count, sizeof *squares, ascending);
    double sum = 0;
    double limit = squares[0];
    for (size_t i = 0; i < count; i++) {
        sum += squares[i];
        const bool last_of_equals = i + 1 == count || squares[i + 1] > squares[i];
        /* The mean of an ascending sequence's prefix never falls, so the last that passes is the
         * limit. */
        if (last_of_equals && sum / (double)(i + 1) <= max) {
            limit = squares[i];
        }
    }
    return limit;
}

/* The mean weight over the tokens that rho does not reject. OPSM looks at the current log-probs,
 * which are not known yet, and so has no say here. */
static troupe_status
mean_weight(const troupe_rl_options *options, const troupe_rl_batch *batch,
    troupe_rl_globals *globals, tr_token *tokens, troupe_error *err)
{
    double sum = 0;
    double kept = 0;
    troupe_rl_options by_rho = *options;
    by_rho.masks &= ~(unsigned)TROUPE_MASK_OPSM;
    for (int32_t s = 0; s < batch->sequences; s++) {
        tr_sequence sequence = {.tokens = tokens};
        const troupe_status status = tr_rl_gather(options, batch, s, &sequence, err);
        if (status != TROUPE_OK) {
            return status;
        }
        tr_rl_correct(&by_rho, globals, &sequence);
        for (int32_t i = 0; i < sequence.count; i++) {
            if (tokens[i].rejected == 0) {
                sum += tokens[i].weight;
                kept += 1;
            }
        }
    }
    globals->weight_mean = kept > 0 ? sum / kept : 1;
    return TROUPE_OK;
}
