// Scaled dot-product attention over [batch, heads, length, width]. Batch and heads split without communication, queries
// too, where keys and values are whole. In the backward pass keys may be split as well: each rank's scores are
// normalised by the whole row's sum, which the forward pass kept. Where all of the sequence is split, keys and values
// pass from rank to rank (ring_attention.h), or the heads are split instead (sequence_choice.h). The matrix of scores
// is never held.
#include "holon/kernels/attention.h"
#include "holon/internal_ops/attention.h"
#include "holon/kernels/copy.h"
#include "holon/ops/create.h"
#include "holon/ops/unary.h"

#include <algorithm>
#include <cmath>

#include "holon/ops/arithmetic.h"
#include "holon/ops/attention.h"
#include "holon/ops/attention_gradients.h"
#include "holon/ops/cast.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/flops.h"
#include "holon/ops/matmul.h"
#include "holon/ops/norm.h"
#include "holon/ops/random.h"
#include "holon/ops/ring_attention.h"
#include "holon/ops/rules.h"
#include "holon/ops/sequence_choice.h"
#include "holon/ops/shape.h"

namespace holon::ops {
namespace {

// query, key and value are inputs q and on; so many products are of the width of query and key, so many of value's. Of
// causal scores a half is masked, and left out.
double attention_flops(const CallShapes& c, size_t q, int with_key, int with_value) {
  const Dims &query = c.in(q), &key = c.in(q + 1), &value = c.in(q + 2);
  const double scores =
      elements(query) / static_cast<double>(std::max<int64_t>(1, query[3])) * static_cast<double>(key[2]);
  return 2 * scores * static_cast<double>(with_key * query[3] + with_value * value[3]) *
      (c.b("is_causal"_attr) ? 0.5 : 1);
}

// documents, if there are: a number for each position of the sequence that queries and keys have in common.
void check_documents(const Infer& c, size_t documents, size_t q, size_t k) {
  if (!c.present(documents)) return;
  const Dims& s = c.shape(documents);
  c.require(s.size() == 2 && (s[0] == 1 || s[0] == c.shape(q)[0]) && s[1] == c.shape(q)[2] && s[1] == c.shape(k)[2],
            "the documents are not [batch, length] of query and key", "They are of one sequence.");
  c.require_dtype(c.dtype_of(documents) == int64, "the documents are not int64", "Convert them by to(int64).");
}

void attention_infer(Infer& c) {
  c.require_floating(0);
  c.require_dtype(c.dtype_of(0) == c.dtype_of(1) && c.dtype_of(0) == c.dtype_of(2),
                  "query, key and value have different dtypes", "Convert them by to().");
  check_documents(c, 4, 0, 1);
  Dims out = c.shape(0), rows = c.shape(0);
  out.back() = c.shape(2).back();
  rows.resize(3);
  c.out(out, c.dtype_of(0));
  c.out(rows, c.dtype_of(0) == float64 ? float64 : float32);
}

// Factors of batch, heads, queries on operands: q-like ones carry all three, k-like ones the first two. Heads of q that
// share one of k stay together.
struct Factors {
  int b, h, t;
};
Factors common_factors(RuleCall& r, size_t q, size_t k, bool queries_contract) {
  int64_t heads = r.in[q].shape[1], shared = r.in[k].shape[1];
  return {r.rule.factor(), r.rule.factor(false, heads == shared ? 0 : shared), r.rule.factor(queries_contract)};
}
void mask_factors(RuleCall& r, size_t mask, const Factors& f, int keys) {
  const Dims& s = r.in[mask].shape;
  if (s.size() != 4) return;
  const int factors[] = {f.b, f.h, f.t, keys};
  for (int a = 0; a < 4; ++a)
    if (s[a] != 1 && factors[a] >= 0) r.rule.in(mask, a, factors[a]);
}

void documents_factors(RuleCall& r, size_t documents, const Factors& f) {
  const Dims& s = r.in[documents].shape;
  if (s.size() == 2 && s[0] != 1) r.rule.in(documents, 0, f.b);
}

// All of the sequence split, inputs and outputs: the kernel reads the other ranks' inputs `passing`. A mask with rows
// of its own is split as the queries, other masks and the documents are whole.
void split_sequence(RuleCall& r, std::initializer_list<size_t> split, size_t mask, uint32_t passing) {
  Signature s;
  for (size_t i = 0; i < r.in.size(); ++i) s.in.push_back(sbp::broadcast());
  for (size_t i : split) s.in[i] = sbp::split(2);
  if (const Dims& m = r.in[mask].shape; m.size() == 4 && m[2] != 1) s.in[mask] = sbp::split(2);
  for (size_t o = 0; o < r.out.size(); ++o) s.out.push_back(sbp::split(2));
  s.communicates = true;
  s.reads = passing;
  r.rule.add(s);
}

void attention_rule(RuleCall& r) {
  Factors f = common_factors(r, 0, 1, false);
  for (size_t i : {0, 1, 2}) r.rule.in(i, 0, f.b), r.rule.in(i, 1, f.h);
  r.rule.in(0, 2, f.t);
  for (size_t o : {0, 1}) r.rule.out(o, 0, f.b), r.rule.out(o, 1, f.h), r.rule.out(o, 2, f.t);
  mask_factors(r, 3, f, -1);
  documents_factors(r, 4, f);
  // The scores, and so their sums, do not depend on the values.
  for (Sbp s : {sbp::split(3), sbp::partial_sum()}) {
    Signature extra;
    for (size_t i = 0; i < r.in.size(); ++i) extra.in.push_back(i == 2 ? s : sbp::broadcast());
    extra.out.push_back(s);
    extra.out.push_back(sbp::broadcast());
    r.rule.add(extra);
  }
  split_sequence(r, {0, 1, 2}, 3, 0b110);
}

kernels::Attention options_of(const KernelCall& c, size_t q, size_t k, size_t mask) {
  kernels::Attention o;
  o.causal = c.b("is_causal"_attr);
  o.window = c.i("window"_attr);
  o.scale = c.f("scale"_attr);
  if (c.present(mask)) o.mask = c.in(mask);
  if (c.present(mask + 1)) o.documents = kernels::contiguous(c.in(mask + 1));
  Dims at = c.offset_in(q);
  o.first_image = at[0], o.first_head = at[1], o.first_query = at[2];
  o.first_key = c.offset_in(k)[2];
  o.heads = c.logical_in(q)[1], o.queries = c.logical_in(q)[2], o.keys = c.logical_in(k)[2];
  return o;
}
kernels::Attention with_dropout(const KernelCall& c, kernels::Attention o) {
  o.dropout = c.f("dropout_p"_attr);
  o.seed = static_cast<uint64_t>(c.i("seed"_attr));
  o.counter = static_cast<uint64_t>(c.i("counter"_attr));
  return o;
}

void attention_kernel(KernelCall& c, const kernels::Attention& o) {
  if (sequence_is_split(c, 0, 1)) return ring_attention(c, o);
  kernels::attention(c.in(0), c.in(1), c.in(2), o, c.out(0), &c.out(1));
}
void attention_backward_kernel(KernelCall& c, const kernels::Attention& o) {
  if (sequence_is_split(c, 1, 2)) return ring_attention_backward(c, o);
  kernels::attention_backward(c.in(0), c.in(1), c.in(2), c.in(3), c.in(4), c.in(5), o, c.out(0), c.out(1), c.out(2));
}

void attention_backward_infer(Infer& c) {
  check_documents(c, 7, 1, 2);
  for (size_t i : {1, 2, 3}) c.out(c.shape(i), c.dtype_of(i));
}

// dout, q, k, v, out, lse, mask, documents -> dq, dk, dv
void attention_backward_rule(RuleCall& r) {
  Factors f = common_factors(r, 1, 2, true);
  for (size_t i : {0, 1, 2, 3, 4, 5}) r.rule.in(i, 0, f.b), r.rule.in(i, 1, f.h);
  for (size_t o : {0, 1, 2}) r.rule.out(o, 0, f.b), r.rule.out(o, 1, f.h);
  for (size_t i : {0, 1, 4, 5}) r.rule.in(i, 2, f.t);
  r.rule.out(0, 2, f.t);
  int s = r.rule.factor(true), e = r.rule.factor(true);
  for (size_t i : {2, 3}) r.rule.in(i, 2, s);
  for (size_t o : {1, 2}) r.rule.out(o, 2, s);
  mask_factors(r, 6, f, s);
  documents_factors(r, 7, f);
  for (size_t i : {0, 3, 4}) r.rule.in(i, 3, e);
  r.rule.out(2, 3, e);
  pass_partial(r, {3, 4}, {0, 1});  // values and the result together: the gradient of a probability is linear in both
  split_sequence(r, {0, 1, 2, 3, 4, 5}, 6, 0b1100);
}

// By the matrix of scores: for a mask that has a gradient.
Tensor attention_by_scores(const BodyCall& c, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                           double scale) {
  Tensor scores = add(matmul(mul(q, scale), transpose(k, -2, -1)), mask);
  Tensor p = softmax(scores, -1);
  return matmul(dropout(p, c.f("dropout_p"_attr), true), v);
}

// Of attention_flash and attention_dropout, where backward is recorded itself.
void grad_by_ops(Grad& g, const AttentionScores& of) {
  auto d = attention_gradients(g.dy(), g.x(0), g.x(1), g.x(2), g.x(3), g.x(4), of);
  for (size_t i : {0, 1, 2})
    if (g.needs(i)) g.dx(i, d[i]);
}

Dims leading(const Dims& shape) {
  Dims d = shape;
  d.resize(shape.size() - 2);
  return d;
}

// x with the leading axes [b, h] (or one of them, or none, or several merged into b).
Tensor in_four(const Tensor& x) {
  const Dims& s = x.shape();
  if (s.size() == 4) return x;
  Dims to{1, 1, s[s.size() - 2], s.back()};
  for (int a = 0; a < s.size() - 2; ++a) (a == s.size() - 3 ? to[1] : to[0]) *= s[a];
  return reshape(x, to);
}

}  // namespace

HOLON_OP(scaled_dot_product_attention,
         "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float "
         "dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False, int window=0, Tensor? "
         "document_ids=None) -> Tensor")
    .doc("softmax(query keyᵀ scale + attn_mask) value, for query [..., heads, length, width], using memory "
         "proportional to the lengths, not to their product. scale is 1 / sqrt(width) unless given. attn_mask "
         "broadcasts to the scores: bool (true: a query sees a key) or added. is_causal: query i sees the keys up to "
         "i. dropout_p: the probability with which a probability becomes 0. enable_gqa: key and value have fewer "
         "heads, each shared by as many of query. window: with is_causal, a query sees so many keys at most, itself "
         "included. document_ids [batch or 1, length], integers: a query sees the keys of its document; query and key "
         "are of one sequence. For a query that sees no key the result is 0. On global tensors batch and heads may "
         "be split, queries too, and the sequence as a whole: then keys and values pass from rank to rank, or are "
         "brought together along the heads, whichever is faster (HOLON_SEQUENCE_ATTENTION), and no rank holds all of "
         "them. attn_mask may go with is_causal if it is alike for all queries.",
         "scaled_dot_product_attention(ones(1, 2, 4, 8), ones(1, 2, 4, 8), ones(1, 2, 4, 8)).shape")
    .autocast(Autocast::kLower)
    .function_only()
    .body([](BodyCall& c) {
      Tensor q = c.in(0), k = c.in(1), v = c.in(2), mask = c.in(3), documents = c.in(4);
      const char* op = c.op().name();
      int n = q.ndim();
      double p = c.f("dropout_p"_attr);
      if (n < 2 || k.ndim() < 2 || v.ndim() < 2)
        fail_value("{}: query is {}, key {}, value {}; each needs the axes [..., length, width].", op, q.shape(),
                   k.shape(), v.shape());
      if (!is_floating(q.dtype()) || q.dtype() != k.dtype() || q.dtype() != v.dtype())
        fail_type(
            "{}: query is {}, key {}, value {}; they must have the same floating point dtype. Convert them by to().",
            op, name(q.dtype()), name(k.dtype()), name(v.dtype()));
      if (q.size(-1) != k.size(-1) || k.size(-2) != v.size(-2))
        fail_value("{}: query {}, key {} and value {} do not fit: query and key must have the same width, key and "
                   "value the same length.",
                   op, q.shape(), k.shape(), v.shape());
      if (!(p >= 0 && p <= 1)) fail_value("{}: dropout_p is {}; a probability must be from 0 to 1.", op, p);
      const bool causal = c.b("is_causal"_attr);
      const int64_t window = c.i("window"_attr);
      if (causal && mask.defined() && mask.ndim() >= 2 && mask.size(-2) != 1)
        fail_value(
            "{}: is_causal and an attn_mask {} with a row for each query were both given. Add the causal mask to "
            "attn_mask, or leave one out.",
            op, mask.shape());
      if (window < 0 || (window && !causal))
        fail_value("{}: window is {} and is_causal {}; a window is a number of keys up to the query's own. Give "
                   "is_causal with it, or leave it 0.",
                   op, window, causal);
      double scale = c.has("scale"_attr) ? c.f("scale"_attr)
                                         : 1 / std::sqrt(static_cast<double>(std::max<int64_t>(q.size(-1), 1)));

      // Leading axes broadcast, except the heads of grouped queries.
      Dims lead_q = leading(q.shape()), lead_k = leading(k.shape()), lead_v = leading(v.shape());
      int64_t share = 1;
      if (c.b("enable_gqa"_attr)) {
        if (n < 3 || k.ndim() != n || v.ndim() != n || lead_k.back() == 0 || lead_k.back() != lead_v.back() ||
            lead_q.back() % lead_k.back())
          fail_value(
              "{}: with enable_gqa key {} and value {} must have the same number of heads, which divides query's {}.",
              op, k.shape(), v.shape(), q.shape());
        share = lead_q.back() / lead_k.back();
        lead_k.back() *= share, lead_v.back() *= share;
      }
      Dims lead = broadcast_shapes(broadcast_shapes(lead_q, lead_k, op), lead_v, op);
      auto brought = [&](const Tensor& t, int64_t divisor) {
        Dims to = lead;
        if (divisor > 1) to.back() /= divisor;
        to.push_back(t.size(-2));
        to.push_back(t.size(-1));
        return in_four(t.shape() == to ? t : expand(t, to));
      };
      q = brought(q, 1), k = brought(k, share), v = brought(v, share);
      Dims out = lead;
      out.push_back(q.size(-2));
      out.push_back(v.size(-1));
      if (mask.defined()) {
        if (mask.dtype() != boolean && !is_floating(mask.dtype()))
          fail_type("{}: attn_mask is {}; it must be bool or floating point. Compare first, e.g. mask != 0.", op,
                    name(mask.dtype()));
        Dims scores = lead;
        scores.push_back(q.size(-2));
        scores.push_back(k.size(-2));
        if (mask.ndim() > scores.size() || broadcast_shapes(mask.shape(), scores, op) != scores)
          fail_value("{}: attn_mask {} does not broadcast to the scores {}.", op, mask.shape(), scores);
        // Axes that are missing or 1 stay 1; of several leading axes merged into one all or none must be there.
        Dims s = mask.shape();
        while (s.size() < std::max(scores.size(), 4)) s.insert(0, 1);
        if (s.size() > 4) {
          bool whole = true, ones = true;
          for (int a = 0; a < s.size() - 3; ++a) whole &= s[a] == scores[a], ones &= s[a] == 1;
          if (!whole && !ones)
            for (int a = 0; a < s.size() - 3; ++a) s[a] = scores[a];
          mask = mask.ndim() == s.size() ? expand(mask, s)
                                         : expand(reshape(mask,
                                                          [&] {
                                                            Dims m = mask.shape();
                                                            while (m.size() < s.size()) m.insert(0, 1);
                                                            return m;
                                                          }()),
                                                  s);
          mask = in_four(mask);
        } else if (mask.shape() != s) {
          mask = reshape(mask, s);
        }
      }
      if (documents.defined()) {
        if (is_floating(documents.dtype()) || documents.dtype() == boolean)
          fail_type("{}: document_ids are {}; they must be integers.", op, name(documents.dtype()));
        if (documents.ndim() != 2 || documents.size(1) != q.size(2) || documents.size(1) != k.size(2) ||
            (documents.size(0) != 1 && documents.size(0) != q.size(0)))
          fail_value(
              "{}: document_ids are {}, query {} and key {}; they must be [batch or 1, length] of a sequence that "
              "queries and keys have in common.",
              op, documents.shape(), q.shape(), k.shape());
        if (documents.dtype() != int64) documents = cast(documents, int64);
      }
      const bool scores = mask.defined() && grad_enabled() && mask.requires_grad();
      if (scores && (causal || documents.defined()))
        fail_value("{}: attn_mask requires grad, and is_causal or document_ids were given, too. Add what they hide to "
                   "attn_mask.",
                   op);
      const SequenceCall sequence{
          q, k, v, causal, window, grad_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad())};
      const auto way =
          !scores && sequence_is_split(sequence) ? choose_sequence_attention(sequence, op) : SequenceAttention::kRing;
      if (way == SequenceAttention::kHeads) q = instead_of_sequence(q, sequence, 1, op);
      if (way != SequenceAttention::kRing) {
        const int axis = way == SequenceAttention::kHeads ? 1 : -1;
        k = instead_of_sequence(k, sequence, axis, op), v = instead_of_sequence(v, sequence, axis, op);
      }
      Tensor y;
      if (scores) {
        auto repeated = [&](const Tensor& t) {
          if (share == 1) return t;
          Tensor r = expand(unsqueeze(t, 2), {t.shape()[0], t.shape()[1], share, t.shape()[2], t.shape()[3]});
          return reshape(r, {t.shape()[0], t.shape()[1] * share, t.shape()[2], t.shape()[3]});
        };
        y = attention_by_scores(c, q, repeated(k), repeated(v),
                                mask.dtype() == q.dtype() ? mask : cast(mask, q.dtype()), scale);
      } else if (p > 0) {
        y = attention_dropout(q, k, v, mask, documents, causal, scale, p, window)[0];
      } else {
        y = attention_flash(q, k, v, mask, documents, causal, scale, window)[0];
      }
      if (way == SequenceAttention::kHeads) y = back_to_sequence(y, sequence, op);
      c.out.push_back(y.shape() == out ? y : reshape(y, out));
    });

