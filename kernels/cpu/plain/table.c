/* The table of plain operations. */
#include "cpu/cpu.h"
#include "cpu/plain/plain.h"

const troupe_ops tr_plain_ops = {
    .name = "cpu:plain",
    .embed_forward = tr_plain_embed_forward,
    .embed_backward = tr_plain_embed_backward,
    .add_rmsnorm_forward = tr_plain_add_rmsnorm_forward,
    .rmsnorm_backward = tr_plain_rmsnorm_backward,
    .linear_forward = tr_plain_linear_forward,
    .linear_backward_input = tr_plain_linear_backward_input,
    .linear_backward_weight = tr_plain_linear_backward_weight,
    .qk_norm_rope_forward = tr_plain_qk_norm_rope_forward,
    .qk_norm_rope_backward = tr_plain_qk_norm_rope_backward,
    .attention_packed_forward = tr_plain_attention_packed_forward,
    .attention_packed_backward = tr_plain_attention_packed_backward,
    .kv_write = tr_plain_kv_write,
    .attention_paged_forward = tr_plain_attention_paged_forward,
    .kv_copy_block = tr_plain_kv_copy_block,
    .swiglu_forward = tr_plain_swiglu_forward,
    .swiglu_backward = tr_plain_swiglu_backward,
    .lm_head_forward = tr_plain_lm_head_forward,
    .lm_head_backward = tr_plain_lm_head_backward,
    .sample = tr_plain_sample,
    .adamw = tr_plain_adamw,
    .square_sum = tr_plain_square_sum,
    .add = tr_plain_add,
    .checksum = tr_plain_checksum,
};
