// Which class of automatic casts the ops of the library belong to. Products, which gain most and lose least, take the
// region's dtype; what adds up many numbers or magnifies their errors takes float32; ops that want inputs of one dtype
// get the widest. All others run in what they are given.
#include <algorithm>
#include <iterator>

#include "holon/registry/op_def.h"

namespace holon {

namespace {

constexpr std::string_view kLower[] = {
    "matmul",
    "matmul_nd",
    "linear",
    "bmm",
    "mm",
    "mv",
    "baddbmm",
    "addmm",
    "addmv",
    "addbmm",
    "einsum",
    "tensordot",
    "chain_matmul",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "deconv1d",
    "deconv2d",
    "deconv3d",
    "scaled_dot_product_attention",
    "fused_linear",
    "bilinear",
};

constexpr std::string_view kFloat32[] = {
    // losses
    "cross_entropy",
    "cross_entropy_rows",
    "sparse_softmax_cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "ctc_loss",
    "triplet_margin_loss",
    "margin_ranking_loss",
    "cosine_embedding_loss",
    "hinge_embedding_loss",
    "soft_margin_loss",
    "poisson_nll_loss",
    "gaussian_nll_loss",
    "cosine_similarity",
    "pairwise_distance",
    // softmax and norms
    "softmax",
    "log_softmax",
    "softmin",
    "logsumexp",
    "layer_norm",
    "rms_norm",
    "group_norm",
    "batch_norm",
    "instance_norm",
    "local_response_norm",
    "normalize",
    "norm",
    "vector_norm",
    "matrix_norm",
    "linalg_norm",
    "linalg_vector_norm",
    "weight_norm",
    "renorm",
    "dist",
    "cdist",
    // sums
    "sum",
    "nansum",
    "mean",
    "nanmean",
    "prod",
    "var",
    "std",
    "var_mean",
    "std_mean",
    "cumsum",
    "cumprod",
    "logcumsumexp",
    "trace",
    // functions that magnify errors
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "pow",
    "pow_scalar",
    "rpow",
    "rpow_scalar",
    "reciprocal",
    "rsqrt",
    "acos",
    "asin",
    "cosh",
    "sinh",
    "tan",
    "acosh",
    "atanh",
    "erfinv",
    "softplus",
    "lgamma",
    "digamma",
};

constexpr std::string_view kPromote[] = {
    "cat",   "stack", "where", "addcmul",   "addcdiv", "lerp",        "dot",       "vdot",
    "outer", "cross", "atan2", "index_add", "scatter", "scatter_add", "index_put", "masked_scatter",
};

template <size_t n>
bool has(const std::string_view (&list)[n], std::string_view op) {
  return std::find(std::begin(list), std::end(list), op) != std::end(list);
}

}  // namespace

Autocast default_autocast(std::string_view op) {
  return has(kLower, op)  ? Autocast::kLower
      : has(kFloat32, op) ? Autocast::kFloat32
      : has(kPromote, op) ? Autocast::kPromote
                          : Autocast::kNone;
}

}  // namespace holon
