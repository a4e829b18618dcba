// Attention over several heads, with the projections around it: made of other ops, so that its distribution follows
// from theirs. Weights of query, key and value that are split by rows give each rank whole heads, and nothing moves
// before the last product.
#include <cmath>

#include "holon/base/index.h"
#include "holon/dispatch/dispatch.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/attention.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"
#include "holon/ops/matmul.h"
#include "holon/ops/norm.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/registry/op_def.h"

namespace holon::ops {
namespace {

NdSbp whole_over(const Placement& placement) {
  std::vector<Sbp> list(to_size(placement.hierarchy().size()), sbp::broadcast());
  return NdSbp(list);
}

// What attention adds to the scores [n, heads, queries, keys], or undefined: a mask of bools leaves out where it is
// True, one of floats is added.
Tensor additive(const Tensor& mask, DType dtype) {
  if (mask.dtype() != boolean) return mask.to(dtype);
  return masked_fill(mul(mask.to(dtype), 0.0), mask, -INFINITY);
}

Tensor score_mask(const Tensor& attn_mask, const Tensor& key_padding_mask, const Dims& scores, DType dtype) {
  Tensor sum;
  if (attn_mask.defined()) {
    bool each = attn_mask.shape() == Dims{scores[0] * scores[1], scores[2], scores[3]};
    if (!each && attn_mask.shape() != Dims{scores[2], scores[3]})
      fail_value("multi_head_attention: attn_mask has shape {}; it must be [queries, keys] = [{}, {}], or [batch * "
                 "heads, queries, keys] = [{}, {}, {}].",
                 attn_mask.shape(), scores[2], scores[3], scores[0] * scores[1], scores[2], scores[3]);
    sum = additive(each ? attn_mask.reshape(scores) : attn_mask, dtype);
  }
  if (key_padding_mask.defined()) {
    if (key_padding_mask.shape() != Dims{scores[0], scores[3]})
      fail_value("multi_head_attention: key_padding_mask has shape {}; it must be [batch, keys] = [{}, {}].",
                 key_padding_mask.shape(), scores[0], scores[3]);
    Tensor padding = additive(key_padding_mask.reshape({scores[0], 1, 1, scores[3]}), dtype);
    sum = sum.defined() ? add(sum, padding) : padding;
  }
  return sum;
}

Tensor causal_mask(const Tensor& like, int64_t queries, int64_t keys) {
  Dims shape{queries, keys};
  Tensor all = like.is_global()
      ? ones(shape, {.placement = like.placement(), .sbp = whole_over(like.placement()), .dtype = boolean})
      : ones(shape, {.dtype = boolean, .device = like.device()});
  return triu(all, 1);
}

// [n, length, width] to [n, heads, length, width / heads].
Tensor split_heads(const Tensor& x, int64_t heads) {
  return transpose(x.reshape({x.shape()[0], x.shape()[1], heads, x.shape()[2] / heads}), 1, 2);
}

}  // namespace

HOLON_OP(multi_head_attention,
         "multi_head_attention(Tensor query, Tensor key, Tensor value, int num_heads, Tensor out_weight, Tensor? "
         "out_bias=None, Tensor? in_weight=None, Tensor? q_weight=None, Tensor? k_weight=None, Tensor? v_weight=None, "
         "Tensor? in_bias=None, Tensor? attn_mask=None, Tensor? key_padding_mask=None, *, float dropout_p=0.0, bool "
         "is_causal=False, bool need_weights=False, bool average_attn_weights=True) -> Tensor[]")
    .doc("Attention in num_heads parts of the width of query [n, l, e] over key and value [n, s, ...]: the result [n, "
         "l, e], and with need_weights the weights [n, l, s], or of each head [n, heads, l, s]. in_weight [3 e, e] "
         "holds the weights of query, key and value, or q_weight, k_weight and v_weight do. A bool mask leaves out "
         "what is True; a floating point mask is added to the scores.",
         "multi_head_attention(ones(2, 5, 4), ones(2, 5, 4), ones(2, 5, 4), 2, ones(4, 4), in_weight=ones(12, 4))[0]")
    .function_only()
    .body([](BodyCall& c) {
      const Tensor &query = c.in(0), &key = c.in(1), &value = c.in(2), &in_weight = c.in(5), &in_bias = c.in(9);
      int64_t heads = c.i("num_heads"_attr);
      for (size_t i = 0; i < 3; ++i)
        if (c.in(i).ndim() != 3 || c.in(i).shape()[0] != query.shape()[0])
          fail_value(
              "multi_head_attention: query is {}, key {}, value {}; they must be [n, length, width] with the same n.",
              query.shape(), key.shape(), value.shape());
      if (key.shape()[1] != value.shape()[1])
        fail_value("multi_head_attention: key {} and value {} must have the same length.", key.shape(), value.shape());
      int64_t e = query.shape()[2];
      if (heads < 1 || e % heads)
        fail_value("multi_head_attention: the width of query {} is not divisible by {} heads.", query.shape(), heads);
      if (c.present(5) == c.present(6) || c.present(6) != c.present(7) || c.present(6) != c.present(8))
        fail_value("multi_head_attention: give in_weight, or q_weight, k_weight and v_weight.");
      if (c.present(5) && in_weight.shape() != Dims{3 * e, e})
        fail_value("multi_head_attention: in_weight has shape {}; for query {} it must be [{}, {}].", in_weight.shape(),
                   query.shape(), 3 * e, e);
      if (c.present(9) && in_bias.shape() != Dims{3 * e})
        fail_value("multi_head_attention: in_bias has shape {}; for query {} it must be [{}].", in_bias.shape(),
                   query.shape(), 3 * e);

      Tensor part[3];
      if (c.present(5) && query.is_same(key) && key.is_same(value)) {
        auto all = chunk(linear(query, in_weight, in_bias), 3, -1);
        for (size_t i = 0; i < 3; ++i) part[i] = all[i];
      } else {
        for (size_t i = 0; i < 3; ++i) {
          int64_t at = static_cast<int64_t>(i) * e;
          part[i] = linear(c.in(i), c.present(5) ? narrow(in_weight, 0, at, e) : c.in(6 + i),
                           c.present(9) ? narrow(in_bias, 0, at, e) : Tensor());
        }
      }
      for (auto& p : part) p = split_heads(p, heads);
      auto& [q, k, v] = part;
      int64_t n = query.shape()[0], length = query.shape()[1], keys = key.shape()[1];
      Tensor attn_mask = c.in(10);
      bool causal = c.b("is_causal"_attr);
      // Beside another mask, or where the weights are requested, causality is a mask too.
      if (causal && !attn_mask.defined() && (c.present(11) || c.b("need_weights"_attr)))
        attn_mask = causal_mask(query, length, keys);
      Tensor mask = score_mask(attn_mask, c.in(11), {n, heads, length, keys}, q.dtype());
      Tensor result, weights;
      if (c.b("need_weights"_attr)) {
        Tensor scores = matmul(mul(q, 1 / std::sqrt(static_cast<double>(e / heads))), transpose(k, -2, -1));
        if (mask.defined()) scores = add(scores, mask);
        weights = dropout(softmax(scores, -1), c.f("dropout_p"_attr), c.f("dropout_p"_attr) > 0);
        result = matmul(weights, v);
        if (c.b("average_attn_weights"_attr)) weights = mean(weights, Dims{1});
      } else {
        result = scaled_dot_product_attention(q, k, v, mask, c.f("dropout_p"_attr), causal && !mask.defined());
      }
      c.out.push_back(linear(transpose(result, 1, 2).reshape({n, length, e}), c.in(3), c.in(4)));
      if (weights.defined()) c.out.push_back(weights);
    });

}  // namespace holon::ops
