// Sparse mixtures of experts: each row is computed by one expert. Rows come sorted by expert, so that an expert's are
// one matrix; how many there are is known by the values alone. Experts split without communication, and their hidden
// units too: both are contracted, so the result is a partial sum.
#include <vector>

#include "holon/base/index.h"
#include "holon/internal_ops/experts.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/gemm.h"
#include "holon/kernels/on_device.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/flops.h"
#include "holon/ops/rules.h"
#include "holon/registry/op_def.h"

namespace holon::ops {
namespace {

// The inputs x, gate, up, down and counts from `first` on.
void check_experts(Infer& c, size_t first) {
  c.require_floating(first);
  const Dims &x = c.shape(first), &gate = c.shape(first + 1), &down = c.shape(first + 3), &counts = c.shape(first + 4);
  c.require(x.size() == 3 && gate.size() == 3 && down.size() == 3 && counts.size() == 2,
            "x, the weights and counts have other axes than 3, 3 and 2",
            "x is [groups, rows, width], gate and up are [experts, hidden, width], down is [experts, width, hidden].");
  c.require(c.shape(first + 2) == gate && gate[2] == x[2] && down[0] == gate[0] && down[1] == x[2] &&
                down[2] == gate[1],
            "the sizes of x and the weights do not fit each other",
            "gate and up are [experts, hidden, width], down is [experts, width, hidden].");
  c.require(counts[0] == x[0] && counts[1] == gate[0], "counts is not [groups, experts]", "Count each group's rows.");
  c.require_dtype(c.dtype_of(first + 4) == int64, "counts are not int64", "Convert them by to(int64).");
  for (size_t i = 1; i < 4; ++i)
    c.require_dtype(c.dtype_of(first + i) == c.dtype_of(first), "the dtypes of x and the weights differ",
                    "Convert them by to().");
}

// Rows [begin, end) of group `group` that expert `expert` of the weights has. All are counted on this rank.
struct Span {
  int64_t group, expert, begin, end;
};

// Of the experts first, first + 1, ... whose weights are here. Errors (ValueError): counts that are negative, or more
// than there are rows.
std::vector<Span> spans_of(const Array& counts, int64_t first, int64_t here, int64_t rows) {
  const Array host = kernels::contiguous(kernels::on_device(counts, Device()));
  const int64_t* n = host.data<int64_t>();
  std::vector<Span> spans;
  for (int64_t g = 0; g < counts.shape[0]; ++g) {
    int64_t at = 0;
    for (int64_t e = 0; e < counts.shape[1]; ++e) {
      const int64_t count = *n++;
      if (count < 0 || count > rows - at)
        fail_value("expert_swiglu: expert {} has {} rows of group {}, in which {} are left. Counts add up to the "
                   "number of rows at most.",
                   e, count, g, rows - at);
      if (count > 0 && e >= first && e < first + here) spans.push_back({g, e - first, at, at + count});
      at += count;
    }
  }
  return spans;
}

// Rows of a group of x [groups, rows, width], and one expert's matrix of a weight: views.
Array rows_of(const Array& x, const Span& s) {
  return x.view({s.end - s.begin, x.shape[2]}, {x.strides[1], x.strides[2]},
                s.group * x.strides[0] + s.begin * x.strides[1]);
}
Array matrix_of(const Array& w, const Span& s) {
  return w.view({w.shape[1], w.shape[2]}, {w.strides[1], w.strides[2]}, s.expert * w.strides[0]);
}

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

double swiglu_flops(const CallShapes& c, size_t x, double products) {
  return 2 * products * elements(c.in(x)) * static_cast<double>(c.in(x + 1)[1]);
}

}  // namespace

HOLON_OP(expert_swiglu, "expert_swiglu(Tensor x, Tensor gate, Tensor up, Tensor down, Tensor counts) -> Tensor")
    .doc("down (silu(gate x) * up x) for rows x [groups, rows, width] that are sorted by expert in each group, of whom "
         "expert e has counts [groups, experts] many; gate and up [experts, hidden, width], down [experts, width, "
         "hidden]. Rows behind the counted ones give 0.")
    .hidden()
    .autocast(Autocast::kLower)
    .flops([](const CallShapes& c) { return swiglu_flops(c, 0, 3); })
    .infer([](Infer& c) {
      check_experts(c, 0);
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      const int group = r.rule.factor(), expert = r.rule.factor(true), hidden = r.rule.factor(true);
      for (size_t i : {0, 4}) r.rule.in(i, 0, group);
      r.rule.out(0, 0, group);
      for (size_t i : {1, 2, 3}) r.rule.in(i, 0, expert);
      r.rule.in(1, 1, hidden), r.rule.in(2, 1, hidden), r.rule.in(3, 2, hidden);
    })
    .linear_in({2, 3})
    .kernel([](KernelCall& c) {
      const Array &x = c.in(0), &gate = c.in(1);
      kernels::fill(c.out(), 0);
      for (const Span& s : spans_of(c.in(4), c.offset_in(1)[0], gate.shape[0], x.shape[1])) {
        const Hidden h(rows_of(x, s), matrix_of(gate, s), matrix_of(c.in(2), s));
        Array y = rows_of(c.out(), s);
        kernels::linear(h.hidden, matrix_of(c.in(3), s), nullptr, y);
      }
    })
    .saves({0, 1, 2, 3, 4})
    .grad([](Grad& g) {
      auto d = expert_swiglu_backward(g.dy(), g.x(0), g.x(1), g.x(2), g.x(3), g.x(4));
      for (size_t i = 0; i < 4; ++i)
        if (g.needs(i)) g.dx(i, d[i]);
    });

HOLON_OP(expert_swiglu_backward,
         "expert_swiglu_backward(Tensor dy, Tensor x, Tensor gate, Tensor up, Tensor down, Tensor counts) -> (Tensor, "
         "Tensor, Tensor, Tensor)")
    .doc("Gradients of expert_swiglu in x, gate, up and down.")
    .hidden()
    .flops([](const CallShapes& c) { return swiglu_flops(c, 1, 8); })
    .infer([](Infer& c) {
      check_experts(c, 1);
      c.require(c.shape(0) == c.shape(1), "dy and x have different shapes", "dy is [groups, rows, width], as x is.");
      c.require_dtype(c.dtype_of(0) == c.dtype_of(1), "the dtypes of dy and x differ", "Convert dy by to().");
      for (size_t i : {1, 2, 3, 4}) c.out(c.shape(i), c.dtype_of(i));
    })
    .rule([](RuleCall& r) {
      const int group = r.rule.factor(true), expert = r.rule.factor(true), hidden = r.rule.factor(true);
      for (size_t i : {0, 1, 5}) r.rule.in(i, 0, group);
      r.rule.out(0, 0, group);
      for (size_t i : {1, 2, 3}) r.rule.in(i + 1, 0, expert), r.rule.out(i, 0, expert);
      for (size_t i : {1, 2}) r.rule.in(i + 1, 1, hidden), r.rule.out(i, 1, hidden);
      r.rule.in(4, 2, hidden), r.rule.out(3, 2, hidden);
      // Linear in up and in down, on which their own gradients do not depend.
      pass_partial(r, {3}, {0, 1, 3});
      pass_partial(r, {4}, {0, 1, 2});
    })
    .linear_in({0})
    .kernel([](KernelCall& c) {
      const Array &dy = c.in(0), &x = c.in(1), &gate = c.in(2), &up = c.in(3), &down = c.in(4);
      for (size_t i = 0; i < 4; ++i) kernels::fill(c.out(i), 0);
      for (const Span& s : spans_of(c.in(5), c.offset_in(2)[0], gate.shape[0], x.shape[1])) {
        const Array rows = rows_of(x, s), d = rows_of(dy, s);
        const Array w_gate = matrix_of(gate, s), w_up = matrix_of(up, s);
        const Hidden h(rows, w_gate, w_up);
        Array dhidden, dact, dgate, dup;
        for (Array* a : {&dhidden, &dact, &dgate, &dup}) *a = Array::empty(h.gate.shape, x.dtype, x.device);
        kernels::matmul(d, matrix_of(down, s), dhidden);
        kernels::binary(BinaryOp::Mul, dhidden, h.up, dact);
        kernels::binary(BinaryOp::SiluBackward, dact, h.gate, dgate);
        kernels::binary(BinaryOp::Mul, dhidden, h.act, dup);
        Array dx = rows_of(c.out(0), s), dw_gate = matrix_of(c.out(1), s), dw_up = matrix_of(c.out(2), s),
              dw_down = matrix_of(c.out(3), s);
        kernels::matmul(dgate, w_gate, dx);
        kernels::matmul(dup, w_up, dx, 1, 1);
        kernels::linear_weight_grad(dgate, rows, dw_gate, nullptr, 1);
        kernels::linear_weight_grad(dup, rows, dw_up, nullptr, 1);
        kernels::linear_weight_grad(d, h.hidden, dw_down, nullptr, 1);
      }
    });

}  // namespace holon::ops
