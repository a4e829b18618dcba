// Sparse mixtures of experts: each row is computed by the few experts that its router has chosen; how many rows an
// expert has is known by the values alone. Experts split without communication where every rank has all rows, and their
// hidden units too: both are contracted, so the result is a partial sum. Where rows and experts are split along the
// same axis of ranks, the kernels send rows to their experts and results back (expert_exchange.h). Backward sends the
// rows again rather than keep what each rank has received.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/internal_ops/experts.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/expert_rows.h"
#include "holon/kernels/gemm.h"
#include "holon/kernels/index.h"
#include "holon/kernels/quantized.h"
#include "holon/kernels/reduce.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/expert_exchange.h"
#include "holon/ops/flops.h"
#include "holon/ops/rules.h"
#include "holon/registry/op_def.h"

namespace holon::ops {
namespace {

// The inputs x, experts, weights, gate, up and down from `first` on.
void check_experts(Infer& c, size_t first) {
  c.require_floating(first);
  const Dims &x = c.shape(first), &experts = c.shape(first + 1), &gate = c.shape(first + 3), &down = c.shape(first + 5);
  c.require(x.size() >= 2 && gate.size() == 3 && down.size() == 3,
            "x has fewer than 2 axes, or the weights of the experts not 3",
            "x is [..., width], gate and up are [experts, hidden, width], down is [experts, width, hidden].");
  const int64_t width = x.back();
  c.require(c.shape(first + 4) == gate && gate[2] == width && down[0] == gate[0] && down[1] == width &&
                down[2] == gate[1],
            "the sizes of x and the weights of the experts do not fit each other",
            "gate and up are [experts, hidden, width], down is [experts, width, hidden].");
  Dims rows = experts;
  if (rows.size()) rows.back() = width;
  c.require(rows == x && experts.back() >= 1 && c.shape(first + 2) == experts,
            "experts and weights are not [..., k] for the rows of x", "Each row has k experts and their weights.");
  c.require_dtype(c.dtype_of(first + 1) == int64, "experts are not int64", "Convert them by to(int64).");
  for (size_t i = 2; i < 6; ++i)
    c.require_dtype(c.dtype_of(first + i) == c.dtype_of(first), "the dtypes of x and the weights differ",
                    "Convert them by to().");
}

// Rows and experts along one axis of ranks: rows are exchanged. In `with_rows` axis a of each operand is split, in the
// others axis 0. reads: a mask of the inputs whose rows are sent. Few of them go to a rank, but their results come
// back.
void add_exchange(RuleCall& r, int axis, std::initializer_list<int> in_with_rows,
                  std::initializer_list<int> out_with_rows, uint32_t reads) {
  Signature s;
  s.communicates = true;
  for (size_t i = 0; i < r.in.size(); ++i) s.in.push_back(sbp::split(0));
  for (size_t o = 0; o < r.out.size(); ++o) s.out.push_back(sbp::split(0));
  for (int i : in_with_rows) at_index(s.in, i) = sbp::split(axis);
  s.reads = reads;
  for (int o : out_with_rows) at_index(s.out, o) = sbp::split(axis);
  r.rule.add(s);
}

// One expert's part of a weight, and its terms among some: views.
Array matrix_of(const Array& w, int64_t expert) {
  Dims shape = w.shape, strides = w.strides;
  shape.erase(0), strides.erase(0);
  return w.view(shape, strides, expert * w.strides[0]);
}
Array terms_of(const Array& a, const ExpertExchange::Span& s) {
  Dims shape = a.shape;
  shape[0] = s.end - s.begin;
  return a.view(shape, a.strides, s.begin * a.strides[0]);
}
// The rows of an expert's terms.
Array rows_of(const Array& rows, const ExpertExchange& exchange, const ExpertExchange::Span& s) {
  Array out = Array::empty({s.end - s.begin, rows.shape[1]}, rows.dtype, rows.device);
  kernels::embedding(rows, terms_of(exchange.row_of_term(), s), 0, rows.shape[0], out);
  return out;
}
// [n] as [n, 1], for rows of [n, width].
Array column(const Array& a) { return a.view({a.shape[0], 1}, {a.strides[0], 0}); }

// gate and up of rows [n, hidden], and silu(gate) * up.
struct Hidden {
  Array gate, act, up, hidden;
  Hidden(const Array& x, const Array& gate_weight, const Array& up_weight) {
    for (Array* a : {&gate, &act, &up, &hidden})
      *a = Array::empty({x.shape[0], gate_weight.shape[0]}, x.dtype, x.device);
    kernels::linear(x, gate_weight, nullptr, gate);
    kernels::linear(x, up_weight, nullptr, up);
    kernels::unary(UnaryOp::Silu, gate, act);
    kernels::binary(BinaryOp::Mul, act, up, hidden);
  }
};

// out = for each row of x the weighted sum of what its experts give: expert_rows(rows [n, width], expert, y [n,
// width]).
template <class F>
void add_up_experts(KernelCall& c, F&& expert_rows) {
  const ExpertExchange exchange(c, {.x = 0, .experts = 1, .weights = 2, .gate = 3});
  const Array x = exchange.dispatch(c.in(0));
  const Array terms = Array::empty({exchange.terms(), x.shape[1]}, x.dtype, x.device);
  for (const auto& s : exchange.spans()) {
    Array y = terms_of(terms, s);
    expert_rows(rows_of(x, exchange, s), s.expert, y);
  }
  Array y = exchange.before_combine(c.out());
  kernels::sum_rows(terms, exchange.first_terms(), exchange.terms_of_rows(), exchange.weight_of_term(), y);
  exchange.combine(y, c.out());
}

// Each row has k experts, wherever they are. Output 0 has the rank's own rows.
double swiglu_flops(const CallShapes& c, size_t x, double products) {
  return 2 * products * elements(c.out()) * static_cast<double>(c.in(x + 1).back()) *
      static_cast<double>(c.in(x + 3)[1]);
}

}  // namespace

HOLON_OP(expert_capacity, "expert_capacity(Tensor experts, int n_experts, int capacity) -> Tensor")
    .doc("The choices experts [..., tokens, k] (int64; -1: none) in which no expert has more than capacity tokens of a "
         "row [tokens, k]: others are -1. First choices come before second ones, then earlier tokens before later "
         "ones.")
    .hidden()
    .infer([](Infer& c) {
      c.require(c.ndim(0) >= 2, "experts have fewer than 2 axes", "They are [..., tokens, k].");
      c.require_dtype(c.dtype_of(0) == int64, "experts are not int64", "Convert them by to(int64).");
      c.require(c.i("n_experts"_attr) >= 1 && c.i("capacity"_attr) >= 0, "n_experts is below 1, or capacity below 0",
                "They are numbers of experts, and of tokens for each.");
      c.out(c.shape(0), int64);
    })
    .rule([](RuleCall& r) {
      for (int a = 0; a + 2 < r.in[0].shape.size(); ++a) {
        const int rows = r.rule.factor();
        r.rule.in(0, a, rows), r.rule.out(0, a, rows);
      }
    })
    .on_host()
    .kernel([](KernelCall& c) {
      const Array experts = kernels::contiguous(c.in(0));
      const int64_t n = c.i("n_experts"_attr), capacity = c.i("capacity"_attr);
      const Dims& shape = experts.shape;
      const int64_t k = shape.back(), tokens = shape[shape.size() - 2], row = tokens * k;
      std::vector<int64_t> taken(to_size(n));
      for (int64_t at = 0; at < experts.numel(); at += row) {
        std::fill(taken.begin(), taken.end(), 0);
        for (int64_t j = 0; j < k; ++j)
          for (int64_t i = at + j; i < at + row; i += k) {
            const int64_t e = experts.data<int64_t>()[i];
            if (e < -1 || e >= n)
              fail_value("expert_capacity: a token chooses expert {}; experts are numbered from 0 to {}, and -1 is "
                         "none.",
                         e, n - 1);
            c.out().data<int64_t>()[i] = e >= 0 && at_index(taken, e)++ < capacity ? e : -1;
          }
      }
    });

HOLON_OP(expert_swiglu,
         "expert_swiglu(Tensor x, Tensor experts, Tensor weights, Tensor gate, Tensor up, Tensor down) -> Tensor")
    .doc("The sum of weights[..., i] * down[e] (silu(gate[e] x) * up[e] x) with e = experts[..., i], for each row of x "
         "[..., width]; experts (int64; -1: none) and weights [..., k]; gate and up [experts, hidden, width], down "
         "[experts, width, hidden]. Where ranks split both x and the experts, rows are sent to their experts.")
    .hidden()
    .autocast(Autocast::kLower)
    .flops([](const CallShapes& c) { return swiglu_flops(c, 0, 3); })
    .infer([](Infer& c) {
      check_experts(c, 0);
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      for (int a = 0; a + 1 < r.in[0].shape.size(); ++a) {
        const int rows = r.rule.factor();
        for (size_t i : {0, 1, 2}) r.rule.in(i, a, rows);
        r.rule.out(0, a, rows);
      }
      const int expert = r.rule.factor(true), hidden = r.rule.factor(true);
      for (size_t i : {3, 4, 5}) r.rule.in(i, 0, expert);
      r.rule.in(3, 1, hidden), r.rule.in(4, 1, hidden), r.rule.in(5, 2, hidden);
      for (int a = 0; a + 1 < r.in[0].shape.size(); ++a) add_exchange(r, a, {0, 1, 2}, {0}, 0b1);
    })
    .linear_in({2, 4, 5})
    .communicates([](const KernelCall& c) { return rows_are_exchanged(c, 0, 3); })
    .kernel([](KernelCall& c) {
      add_up_experts(c, [&](const Array& rows, int64_t expert, Array& y) {
        const Hidden h(rows, matrix_of(c.in(3), expert), matrix_of(c.in(4), expert));
        kernels::linear(h.hidden, matrix_of(c.in(5), expert), nullptr, y);
      });
    })
    .saves({0, 1, 2, 3, 4, 5})
    .grad([](Grad& g) {
      auto d = expert_swiglu_backward(g.dy(), g.x(0), g.x(1), g.x(2), g.x(3), g.x(4), g.x(5));
      const size_t inputs[] = {0, 2, 3, 4, 5};
      for (size_t i = 0; i < 5; ++i)
        if (g.needs(inputs[i])) g.dx(inputs[i], d[i]);
    });

HOLON_OP(quantized_expert_swiglu,
         "quantized_expert_swiglu(Tensor x, Tensor experts, Tensor weights, Tensor gate, Tensor up, Tensor down, str "
         "format) -> Tensor")
    .doc("expert_swiglu with weights that quantize_groups made, of the same format and size of groups: gate and up "
         "[experts, hidden, groups, bytes], down [experts, width, groups, bytes]. For inference.")
    .hidden()
    .autocast(Autocast::kLower)
    .flops([](const CallShapes& c) { return swiglu_flops(c, 0, 3); })
    .infer([](Infer& c) {
      c.require_floating(0);
      const Dims &x = c.shape(0), &experts = c.shape(1), &gate = c.shape(3), &down = c.shape(5);
      c.require(x.size() >= 2 && gate.size() == 4 && down.size() == 4, "x or the weights of the experts lack axes",
                "gate and up are [experts, hidden, groups, bytes], down is [experts, width, groups, bytes].");
      for (size_t i : {3, 4, 5})
        c.require_dtype(c.dtype_of(i) == uint8, "a weight is not uint8", "Give what quantize_groups returned.");
      const auto format = kernels::quantized_format(c.text("format"_attr));
      const int64_t width = x.back(), size = gate[2] > 0 ? width / gate[2] : 0;
      const int64_t bytes = kernels::quantized_block_bytes(size, format);
      c.require(kernels::fits_format(size, format) && gate[2] * size == width && gate[3] == bytes &&
                    c.shape(4) == gate && down[0] == gate[0] && down[1] == width && down[2] * size == gate[1] &&
                    down[3] == bytes,
                "the sizes of x and the weights of the experts do not fit each other",
                "gate and up are [experts, hidden, groups, bytes], down is [experts, width, groups, bytes].");
      Dims rows = experts;
      if (rows.size()) rows.back() = width;
      c.require(rows == x && experts.back() >= 1 && c.shape(2) == experts,
                "experts and weights are not [..., k] for the rows of x", "Each row has k experts and their weights.");
      c.require_dtype(c.dtype_of(1) == int64, "experts are not int64", "Convert them by to(int64).");
      c.require_dtype(c.dtype_of(2) == c.dtype_of(0), "the dtypes of x and the weights differ",
                      "Convert them by to().");
      c.out(x, c.dtype_of(0));
    })
    // As expert_swiglu's; hidden units are divided by whole groups of down.
    .rule([](RuleCall& r) {
      for (int a = 0; a + 1 < r.in[0].shape.size(); ++a) {
        const int rows = r.rule.factor();
        for (size_t i : {0, 1, 2}) r.rule.in(i, a, rows);
        r.rule.out(0, a, rows);
      }
      const int expert = r.rule.factor(true), hidden = r.rule.factor(true, r.in[5].shape[2]);
      for (size_t i : {3, 4, 5}) r.rule.in(i, 0, expert);
      r.rule.in(3, 1, hidden), r.rule.in(4, 1, hidden), r.rule.in(5, 2, hidden);
      for (int a = 0; a + 1 < r.in[0].shape.size(); ++a) add_exchange(r, a, {0, 1, 2}, {0}, 0b1);
    })
    .linear_in({2})
    .communicates([](const KernelCall& c) { return rows_are_exchanged(c, 0, 3); })
    .kernel([](KernelCall& c) {
      const auto format = kernels::quantized_format(c.text("format"_attr));
      add_up_experts(c, [&](const Array& rows, int64_t expert, Array& y) {
        const int64_t n = rows.shape[0], hidden = c.in(3).shape[1];
        auto product = [&](const Array& x, size_t weight, Array& out) {
          const Array w = matrix_of(c.in(weight), expert);
          const Array from = kernels::contiguous(x);
          const int64_t groups = w.shape[1], size = groups ? x.shape[1] / groups : 0;
          kernels::quantized_linear(from.view({n, groups, size}, {x.shape[1], size, 1}), w, nullptr, format, out);
        };
        Array gate, act, up;
        for (Array* a : {&gate, &act, &up}) *a = Array::empty({n, hidden}, rows.dtype, rows.device);
        product(rows, 3, gate);
        product(rows, 4, up);
        kernels::unary(UnaryOp::Silu, gate, act);
        kernels::binary(BinaryOp::Mul, act, up, gate);
        product(gate, 5, y);
      });
    });

HOLON_OP(expert_swiglu_backward,
         "expert_swiglu_backward(Tensor dy, Tensor x, Tensor experts, Tensor weights, Tensor gate, Tensor up, Tensor "
         "down) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
    .doc("Gradients of expert_swiglu in x, weights, gate, up and down.")
    .hidden()
    .flops([](const CallShapes& c) { return swiglu_flops(c, 1, 8); })
    .infer([](Infer& c) {
      check_experts(c, 1);
      c.require(c.shape(0) == c.shape(1), "dy and x have different shapes", "dy is [..., width], as x is.");
      c.require_dtype(c.dtype_of(0) == c.dtype_of(1), "the dtypes of dy and x differ", "Convert dy by to().");
      for (size_t i : {1, 3, 4, 5, 6}) c.out(c.shape(i), c.dtype_of(i));
    })
    .rule([](RuleCall& r) {
      for (int a = 0; a + 1 < r.in[1].shape.size(); ++a) {
        const int rows = r.rule.factor(true);
        for (size_t i : {0, 1, 2, 3}) r.rule.in(i, a, rows);
        for (size_t o : {0, 1}) r.rule.out(o, a, rows);
      }
      const int expert = r.rule.factor(true), hidden = r.rule.factor(true);
      for (size_t i : {4, 5, 6}) r.rule.in(i, 0, expert), r.rule.out(i - 2, 0, expert);
      for (size_t i : {4, 5}) r.rule.in(i, 1, hidden), r.rule.out(i - 2, 1, hidden);
      r.rule.in(6, 2, hidden), r.rule.out(4, 2, hidden);
      for (int a = 0; a + 1 < r.in[1].shape.size(); ++a) add_exchange(r, a, {0, 1, 2, 3}, {0, 1}, 0b11);
      // Linear in the weights, in up and in down, on which their own gradients do not depend.
      pass_partial(r, {3}, {0, 2, 3, 4});
      pass_partial(r, {5}, {0, 1, 2, 4});
      pass_partial(r, {6}, {0, 1, 2, 3});
    })
    .linear_in({0})
    .communicates([](const KernelCall& c) { return rows_are_exchanged(c, 1, 4); })
    .kernel([](KernelCall& c) {
      const ExpertExchange exchange(c, {.x = 1, .experts = 2, .weights = 3, .gate = 4});
      const Array x = exchange.dispatch(c.in(1)), dy = exchange.dispatch(c.in(0));
      const Array &gate = c.in(4), &up = c.in(5), &down = c.in(6);
      if (exchange.spans().size() < to_size(gate.shape[0]))
        for (size_t o : {2, 3, 4}) kernels::fill(c.out(o), 0);  // experts without rows
      const Array dterms = Array::empty({exchange.terms(), x.shape[1]}, x.dtype, x.device);
      const Array dweights = Array::empty({exchange.terms()}, x.dtype, x.device);
      for (const auto& s : exchange.spans()) {
        const Array rows = rows_of(x, exchange, s), d = rows_of(dy, exchange, s);
        const Array weights = column(terms_of(exchange.weight_of_term(), s));
        const Array w_gate = matrix_of(gate, s.expert), w_up = matrix_of(up, s.expert);
        const Hidden h(rows, w_gate, w_up);
        Array dhidden, product, dact, dgate, dup;
        for (Array* a : {&dhidden, &product, &dact, &dgate, &dup}) *a = Array::empty(h.gate.shape, x.dtype, x.device);
        kernels::matmul(d, matrix_of(down, s.expert), dhidden);  // without the terms' weights
        kernels::binary(BinaryOp::Mul, dhidden, h.hidden, product);
        Array dweight = terms_of(dweights, s);
        kernels::reduce(kernels::ReduceOp::Sum, product, 1u << 1, dweight);
        kernels::binary(BinaryOp::Mul, dhidden, weights, dhidden);
        kernels::binary(BinaryOp::Mul, dhidden, h.up, dact);
        kernels::binary(BinaryOp::SiluBackward, dact, h.gate, dgate);
        kernels::binary(BinaryOp::Mul, dhidden, h.act, dup);
        Array dx = terms_of(dterms, s), dw_gate = matrix_of(c.out(2), s.expert), dw_up = matrix_of(c.out(3), s.expert),
              dw_down = matrix_of(c.out(4), s.expert);
        kernels::matmul(dgate, w_gate, dx);
        kernels::matmul(dup, w_up, dx, 1, 1);
        kernels::linear_weight_grad(dgate, rows, dw_gate);
        kernels::linear_weight_grad(dup, rows, dw_up);
        kernels::binary(BinaryOp::Mul, h.hidden, weights, product);
        kernels::linear_weight_grad(d, product, dw_down);
      }
      Array dx = exchange.before_combine(c.out(0));
      kernels::sum_rows(dterms, exchange.first_terms(), exchange.terms_of_rows(), {}, dx);
      exchange.combine(dx, c.out(0));
      exchange.combine_terms(dweights, c.out(1));
    });

}  // namespace holon::ops
