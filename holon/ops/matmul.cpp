// Products. One rule in factors gives all of S(0)xB, BxS(1), S(1)xS(0)->P and the ones that let a partial sum through.
#include "holon/ops/matmul.h"

#include "holon/base/context.h"
#include "holon/dispatch/dispatch.h"
#include "holon/internal_ops/matmul.h"
#include "holon/kernels/gemm.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/flops.h"
#include "holon/ops/resize.h"
#include "holon/ops/shape.h"
#include "holon/registry/op_def.h"

namespace holon::ops {
namespace {

void matmul_grad(Grad& g) {
  auto fold = [](Tensor d, const Dims& shape) { return d.shape() == shape ? d : sum_to_size(d, shape); };
  if (g.needs(0)) g.dx(0, fold(matmul(g.dy(), transpose(g.x(1), -2, -1)), g.in_shape(0)));
  if (g.needs(1)) g.dx(1, fold(matmul(transpose(g.x(0), -2, -1), g.dy()), g.in_shape(1)));
}

// Whether a product takes the gradient of a bias along (linear_gradients). On the CPU it is summed apart: eagerly it
// keeps its bits, and graphs put both together for the dtypes that gain by it.
bool sums_with_product(const Tensor& dy) {
  return dy.is_local() ? !dy.device().is_host()
                       : dy.placement().device_type() != DeviceType::kCpu && !dy.placement().simulated();
}

bool adds_bias_last(std::span<const Tensor> inputs) {
  if (!Context::current().layout_free() || inputs.size() < 3 || !inputs[2].defined()) return false;
  auto splits_last = [](const Tensor& t) {
    if (!t.is_global()) return false;
    for (int a = 0; a < t.nd_sbp().size(); ++a)
      if (t.nd_sbp()[a].is_split(t.ndim() - 1)) return true;
    return false;
  };
  return splits_last(inputs[0]) || splits_last(inputs[1]);
}

}  // namespace

HOLON_OP(matmul, "matmul(Tensor x, Tensor w) -> Tensor")
    .doc("Matrix product of x [..., m, k] and w [..., k, n]; leading axes broadcast; a vector is a row or a "
         "column.",
         "matmul(ones(2, 3), ones(3, 4))")
    .autocast(Autocast::kLower)
    .float8({0, 1})
    .flops(product_flops)
    .fuses(Fuses::kMatrices)
    .writes_strides()
    .promotes()
    .infer([](Infer& c) {
      const Dims &x = c.shape(0), &w = c.shape(1);
      HOLON_CHECK(x.size() >= 2 && w.size() >= 2, "matmul's kernel multiplies matrices: x is {}, w is {}", x, w);
      if (x[x.size() - 1] != w[w.size() - 2])
        fail_value("matmul: inner sizes differ: x is {}, w is {} ({}). Transpose one of them first.", x, w,
                   rank_text());
      Dims out;
      if (x.size() == 2 && w.size() == 2) {
        out = {x[0], w[1]};
      } else {
        Dims bx = x, bw = w;
        bx.resize(x.size() - 2);
        bw.resize(w.size() - 2);
        out = broadcast_shapes(bx, bw, "matmul");
        out.push_back(x[x.size() - 2]);
        out.push_back(w.back());
      }
      c.out(out, c.dtype_of(0));
    })
    .rule("... m k, ... k n -> ... m n")
    .linear_in({0, 1})
    .sums_in_tree()
    .kernel([](KernelCall& c) { kernels::matmul(c.in(0), c.in(1), c.out()); })
    .kernel_that_adds([](KernelCall& c) { kernels::matmul(c.in(0), c.in(1), c.out(), 1, 1); })
    .saves({0, 1})
    .grad(matmul_grad)
    .body_if([](std::span<const Tensor> inputs) { return inputs[0].ndim() < 2 || inputs[1].ndim() < 2; },
             [](BodyCall& c) {
               const Tensor &x = c.in(0), &w = c.in(1);
               if (x.ndim() == 0 || w.ndim() == 0)
                 fail_value("matmul: both tensors need an axis: x is {}, w is {}. Multiply by a number with *.",
                            x.shape(), w.shape());
               Tensor y = matmul(x.ndim() == 1 ? unsqueeze(x, 0) : x, w.ndim() == 1 ? unsqueeze(w, 1) : w);
               Dims s = y.shape();
               if (w.ndim() == 1) s.erase(s.size() - 1);
               if (x.ndim() == 1) s.erase(s.size() - 1 - (w.ndim() != 1));
               c.out.push_back(reshape(y, s));
             });

HOLON_OP(
    matmul_with,
    "matmul_with(Tensor x, Tensor other, *, bool transpose_a=False, bool transpose_b=False, float alpha=1.0) -> Tensor")
    .doc("alpha times the product of x and other, each with its last two axes exchanged if transpose_a or transpose_b "
         "is set.",
         "matmul(ones(2, 3), ones(4, 3), transpose_b=True, alpha=0.5)")
    .overload_of("matmul")
    .python_only()
    .body([](BodyCall& c) {
      auto turned = [&](int i, bool turn, const char* option) {
        if (turn && c.in(i).ndim() < 2)
          fail_value("matmul: {} exchanges the last two axes, but the tensor is {}. Leave it out.", option,
                     c.in(i).shape());
        return turn ? transpose(c.in(i), -2, -1) : c.in(i);
      };
      Tensor y =
          matmul(turned(0, c.b("transpose_a"_attr), "transpose_a"), turned(1, c.b("transpose_b"_attr), "transpose_b"));
      c.out.push_back(c.f("alpha"_attr) == 1 ? y : mul(y, c.f("alpha"_attr)));
    });

HOLON_OP(linear, "linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor")
    .doc("x [..., k] times the transpose of weight [n, k], plus bias [n].", "linear(ones(2, 3), ones(4, 3))")
    .autocast(Autocast::kLower)
    .float8({0, 1})
    .flops(product_flops)
    .function_only()
    .infer([](Infer& c) {
      c.require(c.ndim(0) >= 1 && c.ndim(1) == 2, "x needs an axis and weight two", "weight is [out, in].");
      c.require(c.shape(0).back() == c.shape(1)[1], "inner sizes differ",
                "weight is [out, in]; its in is the last size of x.");
      if (c.present(2))
        c.require(c.ndim(2) == 1 && c.shape(2)[0] == c.shape(1)[0], "bias is not [out]",
                  "Give one value per row of weight.");
      c.require_dtype(c.dtype_of(0) == c.dtype_of(1) && (!c.present(2) || c.dtype_of(2) == c.dtype_of(0)),
                      "the dtypes differ", "Convert them by to().");
      Dims out = c.shape(0);
      out.back() = c.shape(1)[0];
      c.out(out, c.dtype_of(0));
    })
    // A contraction that is split gives partial sums; the bias, whole on every rank, is then added on the first one
    // only.
    .rule("... k, n k, n -> ... n")
    .linear_in({0, 1})
    .sums_in_tree()
    .kernel([](KernelCall& c) {
      const Array* bias = c.present(2) && c.counts_once() ? &c.in(2) : nullptr;
      kernels::linear(c.in(0), c.in(1), bias, c.out());
    })
    .saves({0, 1})
    // A partial sum has no place for the bias in the order of the whole.
    .body_if(adds_bias_last, [](BodyCall& c) { c.out.push_back(add(linear(c.in(0), c.in(1)), c.in(2))); })
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, matmul(g.dy(), g.x(1)));
      const bool bias = g.n_in() > 2 && g.needs(2);
      if (bias && g.needs(1) && sums_with_product(g.dy())) {
        auto [weight_gradient, bias_gradient] = linear_gradients(g.dy(), g.x(0));
        g.dx(1, weight_gradient), g.dx(2, bias_gradient);
        return;
      }
      if (g.needs(1)) g.dx(1, linear_weight_grad(g.dy(), g.x(0)));
      if (bias) g.dx(2, sum_to_size(g.dy(), g.in_shape(2)));
    });

