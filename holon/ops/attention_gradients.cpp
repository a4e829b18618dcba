#include "holon/ops/attention_gradients.h"

#include <limits>

#include "holon/internal_ops/random.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/matmul.h"
#include "holon/ops/norm.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"
#include "holon/ops/whole.h"

namespace holon::ops {
namespace {

// Far below every score, and yet finite: a row in which all is hidden then has derivatives without NaN.
constexpr double kHidden = -1e30;

Tensor in_full(const Tensor& t) { return t.dtype() == float16 || t.dtype() == bfloat16 ? cast(t, float32) : t; }
Tensor transposed(const Tensor& t) { return transpose(t, -2, -1); }

// Each head `share` times, and the sum over those copies.
Tensor repeated(const Tensor& t, int64_t share) {
  const Dims& s = t.shape();
  return share == 1
      ? t
      : reshape(expand(unsqueeze(t, 2), {s[0], s[1], share, s[2], s[3]}), {s[0], s[1] * share, s[2], s[3]});
}
Tensor summed(const Tensor& t, int64_t share) {
  const Dims& s = t.shape();
  return share == 1 ? t : sum(reshape(t, {s[0], s[1] / share, share, s[2], s[3]}), Dims{2});
}

// Where a query must not look, [t, s], true.
Tensor out_of_sight(const Tensor& like, int64_t queries, int64_t keys, int64_t window) {
  Array a = Array::empty({queries, keys}, boolean);
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t j = 0; j < keys; ++j) a.data<bool>()[i * keys + j] = j > i || (window > 0 && j <= i - window);
  return beside(like, a);
}

Tensor either(const Tensor& a, const Tensor& b) { return !a.defined() ? b : !b.defined() ? a : logical_or(a, b); }

// The draw of attention_dropout: each row of scores begins at a group of 64 numbers.
Tensor kept(const Tensor& query, int64_t keys, const AttentionScores& of) {
  const Dims& s = query.shape();
  Tensor rows = expand(ones_like(slice(query.detach(), 3, 0, 1)), {s[0], s[1], s[2], (keys + 63) / 64 * 64});
  return slice(dropout_mask(rows, of.dropout_p, {.seed = of.seed, .counter = of.counter}), 3, 0, keys);
}

}  // namespace

std::array<Tensor, 3> attention_gradients(const Tensor& dy, const Tensor& query, const Tensor& key, const Tensor& value,
                                          const Tensor& mask, const Tensor& documents, const AttentionScores& of) {
  const int64_t share = key.shape()[1] > 0 ? query.shape()[1] / key.shape()[1] : 1, keys = key.shape()[2];
  const DType dtype = query.dtype();
  const Tensor q = in_full(query), k = repeated(in_full(key), share), v = repeated(in_full(value), share),
               g = in_full(dy);
  Tensor scores = matmul(mul(q, of.scale), transposed(k)), hidden;
  if (of.is_causal) hidden = out_of_sight(query, query.shape()[2], keys, of.window);
  if (documents.defined())
    hidden = either(hidden, ne(unsqueeze(unsqueeze(documents, 1), 3), unsqueeze(unsqueeze(documents, 1), 2)));
  if (mask.defined() && mask.dtype() == boolean) {
    hidden = either(hidden, logical_not(mask));
  } else if (mask.defined()) {
    Tensor never = eq(mask, -std::numeric_limits<double>::infinity());
    hidden = either(hidden, never);
    scores = add(scores, cast(masked_fill(mask, never, 0.0), scores.dtype()));
  }
  if (hidden.defined()) scores = masked_fill(scores, hidden, kHidden);
  Tensor p = softmax(scores, -1);
  if (hidden.defined()) p = masked_fill(p, hidden, 0.0);  // also in rows where all is hidden
  Tensor dp = matmul(g, transposed(v)), seen = p;
  if (of.dropout_p > 0) {
    Tensor draw = kept(q, keys, of);
    seen = mul(p, draw);
    dp = mul(dp, draw);
  }
  Tensor dscores = mul(mul(p, sub(dp, sum(mul(dp, p), Dims{-1}, true))), of.scale);
  std::array<Tensor, 3> d{matmul(dscores, k), summed(matmul(transposed(dscores), q), share),
                          summed(matmul(transposed(seen), g), share)};
  for (Tensor& t : d)
    if (t.dtype() != dtype) t = cast(t, dtype);
  return d;
}

}  // namespace holon::ops
