// The operations of the CUDA device, one file each, with the contracts of troupe_ops. Private.
#ifndef TR_KERNELS_CUDA_OPS_CUH
#define TR_KERNELS_CUDA_OPS_CUH

#include "cuda/cuda.cuh"

void tr_cuda_embed_forward(
    troupe_device *d, float *out, const float *table, const int32_t *ids, int R, int D);
void tr_cuda_embed_backward(
    troupe_device *d, float *dtable, const float *dout, const int32_t *ids, int R, int D);
void tr_cuda_add_rmsnorm_forward(troupe_device *d, float *out, float *resid, float *rstd,
    const float *x, const float *w, float eps, int R, int D);
void tr_cuda_rmsnorm_backward(troupe_device *d, float *dresid, float *dw, const float *dout,
    const float *resid, const float *w, const float *rstd, int R, int D);
void tr_cuda_linear_forward(troupe_device *d, float *y, const float *x,
    const troupe_packed_weight *w, const float *bias, bool accumulate, int R);
void tr_cuda_linear_backward_input(troupe_device *d, float *dx, const float *dy, const float *w,
    bool accumulate, int R, int N, int K);
void tr_cuda_linear_backward_weight(troupe_device *d, float *dw, float *dbias, const float *dy,
    const float *x, int R, int N, int K);
void tr_cuda_qk_norm_rope_forward(troupe_device *d, float *qkv, float *pre, float *rstd,
    const float *qw, const float *kw, float eps, const int32_t *pos, const troupe_rope *rope, int R,
    int H, int KH, int E);
void tr_cuda_qk_norm_rope_backward(troupe_device *d, float *dqkv, float *dqw, float *dkw,
    const float *pre, const float *rstd, const float *qw, const float *kw, const int32_t *pos,
    const troupe_rope *rope, int R, int H, int KH, int E);
void tr_cuda_attention_packed_forward(troupe_device *d, float *out, float *lse, const float *qkv,
    const int32_t *cu, int sequences, float scale, int H, int KH, int E);
void tr_cuda_attention_packed_backward(troupe_device *d, float *dqkv, const float *dout,
    const float *qkv, const float *out, const float *lse, const int32_t *cu, int sequences,
    float scale, int H, int KH, int E);
void tr_cuda_kv_write(troupe_device *d, const troupe_kv_cache *cache, int layer, const float *qkv,
    const troupe_paged_rows *rows, int H);
void tr_cuda_attention_paged_forward(troupe_device *d, float *out, const float *qkv,
    const troupe_kv_cache *cache, int layer, const troupe_paged_rows *rows, float scale, int H);
void tr_cuda_kv_copy_block(
    troupe_device *d, const troupe_kv_cache *cache, int layers, int from, int to);
void tr_cuda_swiglu_forward(troupe_device *d, float *out, const float *gu, int R, int F);
void tr_cuda_swiglu_backward(
    troupe_device *d, float *dgu, const float *dout, const float *gu, int R, int F);
void tr_cuda_lm_head_forward(troupe_device *d, float *logprob, float *entropy, float *lse,
    float *logits, const float *x, const troupe_packed_weight *w, const int32_t *target,
    float inv_temperature, int VV, int R);
void tr_cuda_lm_head_backward(troupe_device *d, float *dx, float *dw, const float *dlogprob,
    const float *dentropy, const float *x, const float *w, const troupe_packed_weight *packed,
    const float *lse, const float *entropy, const int32_t *target, float inv_temperature, int VV,
    int R, int V, int D);
void tr_cuda_sample(troupe_device *d, int32_t *id, float *logprob, float *logprob_law,
    float *entropy, uint8_t *bad, const float *logits, const troupe_sampling *sampling,
    const double *u, int VV, int R, int V);
void tr_cuda_adamw(troupe_device *d, float *param, float *m, float *v, const float *grad,
    const troupe_adamw *o, size_t n);
double tr_cuda_square_sum(troupe_device *d, const float *x, size_t n);
void tr_cuda_add(troupe_device *d, float *y, const float *x, size_t n);
uint64_t tr_cuda_checksum(troupe_device *d, const float *x, size_t n);

#endif
