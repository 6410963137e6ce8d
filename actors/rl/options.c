/* Options by name. An algorithm's name stands for settings that a user could have written out,
 * so the presets below are texts of the same key=value language and go through the same setter. */
#include "names.h"
#include "parts.h"

#include <string.h>

typedef struct tr_preset {
    const char *name;
    const char *settings;
    const char *correction; /* when the user names none */
    const char *always; /* joined to any correction: it is what the name means; "" when nothing */
    bool needs_weight;  /* the name promises a weight: "none" would silently be another algorithm */
} tr_preset;

/* TIS with a cap of 2 is the default: it costs nothing on-policy and holds when engine and
 * trainer disagree. AIPO and DPPO use the ratio to the behaviour themselves; V-trace has it in
 * its targets. */
static const tr_preset presets[] = {
    {"grpo", "", "token-tis", "", false},
    {"dapo", "kl-coef=0", "token-tis", "", false},
    {"dr-grpo", "advantage=dr-grpo,aggregation=seq-mean-token-const,clip-high=0.2,kl-coef=0",
        "token-tis", "", false},
    {"lite-ppo", "advantage=batch-std,kl-coef=0", "token-tis", "", false},
    {"rloo", "advantage=rloo,loss=reinforce,aggregation=seq-mean-token-sum", "token-tis", "",
        false},
    {"reinforce", "advantage=reward,loss=reinforce", "token-tis", "", false},
    {"reinforce++", "advantage=reinforce++,kl=k1,clip-high=0.2", "token-tis", "", false},
    {"reinforce++-baseline", "advantage=reinforce++-baseline,kl=k1,clip-high=0.2", "token-tis", "",
        false},
    {"gspo", "loss=gspo,aggregation=seq-mean-token-mean,clip-low=3e-4,clip-high=4e-4,kl-coef=0",
        "token-tis", "", false},
    {"cispo", "loss=cispo,clip-high=4,kl-coef=0", "token-tis", "", false},
    {"aipo", "loss=aipo,kl-coef=0", "none", "", false},
    {"reinforce-tis", "loss=aipo,kl-coef=0", "none", "", false},
    {"decoupled-ppo", "clip-high=0.2,kl-coef=0", "token-tis:5", "", true},
    {"dppo-tv", "loss=dppo-tv,kl-coef=0", "none", "", false},
    {"sapo", "loss=sapo,kl-coef=0", "token-tis", "", false},
    {"opsm", "", "token-tis", "opsm", false},
    {"kimi", "loss=kimi,advantage=dr-grpo,aggregation=seq-mean-token-sum,kl-coef=0", "token-tis",
        "", false},
    {"ppo", "advantage=gae,clip-high=0.2", "token-tis", "", false},
    {"impala", "advantage=vtrace,loss=reinforce,kl-coef=0", "none", "", false},
};

static const troupe_rl_options defaults = {
    .advantage = TROUPE_ADV_GRPO,
    .loss = TROUPE_LOSS_PPO,
    .aggregation = TROUPE_AGG_TOKEN_MEAN,
    .proximal = TROUPE_PROX_RECOMPUTED,
    .kl = TROUPE_KL_K3,
    .weight = TROUPE_WEIGHT_NONE,
    .kl_coef = 1e-3,
    .clip_low = 0.2,
    .clip_high = 0.28,
    .aipo_cap = 2,
    .weight_low = 0,
    .weight_high = 2,
    .token_rs_low = 0.5,
    .token_rs_high = 2,
    .seq_rs_low = 0.5,
    .seq_rs_high = 2,
    .geo_rs_low = 0.999,
    .geo_rs_high = 1.001,
    .k3_rs_max = 1e-2,
    .veto_min = 1e-4,
    .m2po_max = 0.04,
    .opsm_max = 1e-4,
    .dppo_delta = 0.2,
    .dppo_penalty = 1e-3,
    .sapo_tau_pos = 1,
    .sapo_tau_neg = 1.05,
    .kimi_tau = 0.1,
    .length_const = 1024,
    .std_eps = 1e-4,
    .gamma = 1,
    .lambda = 0.95,
    .vtrace_rho = 1,
    .vtrace_c = 1,
};

static troupe_status
find_preset(const char *name, const tr_preset **preset, troupe_error *err)
{
    const char *names[TR_NAMES_MAX];
    for (size_t i = 0; i < TR_COUNT(presets); i++) {
        names[i] = presets[i].name;
        if (strcmp(name, presets[i].name) == 0) {
            *preset = &presets[i];
            return TROUPE_OK;
        }
    }
    return tr_rl_unknown("algorithm", name, names, TR_COUNT(presets), err);
}

