/* The table of one vector path. */
#include "cpu/ops.h"

#define TR_TEXT_(x) #x
#define TR_TEXT(x)  TR_TEXT_(x)

extern const troupe_ops TR_FN(ops);

const troupe_ops TR_FN(ops) = {
    .name = "cpu:" TR_TEXT(TR_PATH),
    .embed_forward = TR_FN(embed_forward),
    .embed_backward = TR_FN(embed_backward),
    .add_rmsnorm_forward = TR_FN(add_rmsnorm_forward),
    .rmsnorm_backward = TR_FN(rmsnorm_backward),
    .linear_forward = TR_FN(linear_forward),
    .linear_backward_input = TR_FN(linear_backward_input),
    .linear_backward_weight = TR_FN(linear_backward_weight),
    .qk_norm_rope_forward = TR_FN(qk_norm_rope_forward),
    .qk_norm_rope_backward = TR_FN(qk_norm_rope_backward),
    .attention_packed_forward = TR_FN(attention_packed_forward),
    .attention_packed_backward = TR_FN(attention_packed_backward),
    .kv_write = TR_FN(kv_write),
    .attention_paged_forward = TR_FN(attention_paged_forward),
    .kv_copy_block = TR_FN(kv_copy_block),
    .swiglu_forward = TR_FN(swiglu_forward),
    .swiglu_backward = TR_FN(swiglu_backward),
    .lm_head_forward = TR_FN(lm_head_forward),
    .lm_head_backward = TR_FN(lm_head_backward),
    .sample = TR_FN(sample),
    .adamw = TR_FN(adamw),
    .square_sum = TR_FN(square_sum),
    .add = TR_FN(add),
    .checksum = TR_FN(checksum),
};
