#include "holon/nn/sparse.h"

#include "holon/base/error.h"
#include "holon/nn/init.h"
#include "holon/nn/weights.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/index.h"
#include "holon/ops/shape.h"

namespace holon::nn {

Embedding::Embedding(int64_t rows, int64_t width, const EmbeddingOptions& o) : padding_idx_(o.padding_idx) {
  if (padding_idx_ && (*padding_idx_ < -rows || *padding_idx_ >= rows))
    fail_value("Embedding: padding_idx is {}, the table has {} rows.", *padding_idx_, rows);
  weight = register_parameter("weight", blank({rows, width}, o.placement, o.sbp, o.dtype));
  init::normal_(weight);
  if (!padding_idx_) return;
  if (*padding_idx_ < 0) *padding_idx_ += rows;
  NoGradGuard guard;
  NdSbp whole = o.sbp;
  for (int d = 0; d < whole.size(); ++d) whole = whole.with(d, sbp::broadcast());
  Tensor kept = ne(arange(rows, {}, int64_t{1}, {.placement = o.placement, .sbp = whole}), *padding_idx_);
  mul_(weight, kept.to(o.dtype).reshape({rows, 1}));
}

Tensor Embedding::forward(const Tensor& indices) const {
  Tensor rows = embedding(weight, indices);
  if (!padding_idx_) return rows;
  return where(unsqueeze(ne(indices, *padding_idx_), -1), rows, rows.detach());
}

}  // namespace holon::nn
