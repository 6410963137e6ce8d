/* What the files of actors/rl share: one sequence with its masked tokens left out.
 *
 * The order in which a sequence passes through them: tr_rl_gather (evaluate.c), tr_rl_correct
 * (correction.c), tr_rl_losses (loss.c), then aggregation (evaluate.c). */
#ifndef TR_RL_PARTS_H
#define TR_RL_PARTS_H

#include <troupe/rl.h>

/* A token rejected by the bounds of its weight; beside the bits of troupe_rl_mask. */
#define TR_REJECTED_BY_WEIGHT (1U << TROUPE_MASK_KINDS)

#define TR_LOG_RATIO_MAX 20.0

typedef enum tr_clip {
    TR_CLIP_NONE,
    TR_CLIP_HIGH,
    TR_CLIP_LOW,
    TR_CLIP_DUAL
} tr_clip;

typedef struct tr_token {
    int32_t at;      /* where it lies in the batch's arrays */
    double lp, lp_b; /* current, behaviour */
    double lp_p;     /* proximal, a constant even where it was made from lp */
    double advantage;
    double log_rho; /* lp_p - lp_b (two policies: lp - lp_b), not clamped */
    double weight;
    unsigned rejected; /* bits of troupe_rl_mask and TR_REJECTED_BY_WEIGHT */
    bool capped;       /* its weight was cut, or it was rejected by the weight's bounds */
    tr_clip clip;
    double loss, dlp; /* of the policy term, with the weight, before aggregation */
} tr_token;

typedef struct tr_sequence {
    tr_token *tokens;
    int32_t count;    /* unmasked tokens */
    double advantage; /* mean over them */
} tr_sequence;

/* x cut to [-20, 20]; *flat tells whether it was, since a cut log-ratio has no gradient. */
double tr_rl_clamp(double x, bool *flat);
/* exp of the clamped log-ratio. */
double tr_rl_ratio(double log_ratio);

/* Checks the arrays that `options` need; need_lp_cur is false before the forward pass. */
troupe_status tr_rl_check_batch(const troupe_rl_options *options, const troupe_rl_batch *batch,
    bool need_lp_cur, troupe_error *err);
/* Fills tokens[0 .. count) with the unmasked tokens of sequence s; tokens has room for all of them.
 * Without lp_cur the current log-prob is left 0 and the advantages are not looked at. */
troupe_status tr_rl_gather(const troupe_rl_options *options, const troupe_rl_batch *batch,
    int32_t s, tr_sequence *sequence, troupe_error *err);
/* The most tokens that one sequence of the batch has. */
int32_t tr_rl_longest(const troupe_rl_batch *batch);

/* Weights and rejections of one sequence. */
void tr_rl_correct(
    const troupe_rl_options *options, const troupe_rl_globals *globals, tr_sequence *sequence);
/* Loss and derivative of each token's policy term, weight included, rejections not. */
void tr_rl_losses(const troupe_rl_options *options, tr_sequence *sequence);
/* Does the loss take the correction's weight, or does its own ratio already do that work? */
bool tr_rl_loss_takes_weight(const troupe_rl_options *options);
/* Is the KL to the reference part of the reward, and so not of the loss? */
bool tr_rl_kl_in_reward(const troupe_rl_options *options);

#endif
