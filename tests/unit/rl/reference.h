/* The losses once more, for tests: in double, one formula after the other, without sharing
 * anything with actors/rl. `lp` are the current log-probs that the loss is a function of,
 * `frozen` the same numbers where a formula stops the gradient, so that a finite difference in
 * lp leaves those alone. */
#ifndef TROUPE_TEST_RL_REFERENCE_H
#define TROUPE_TEST_RL_REFERENCE_H

#include <troupe/rl.h>

/* The whole step's loss, all parts, of the batch with lp in the place of lp_cur. `part`, when
 * not NULL, receives policy, KL and entropy terms. */
double reference_loss(const troupe_rl_options *o, const troupe_rl_batch *b, const double *lp,
    const double *frozen, double part[3]);

/* The same for GSPO with its ratio as a function of the whole sequence, not token by token. Only
 * without correction and with a clip that no sequence reaches half-way. */
double reference_gspo_sequence(
    const troupe_rl_options *o, const troupe_rl_batch *b, const double *lp);

/* Weight of each token (0 where rejected or masked) under the corrections, from definitions. */
void reference_weights(
    const troupe_rl_options *o, const troupe_rl_batch *b, const double *frozen, double *weight);

#endif
