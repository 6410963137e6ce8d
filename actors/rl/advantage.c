/* Advantages that need only rewards: one number a sequence, made before anything is cut into
 * micro-batches. A group is whole or it is not given at all, so the group size is one number. */
#include <troupe/ext/base.h>
#include <troupe/rl.h>

#include <math.h>

/* Squares of what is below it still fit a double, and differences of two a float. */
static const double reward_max = 1e30;

typedef struct tr_moments {
    double mean, std;
    bool equal; /* all values are one value */
} tr_moments;

static troupe_status check_rewards(const troupe_rl_options *options, const double *rewards,
    int32_t groups, int32_t group_size, troupe_error *err);
static tr_moments moments_of(const double *x, size_t count, bool unbiased);
static double scale_of(
    const troupe_rl_options *options, tr_moments group, tr_moments batch, int32_t group_size);

troupe_status
troupe_rl_advantages(const troupe_rl_options *options, const double *rewards, int32_t groups,
    int32_t group_size, float *advantage, troupe_rl_advantage_stats *stats, troupe_error *err)
{
    TR_ASSERT(groups >= 0 && (groups == 0 || (rewards != NULL && advantage != NULL)));
    const troupe_status status = check_rewards(options, rewards, groups, group_size, err);
    if (status != TROUPE_OK) {
        return status;
    }
    const size_t count = (size_t)groups * (size_t)group_size;
    const tr_moments batch = moments_of(rewards, count, options->std_unbiased);
    int32_t zero_variance = 0;
    for (int32_t g = 0; g < groups; g++) {
        const size_t first = (size_t)g * (size_t)group_size;
        const tr_moments group =
            moments_of(rewards + first, (size_t)group_size, options->std_unbiased);
        const double scale = scale_of(options, group, batch, group_size);
        const bool baseline = options->advantage != TROUPE_ADV_REWARD;
        zero_variance += group.equal && group_size > 1 ? 1 : 0;
        for (size_t i = first; i < first + (size_t)group_size; i++) {
            const double centred = rewards[i] - group.mean; /* exactly 0 when all are equal */
            advantage[i] = (float)(baseline ? scale * centred : rewards[i]);
        }
    }
    if (stats != NULL) {
        *stats = (troupe_rl_advantage_stats){
            .zero_variance = zero_variance, .reward_mean = batch.mean, .reward_std = batch.std};
    }
    return TROUPE_OK;
}

static troupe_status
check_rewards(const troupe_rl_options *options, const double *rewards, int32_t groups,
    int32_t group_size, troupe_error *err)
{
    switch (options->advantage) {
    case TROUPE_ADV_REWARD:
    case TROUPE_ADV_GRPO:
    case TROUPE_ADV_DR_GRPO:
    case TROUPE_ADV_BATCH_STD:
    case TROUPE_ADV_RLOO:
        break;
    case TROUPE_ADV_REINFORCE_PP:
    case TROUPE_ADV_REINFORCE_PP_BASELINE:
    case TROUPE_ADV_GAE:
    case TROUPE_ADV_VTRACE:
        return troupe_fail(err, TROUPE_INVALID,
            "advantage: this kind has one value a token; use troupe_rl_token_advantages, "
            "troupe_rl_gae or troupe_rl_vtrace");
    }
    const int32_t least = options->advantage == TROUPE_ADV_REWARD ? 1 : 2;
    if (group_size < least) {
        return troupe_fail(err, TROUPE_INVALID,
            "advantage: a group of %d has no baseline but itself; raise the group size to 2 or "
            "more, or use advantage=reward",
            (int)group_size);
    }
    for (int32_t g = 0; g < groups; g++) {
        for (int32_t m = 0; m < group_size; m++) {
            const double reward = rewards[(size_t)g * (size_t)group_size + (size_t)m];
            if (!(fabs(reward) <= reward_max)) {
                return troupe_fail(err, TROUPE_CORRUPT,
                    "advantage: the reward of member %d of group %d is %g, no number between "
                    "+-1e30; fail the group, since an error is no reward",
                    (int)m, (int)g, reward);
            }
        }
    }
    return TROUPE_OK;
}

/* Two passes, since rewards may be large and close together. */
static tr_moments
moments_of(const double *x, size_t count, bool unbiased)
{
    if (count == 0) {
        return (tr_moments){.equal = true};
    }
    double sum = 0;
    bool equal = true;
    for (size_t i = 0; i < count; i++) {
        sum += x[i];
        equal = equal && x[i] == x[0];
    }
    if (equal) {
        return (tr_moments){.mean = x[0], .equal = true};
    }
    const double mean = sum / (double)count;
    double squares = 0;
    for (size_t i = 0; i < count; i++) {
        squares += (x[i] - mean) * (x[i] - mean);
    }
    const size_t degrees = unbiased ? count - 1 : count;
    return (tr_moments){.mean = mean, .std = sqrt(squares / (double)degrees)};
}

/* What (r - group mean) is multiplied by. */
static double
scale_of(const troupe_rl_options *options, tr_moments group, tr_moments batch, int32_t group_size)
{
    switch (options->advantage) {
    case TROUPE_ADV_GRPO: /* Shao et al., 2024 */
        return group.equal ? 0 : 1 / (group.std + options->std_eps);
    case TROUPE_ADV_BATCH_STD: /* Liu et al., 2025 (Lite PPO) */
        return batch.equal ? 0 : 1 / (batch.std + options->std_eps);
    case TROUPE_ADV_RLOO: /* Ahmadian et al., 2024: r - mean of the others, in terms of the mean */
        return (double)group_size / (group_size - 1);
    case TROUPE_ADV_DR_GRPO: /* Liu et al., 2025 */
    default:
        return 1;
    }
}

double
troupe_rl_overlong(int64_t length, int64_t limit, int64_t margin)
{
    if (length <= limit - margin) {
        return 0;
    }
    if (length > limit || margin <= 0) {
        return length > limit ? -1 : 0;
    }
    return (double)(limit - margin - length) / (double)margin;
}
