// The table of the CUDA device's operations.
#include "cuda/ops.cuh"

const troupe_ops tr_cuda_ops = {
    .name = "cuda",
    .embed_forward = tr_cuda_embed_forward,
    .embed_backward = tr_cuda_embed_backward,
    .add_rmsnorm_forward = tr_cuda_add_rmsnorm_forward,
    .rmsnorm_backward = tr_cuda_rmsnorm_backward,
    .linear_forward = tr_cuda_linear_forward,
    .linear_backward_input = tr_cuda_linear_backward_input,
    .linear_backward_weight = tr_cuda_linear_backward_weight,
    .qk_norm_rope_forward = tr_cuda_qk_norm_rope_forward,
    .qk_norm_rope_backward = tr_cuda_qk_norm_rope_backward,
    .attention_packed_forward = tr_cuda_attention_packed_forward,
    .attention_packed_backward = tr_cuda_attention_packed_backward,
    .kv_write = tr_cuda_kv_write,
    .attention_paged_forward = tr_cuda_attention_paged_forward,
    .kv_copy_block = tr_cuda_kv_copy_block,
    .swiglu_forward = tr_cuda_swiglu_forward,
    .swiglu_backward = tr_cuda_swiglu_backward,
    .lm_head_forward = tr_cuda_lm_head_forward,
    .lm_head_backward = tr_cuda_lm_head_backward,
    .sample = tr_cuda_sample,
    .adamw = tr_cuda_adamw,
    .square_sum = tr_cuda_square_sum,
    .add = tr_cuda_add,
    .checksum = tr_cuda_checksum,
};