HOLON_OP(linear_weight_grad, "linear_weight_grad(Tensor dy, Tensor x) -> Tensor")
    .doc("dy [..., n] and x [..., k] contracted over all leading axes: [n, k].")
    .flops(weight_grad_flops)
    .hidden()
    .infer([](Infer& c) {
      c.out({c.shape(0).back(), c.shape(1).back()}, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      int n = r.in[0].shape.size();
      for (int a = 0; a < n - 1; ++a) {
        int f = r.rule.factor(true);
        r.rule.in(0, a, f);
        r.rule.in(1, a, f);
      }
      int fn = r.rule.factor(), fk = r.rule.factor();
      r.rule.in(0, n - 1, fn);
      r.rule.out(0, 0, fn);
      r.rule.in(1, n - 1, fk);
      r.rule.out(0, 1, fk);
    })
    .linear_in({0, 1})
    .sums_in_tree()
    .kernel([](KernelCall& c) { kernels::linear_weight_grad(c.in(0), c.in(1), c.out()); })
    .kernel_that_adds([](KernelCall& c) { kernels::linear_weight_grad(c.in(0), c.in(1), c.out(), nullptr, 1); })
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, linear(g.x(1), g.dy()));
      if (g.needs(1)) g.dx(1, matmul(g.x(0), g.dy()));
    });