HOLON_OP(
    attention_flash,
    "attention_flash(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor? documents, bool is_causal, "
    "float scale, int window=0) -> (Tensor, Tensor)")
    .doc("Attention over [b, h, t, d], and the logarithms of the rows' sums.")
    .flops([](const CallShapes& c) { return attention_flops(c, 0, 1, 1); })
    .hidden()
    .infer(attention_infer)
    .layout(Layout::kLikeInput)  // heads that were cut out of rows go back there without a copy
    .rule(attention_rule)
    .communicates([](const KernelCall& c) { return sequence_is_split(c, 0, 1); })
    .kernel([](KernelCall& c) { attention_kernel(c, options_of(c, 0, 1, 3)); })
    .saves({0, 1, 2, 3, 4}, {0, 1})
    .grad([](Grad& g) {
      if (!g.has_dy()) return;
      if (grad_enabled())
        return grad_by_ops(
            g, {.is_causal = g.b("is_causal"_attr), .window = g.i("window"_attr), .scale = g.f("scale"_attr)});
      auto d = attention_backward(g.dy(), g.x(0), g.x(1), g.x(2), g.y(0), g.y(1), g.x(3), g.x(4), g.b("is_causal"_attr),
                                  g.f("scale"_attr), g.i("window"_attr));
      for (size_t i : {0, 1, 2})
        if (g.needs(i)) g.dx(i, d[i]);
    });
