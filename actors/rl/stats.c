/* Adding up the statistics of micro-batches, and what they say about the step. */
#include <troupe/ext/base.h>
#include <troupe/rl.h>

#include <math.h>

void
troupe_rl_stats_add(troupe_rl_stats *into, const troupe_rl_stats *from)
{
    if (from->tokens == 0) {
        return;
    }
    const bool first = into->tokens == 0;
    into->ratio_min = first ? from->ratio_min : TR_MIN(into->ratio_min, from->ratio_min);
    into->ratio_max = first ? from->ratio_max : TR_MAX(into->ratio_max, from->ratio_max);
    into->rho_min = first ? from->rho_min : TR_MIN(into->rho_min, from->rho_min);
    into->rho_max = first ? from->rho_max : TR_MAX(into->rho_max, from->rho_max);
    into->mismatch_max = TR_MAX(into->mismatch_max, from->mismatch_max);
    into->loss += from->loss;
    into->policy_loss += from->policy_loss;
    into->kl_loss += from->kl_loss;
    into->entropy_loss += from->entropy_loss;
    into->tokens += from->tokens;
    into->sequences += from->sequences;
    into->rejected_tokens += from->rejected_tokens;
    for (int kind = 0; kind < TROUPE_MASK_KINDS; kind++) {
        into->rejected[kind] += from->rejected[kind];
    }
    into->clipped_high += from->clipped_high;
    into->clipped_low += from->clipped_low;
    into->clipped_dual += from->clipped_dual;
    into->capped += from->capped;
    into->kl_sum += from->kl_sum;
    into->kl_tokens += from->kl_tokens;
    into->entropy_sum += from->entropy_sum;
    into->entropy_tokens += from->entropy_tokens;
    into->is_sum += from->is_sum;
    into->is_square_sum += from->is_square_sum;
    into->mismatch_sum += from->mismatch_sum;
    into->mismatch_tokens += from->mismatch_tokens;
    into->ratio_sum += from->ratio_sum;
    into->rho_sum += from->rho_sum;
    into->lp_behaviour_sum += from->lp_behaviour_sum;
    into->lp_prox_sum += from->lp_prox_sum;
}

/* NaN, not 0, where there was nothing to take the mean of. */
static double
mean(double sum, double count)
{
    return count > 0 ? sum / count : (double)NAN;
}

troupe_rl_report
troupe_rl_stats_report(const troupe_rl_stats *stats)
{
    const double n = stats->tokens;
    const double unknown = (double)NAN;
    /* At most 1 by Cauchy-Schwarz; rounding may say otherwise when all ratios are equal. */
    const double ess = mean(stats->is_sum * stats->is_sum, n * stats->is_square_sum);
    return (troupe_rl_report){
        .loss = stats->loss,
        .policy_loss = stats->policy_loss,
        .kl_loss = stats->kl_loss,
        .entropy_loss = stats->entropy_loss,
        .kl = mean(stats->kl_sum, stats->kl_tokens),
        .entropy = mean(stats->entropy_sum, stats->entropy_tokens),
        .clip_frac = mean(stats->clipped_high + stats->clipped_low, n),
        .clip_high = mean(stats->clipped_high, n),
        .clip_low = mean(stats->clipped_low, n),
        .clip_dual = mean(stats->clipped_dual, n),
        .capped_frac = mean(stats->capped, n),
        .rejected_frac = mean(stats->rejected_tokens, n),
        .ess = ess > 1 ? 1 : ess,
        .chi2 = mean(stats->is_square_sum, n) - 1,
        .mismatch_kl = mean(stats->mismatch_sum, stats->mismatch_tokens),
        .mismatch_max = stats->mismatch_tokens > 0 ? stats->mismatch_max : unknown,
        .ratio_mean = mean(stats->ratio_sum, n),
        .ratio_min = n > 0 ? stats->ratio_min : unknown,
        .ratio_max = n > 0 ? stats->ratio_max : unknown,
        .rho_mean = mean(stats->rho_sum, n),
        .rho_min = n > 0 ? stats->rho_min : unknown,
        .rho_max = n > 0 ? stats->rho_max : unknown,
        .ppl_ratio = n > 0 ? exp((stats->lp_behaviour_sum - stats->lp_prox_sum) / n) : unknown,
    };
}