HOLON_OP(linear_gradients, "linear_gradients(Tensor dy, Tensor x) -> (Tensor, Tensor)")
    .doc("Gradients of linear in weight and bias: dy [..., n] and x [..., k] contracted over all leading axes, and the "
         "sum of dy over them.")
    .flops(weight_grad_flops)
    .hidden()
    .infer([](Infer& c) {
      c.require_floating(0);
      Dims a = c.shape(0), b = c.shape(1);
      c.require(a.size() >= 1 && a.size() == b.size(), "the numbers of axes differ", "dy is [..., n], x is [..., k].");
      const int64_t n = a.back(), k = b.back();
      a.back() = b.back() = 0;
      c.require(a == b, "the leading axes differ", "dy is [..., n], x is [..., k].");
      c.require_dtype(c.dtype_of(0) == c.dtype_of(1), "the dtypes differ", "Convert them by to().");
      c.out({n, k}, c.dtype_of(0));
      c.out({n}, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      const int n = r.in[0].shape.size();
      for (int a = 0; a < n - 1; ++a) {
        int f = r.rule.factor(true);
        r.rule.in(0, a, f);
        r.rule.in(1, a, f);
      }
      int fn = r.rule.factor();
      r.rule.in(0, n - 1, fn);
      r.rule.out(0, 0, fn);
      r.rule.out(1, 0, fn);
      // The bias has nothing of x.
      for (bool split : {true, false}) {
        Signature s;
        s.in.push_back(sbp::broadcast());
        s.in.push_back(split ? sbp::split(n - 1) : sbp::partial_sum());
        s.out.push_back(split ? sbp::split(1) : sbp::partial_sum());
        s.out.push_back(sbp::broadcast());
        r.rule.add(s);
      }
    })
    .linear_in({0})
    .kernel([](KernelCall& c) { kernels::linear_weight_grad(c.in(0), c.in(1), c.out(0), &c.out(1)); })
    .kernel_that_adds([](KernelCall& c) { kernels::linear_weight_grad(c.in(0), c.in(1), c.out(0), &c.out(1), 1); })
    .saves({0, 1})
    .grad([](Grad& g) {
      const bool weight = g.has_dy(0), bias = g.has_dy(1);
      if (g.needs(0) && weight) g.dx(0, bias ? linear(g.x(1), g.dy(0), g.dy(1)) : linear(g.x(1), g.dy(0)));
      if (g.needs(0) && !weight && bias) g.dx(0, expand(g.dy(1), g.in_shape(0)));
      if (g.needs(1) && weight) g.dx(1, matmul(g.x(0), g.dy(0)));
    });

}  // namespace holon::ops

namespace holon {
Tensor Tensor::matmul(const Tensor& o) const { return holon::matmul(*this, o); }
}  // namespace holon