HOLON_OP(attention_backward,
         "attention_backward(Tensor dout, Tensor query, Tensor key, Tensor value, Tensor y, Tensor lse, Tensor? "
         "attn_mask, Tensor? documents, bool is_causal, float scale, int window=0) -> (Tensor, Tensor, Tensor)")
    .doc("Gradients of attention_flash.")
    .flops([](const CallShapes& c) { return attention_flops(c, 1, 3, 2); })
    .hidden()
    .infer(attention_backward_infer)
    .layout(Layout::kLikeInput)
    .rule(attention_backward_rule)
    .linear_in({0})
    .communicates([](const KernelCall& c) { return sequence_is_split(c, 1, 2); })
    .kernel([](KernelCall& c) { attention_backward_kernel(c, options_of(c, 1, 2, 6)); });

HOLON_OP(
    attention_dropout,
    "attention_dropout(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor? documents, bool is_causal, "
    "float scale, float dropout_p, int window=0, *, int? seed=None, int? counter=None) -> (Tensor, Tensor)")
    .doc("attention_flash with probabilities dropped by the given draw, which the backward pass repeats.")
    .flops([](const CallShapes& c) { return attention_flops(c, 0, 1, 1); })
    .hidden()
    .random()
    .infer(attention_infer)
    .layout(Layout::kLikeInput)  // heads that were cut out of rows go back there without a copy
    .rule(attention_rule)
    .communicates([](const KernelCall& c) { return sequence_is_split(c, 0, 1); })
    .kernel([](KernelCall& c) { attention_kernel(c, with_dropout(c, options_of(c, 0, 1, 3))); })
    .saves({0, 1, 2, 3, 4}, {0, 1})
    .grad([](Grad& g) {
      if (!g.has_dy()) return;
      if (grad_enabled())
        return grad_by_ops(g,
                           {.is_causal = g.b("is_causal"_attr),
                            .window = g.i("window"_attr),
                            .scale = g.f("scale"_attr),
                            .dropout_p = g.f("dropout_p"_attr),
                            .seed = g.i("seed"_attr),
                            .counter = g.i("counter"_attr)});
      auto d = attention_dropout_backward(g.dy(), g.x(0), g.x(1), g.x(2), g.y(0), g.y(1), g.x(3), g.x(4),
                                          g.b("is_causal"_attr), g.f("scale"_attr), g.f("dropout_p"_attr),
                                          g.i("seed"_attr), g.i("counter"_attr), g.i("window"_attr));
      for (size_t i : {0, 1, 2})
        if (g.needs(i)) g.dx(i, d[i]);
    });
HOLON_OP(
    attention_dropout_backward,
    "attention_dropout_backward(Tensor dout, Tensor query, Tensor key, Tensor value, Tensor y, Tensor lse, Tensor? "
    "attn_mask, Tensor? documents, bool is_causal, float scale, float dropout_p, int seed, int counter, int window=0) "
    "-> (Tensor, Tensor, Tensor)")
    .doc("Gradients of attention_dropout.")
    .flops([](const CallShapes& c) { return attention_flops(c, 1, 3, 2); })
    .hidden()
    .infer(attention_backward_infer)
    .layout(Layout::kLikeInput)
    .rule(attention_backward_rule)
    .linear_in({0})
    .communicates([](const KernelCall& c) { return sequence_is_split(c, 1, 2); })
    .kernel([](KernelCall& c) { attention_backward_kernel(c, with_dropout(c, options_of(c, 1, 2, 6))); });

}  // namespace holon::ops