troupe_status
troupe_rl_options_parse(
    troupe_rl_options *options, const char *algo, const char *correction, troupe_error *err)
{
    troupe_rl_options o = defaults;
    const tr_preset *preset = NULL;
    const char *list = algo != NULL ? algo : "grpo";
    char name[TR_WORD_MAX];
    (void)tr_rl_next_word(&list, ',', name);
    troupe_status status = find_preset(name, &preset, err);
    if (status == TROUPE_OK && preset->settings[0] != '\0') {
        status = tr_rl_set_list(&o, preset->settings, err);
    }
    if (status == TROUPE_OK && list != NULL) {
        status = tr_rl_set_list(&o, list, err);
    }
    if (status == TROUPE_OK && preset->always[0] != '\0') {
        status = tr_rl_set_correction(&o, preset->always, err);
    }
    if (status == TROUPE_OK) {
        status =
            tr_rl_set_correction(&o, correction != NULL ? correction : preset->correction, err);
    }
    if (status == TROUPE_OK && preset->needs_weight && o.weight == TROUPE_WEIGHT_NONE) {
        status = troupe_fail(err, TROUPE_INVALID,
            "%s weighs each token by proximal / behaviour, and correction \"%s\" names no weight; "
            "use token-tis:5, or algo grpo",
            name, correction);
    }
    if (status == TROUPE_OK) {
        status = troupe_rl_options_check(&o, err);
    }
    if (status == TROUPE_OK) {
        *options = o;
    }
    return status;
}

/* Do the settings of `o` make the weight count twice or not at all? */
static troupe_status
check_weight(const troupe_rl_options *o, troupe_error *err)
{
    const bool weighs = o->weight != TROUPE_WEIGHT_NONE;
    if (weighs && !tr_rl_loss_takes_weight(o)) {
        return troupe_fail(err, TROUPE_INVALID,
            "loss %s%s has the ratio to the behaviour in itself, and a correction's weight would "
            "apply it twice; use correction none, or a rejection such as geo-rs or veto",
            tr_rl_loss_name(o->loss),
            o->proximal == TROUPE_PROX_BEHAVIOUR ? " with proximal=behaviour" : "");
    }
    if (weighs && o->advantage == TROUPE_ADV_VTRACE) {
        return troupe_fail(err, TROUPE_INVALID,
            "advantage=vtrace weighs by the ratio to the behaviour in its targets; use correction "
            "none");
    }
    if (o->batch_norm && !weighs) {
        return troupe_fail(err, TROUPE_INVALID,
            "batch-norm divides weights by their mean, and there is no weight; add one, as in "
            "token-tis+batch-norm");
    }
    if (troupe_rl_needs_prox(o) && o->proximal != TROUPE_PROX_RECOMPUTED) {
        return troupe_fail(err, TROUPE_INVALID,
            "m2po and batch-norm look at the whole step's proximal log-probs before it is cut; use "
            "proximal=recomputed");
    }
    return TROUPE_OK;
}

troupe_status
troupe_rl_options_check(const troupe_rl_options *o, troupe_error *err)
{
    if (o->kl == TROUPE_KL_K1 && o->kl_coef > 0 && !tr_rl_kl_in_reward(o)) {
        return troupe_fail(err, TROUPE_INVALID,
            "kl=k1 as a loss pulls nowhere: its gradient has mean zero; use kl=k3 or k2, or "
            "reinforce++, which has it in the reward");
    }
    if (o->dual_clip > 0 && o->dual_clip <= 1) {
        return troupe_fail(err, TROUPE_INVALID,
            "dual-clip=%g would clip the policy that sampled; it has to be above 1 (3 is common), "
            "or 0 for off",
            o->dual_clip);
    }
    if (o->dual_clip > 0 && o->loss != TROUPE_LOSS_PPO && o->loss != TROUPE_LOSS_GSPO) {
        return troupe_fail(err, TROUPE_INVALID,
            "dual-clip bounds the losses ppo and gspo, not %s; set dual-clip=0",
            tr_rl_loss_name(o->loss));
    }
    return check_weight(o, err);
}

bool
tr_rl_kl_in_reward(const troupe_rl_options *options)
{
    return options->advantage == TROUPE_ADV_REINFORCE_PP ||
           options->advantage == TROUPE_ADV_REINFORCE_PP_BASELINE;
}

bool
troupe_rl_needs_prox(const troupe_rl_options *options)
{
    return options->batch_norm || (options->masks & TROUPE_MASK_M2PO) != 0;
}

bool
troupe_rl_needs_ref(const troupe_rl_options *options)
{
    return options->kl_coef > 0;
}

bool
troupe_rl_needs_entropy(const troupe_rl_options *options)
{
    return options->entropy_coef != 0;
}

bool
troupe_rl_needs_lag(const troupe_rl_options *options)
{
    return options->proximal == TROUPE_PROX_LOGLINEAR;
}

size_t
troupe_rl_options_print(const troupe_rl_options *o, char *text, size_t size)
{
    tr_buf line = {0};
    tr_rl_print_choices(o, &line);
    tr_rl_print_correction(o, &line);
    tr_rl_print_numbers(o, &line);
    const size_t length = line.size;
    if (size > 0) {
        const size_t kept = TR_MIN(length, size - 1);
        memcpy(text, line.data, kept);
        text[kept] = '\0';
    }
    tr_buf_fini(&line);
    return length;
}
