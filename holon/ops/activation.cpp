// Activations and their fused gradients. None is linear: a partial sum is added up before. The gradients are ops with
// their own gradients, so that they can be differentiated again.
#include "holon/ops/activation.h"

#include "holon/internal_ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/shape.h"
#include "holon/ops/sort.h"
#include "holon/ops/unary.h"

namespace holon::ops {
namespace {

void floating_infer(Infer& c) {
  c.require_floating(0);
  c.out(c.shape(0), c.dtype_of(0));
}

// Gradients of dy f(x) (or f(y)), where f' is `slope`.
void in_x(Grad& g, const Tensor& slope) {
  if (g.needs(1)) g.dx(1, mul(mul(g.dy(), g.x(0)), slope));
}
Tensor one_minus(const Tensor& x) { return sub(x, 1.0, {.reverse = true}); }
// value where the mask is false
Tensor unless(const Tensor& mask, const Tensor& value) { return masked_fill(value, mask, 0.0); }

// d^2/dx^2 of x sigmoid(a x)
Tensor silu_curvature(const Tensor& x, double a) {
  Tensor s = sigmoid(mul(x, a));
  Tensor bend = mul(mul(x, a), add(mul(s, -2.0), 1.0));
  return mul(mul(mul(s, one_minus(s)), add(bend, 2.0)), a);
}
// d^2/dx^2 of x sigmoid(u(x)), u = b (x + c x^3): 2 u' s (1 - s) + x s (1 - s) (u'' + u'^2 (1 - 2 s))
Tensor gelu_tanh_curvature(const Tensor& x) {
  constexpr double b = 1.5957691216057308, c = 0.044715;
  Tensor square_x = square(x);
  Tensor s = sigmoid(mul(mul(x, add(mul(square_x, c), 1.0)), b));
  Tensor slope = mul(add(mul(square_x, 3 * c), 1.0), b), bend = mul(x, 6 * b * c);
  Tensor inner = add(bend, mul(square(slope), add(mul(s, -2.0), 1.0)));
  return mul(mul(s, one_minus(s)), add(mul(slope, 2.0), mul(x, inner)));
}
// With s = sigmoid(x) and t = tanh(softplus(x)): s (1 - t^2) (2 + x (1 - s) - 2 x t s)
Tensor mish_curvature(const Tensor& x) {
  Tensor s = sigmoid(x), t = tanh(softplus(x));
  Tensor inner = mul(x, sub(one_minus(s), mul(mul(t, s), 2.0)));
  return mul(mul(s, one_minus(square(t))), add(inner, 2.0));
}

}  // namespace

HOLON_UNARY(relu, Relu, kSame).doc("max(x, 0).", "relu(ones(2))").saves({}, {0}).grad([](Grad& g) {
  g.dx(0, relu_backward(g.dy(), g.y()));
});
HOLON_UNARY(tanh, Tanh, kFloat).doc("The hyperbolic tangent.", "tanh(ones(2))").saves({}, {0}).grad([](Grad& g) {
  g.dx(0, tanh_backward(g.dy(), g.y()));
});
HOLON_UNARY(sigmoid, Sigmoid, kFloat).doc("1 / (1 + exp(-x)).", "sigmoid(ones(2))").saves({}, {0}).grad([](Grad& g) {
  g.dx(0, sigmoid_backward(g.dy(), g.y()));
});
HOLON_UNARY(silu, Silu, kFloat).doc("x * sigmoid(x).", "silu(ones(2))").saves({0}).grad([](Grad& g) {
  g.dx(0, silu_backward(g.dy(), g.x()));
});
HOLON_UNARY(mish, Mish, kFloat).doc("x * tanh(softplus(x)).", "mish(ones(2))").saves({0}).grad([](Grad& g) {
  g.dx(0, mish_backward(g.dy(), g.x()));
});
HOLON_UNARY(quick_gelu, QuickGelu, kFloat)
    .doc("x * sigmoid(1.702 x).", "quick_gelu(ones(2))")
    .saves({0})
    .grad([](Grad& g) { g.dx(0, quick_gelu_backward(g.dy(), g.x())); });
HOLON_UNARY(logsigmoid, LogSigmoid, kFloat)
    .doc("log(sigmoid(x)), exact where that is small.", "logsigmoid(ones(2))")
    .saves({0})
    .grad([](Grad& g) { g.dx(0, logsigmoid_backward(g.dy(), g.x())); });
HOLON_UNARY(softsign, Softsign, kFloat).doc("x / (1 + |x|).", "softsign(ones(2))").saves({0}).grad([](Grad& g) {
  g.dx(0, softsign_backward(g.dy(), g.x()));
});
HOLON_UNARY(hardsigmoid, HardSigmoid, kFloat)
    .doc("x / 6 + 1/2, clamped to [0, 1].", "hardsigmoid(ones(2))")
    .saves({0})
    .grad([](Grad& g) { g.dx(0, hardsigmoid_backward(g.dy(), g.x())); });
HOLON_UNARY(hardswish, HardSwish, kFloat).doc("x * hardsigmoid(x).", "hardswish(ones(2))").saves({0}).grad([](Grad& g) {
  g.dx(0, hardswish_backward(g.dy(), g.x()));
});
HOLON_UNARY(selu, Selu, kFloat)
    .doc("s * (x for x > 0, else a * (exp(x) - 1)) with the s and a that keep mean 0 and variance 1.", "selu(ones(2))")
    .saves({0})
    .grad([](Grad& g) { g.dx(0, selu_backward(g.dy(), g.x())); });
HOLON_ALIAS(log_sigmoid, logsigmoid);

HOLON_OP(gelu, "gelu(Tensor x, *, str approximate='none') -> Tensor")
    .doc(
        "x * Phi(x) with the normal distribution's Phi, by erf, or by its tanh approximation if approximate is 'tanh'.",
        "gelu(ones(2))")
    .infer([](Infer& c) {
      c.require_floating(0);
      c.require(c.text("approximate"_attr) == "none" || c.text("approximate"_attr) == "tanh",
                "approximate must be 'none' or 'tanh'", "Choose one of them.");
      c.out(c.shape(0), c.dtype_of(0));
    })
    .elementwise()
    .kernel([](KernelCall& c) {
      kernels::unary(c.text("approximate"_attr) == "tanh" ? UnaryOp::GeluTanh : UnaryOp::Gelu, c.in(0), c.out());
    })
    .saves({0})
    .grad([](Grad& g) {
      g.dx(0, g.text("approximate"_attr) == "tanh" ? gelu_tanh_backward(g.dy(), g.x()) : gelu_backward(g.dy(), g.x()));
    });

HOLON_OP(leaky_relu, "leaky_relu(Tensor x, float negative_slope=0.01) -> Tensor")
    .doc("x for x > 0, else negative_slope * x.", "leaky_relu(ones(2))")
    .infer(floating_infer)
    .elementwise()
    .in_place()
    .kernel([](KernelCall& c) { kernels::unary(UnaryOp::LeakyRelu, c.in(0), c.out(), {c.f("negative_slope"_attr)}); })
    .saves({0})
    .grad([](Grad& g) { g.dx(0, leaky_relu_backward(g.dy(), g.x(), g.f("negative_slope"_attr))); });
HOLON_OP(elu, "elu(Tensor x, float alpha=1.0) -> Tensor")
    .doc("x for x > 0, else alpha * (exp(x) - 1).", "elu(ones(2))")
    .infer(floating_infer)
    .elementwise()
    .in_place()
    .kernel([](KernelCall& c) { kernels::unary(UnaryOp::Elu, c.in(0), c.out(), {c.f("alpha"_attr)}); })
    .saves({0})
    .grad([](Grad& g) { g.dx(0, elu_backward(g.dy(), g.x(), g.f("alpha"_attr))); });
HOLON_OP(celu, "celu(Tensor x, float alpha=1.0) -> Tensor")
    .doc("x for x > 0, else alpha * (exp(x / alpha) - 1).", "celu(ones(2))")
    .elementwise()
    .in_place()
    .infer([](Infer& c) {
      c.require(c.f("alpha"_attr) != 0, "alpha is 0", "Give another number: x is divided by it.");
      floating_infer(c);
    })
    .kernel([](KernelCall& c) { kernels::unary(UnaryOp::Celu, c.in(0), c.out(), {c.f("alpha"_attr)}); })
    .saves({0})
    .grad([](Grad& g) { g.dx(0, celu_backward(g.dy(), g.x(), g.f("alpha"_attr))); });
HOLON_OP(softplus, "softplus(Tensor x, float beta=1.0, float threshold=20.0) -> Tensor")
    .doc("log(1 + exp(beta x)) / beta; x itself where beta x is above threshold.", "softplus(ones(2))")
    .autocast(Autocast::kFloat32)
    .elementwise()
    .in_place()
    .infer([](Infer& c) {
      c.require(c.f("beta"_attr) != 0, "beta is 0", "Give another number: the result is divided by it.");
      floating_infer(c);
    })
    .kernel([](KernelCall& c) {
      kernels::unary(UnaryOp::Softplus, c.in(0), c.out(), {c.f("beta"_attr), c.f("threshold"_attr)});
    })
    .saves({0})
    .grad([](Grad& g) { g.dx(0, softplus_backward(g.dy(), g.x(), g.f("beta"_attr), g.f("threshold"_attr))); });
HOLON_OP(hardtanh, "hardtanh(Tensor x, float min_val=-1.0, float max_val=1.0) -> Tensor")
    .doc("x clamped to [min_val, max_val].", "hardtanh(ones(2))")
    .elementwise()
    .in_place()
    .infer([](Infer& c) {
      if (!(c.f("min_val"_attr) <= c.f("max_val"_attr)))
        fail_value("hardtanh: min_val {} is above max_val {}.", c.f("min_val"_attr), c.f("max_val"_attr));
      floating_infer(c);
    })
    .kernel([](KernelCall& c) {
      kernels::unary(UnaryOp::Clamp, c.in(0), c.out(), {c.f("min_val"_attr), c.f("max_val"_attr)});
    })
    .saves({0})
    .grad([](Grad& g) { g.dx(0, hardtanh_backward(g.dy(), g.x(), g.f("min_val"_attr), g.f("max_val"_attr))); });
HOLON_OP(relu6, "relu6(Tensor x) -> Tensor")
    .doc("x [...] clamped to [0, 6].", "relu6(ones(2))")
    .in_place()
    .body([](BodyCall& c) { c.out.push_back(hardtanh(c.in(0), 0.0, 6.0)); });
HOLON_OP(softshrink, "softshrink(Tensor x, float lambd=0.5) -> Tensor")
    .doc("x shrunk towards 0 by lambd, and 0 where |x| <= lambd.", "softshrink(ones(2))")
    .elementwise()
    .in_place()
    .infer([](Infer& c) {
      if (!(c.f("lambd"_attr) >= 0)) fail_value("softshrink: lambd is {}; it must not be negative.", c.f("lambd"_attr));
      floating_infer(c);
    })
    .kernel([](KernelCall& c) { kernels::unary(UnaryOp::SoftShrink, c.in(0), c.out(), {c.f("lambd"_attr)}); })
    .saves({0})
    .grad([](Grad& g) { g.dx(0, shrink_backward(g.dy(), g.x(), g.f("lambd"_attr))); });
HOLON_OP(hardshrink, "hardshrink(Tensor x, float lambd=0.5) -> Tensor")
    .doc("0 where |x| <= lambd, else x.", "hardshrink(ones(2))")
    .infer(floating_infer)
    .elementwise()
    .in_place()
    .kernel([](KernelCall& c) { kernels::unary(UnaryOp::HardShrink, c.in(0), c.out(), {c.f("lambd"_attr)}); })
    .saves({0})
    .grad([](Grad& g) { g.dx(0, shrink_backward(g.dy(), g.x(), g.f("lambd"_attr))); });
HOLON_OP(threshold, "threshold(Tensor x, float threshold, float value) -> Tensor")
    .doc("x where it is above threshold, else value.", "threshold(ones(2), 0.5, 0.0)")
    .infer(floating_infer)
    .elementwise()
    .in_place()
    .kernel([](KernelCall& c) {
      kernels::unary(UnaryOp::Threshold, c.in(0), c.out(), {c.f("threshold"_attr), c.f("value"_attr)});
    })
    .saves({0})
    .grad([](Grad& g) { g.dx(0, threshold_backward(g.dy(), g.x(), g.f("threshold"_attr))); });

HOLON_OP(tanhshrink, "tanhshrink(Tensor x) -> Tensor")
    .doc("x - tanh(x), for x [...].", "tanhshrink(ones(2))")
    .in_place()
    .body([](BodyCall& c) { c.out.push_back(sub(c.in(0), tanh(c.in(0)))); });
HOLON_OP(prelu, "prelu(Tensor x, Tensor weight) -> Tensor")
    .doc("x for x > 0, else weight * x: one weight, or one for each channel (axis 1).", "prelu(ones(2, 3), ones(3))")
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      Tensor w = c.in(1);
      int64_t channels = x.ndim() > 1 ? x.shape()[1] : 1;
      if (w.ndim() > 1 || (w.numel() != 1 && w.numel() != channels))
        fail_value("prelu: weight is {}, x is {}. It must hold one number, or one for each of the {} channels.",
                   w.shape(), x.shape(), channels);
      Dims shape = Dims::filled(x.ndim() > 1 ? x.ndim() - 1 : 1, 1);
      shape[0] = w.numel();
      if (x.ndim() > 0)
        w = reshape(w, shape);
      else
        w = reshape(w, {});
      c.out.push_back(where(gt(x, 0.0), x, mul(x, w)));
    });
HOLON_OP(glu, "glu(Tensor x, int dim=-1) -> Tensor")
    .doc("The first half of x along dim times the sigmoid of the second.", "glu(ones(2, 4))")
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      if (x.ndim() == 0) fail_value("glu: x has no axes; there is nothing to halve.");
      int d = normalize_axis(c.i("dim"_attr), x.ndim(), "glu");
      int64_t n = x.shape()[d];
      if (n % 2)
        fail_value("glu: axis {} of x {} has {} elements; an even number is needed to halve it.", d, x.shape(), n);
      c.out.push_back(mul(narrow(x, d, 0, n / 2), sigmoid(narrow(x, d, n / 2, n / 2))));
    });

// Gradients that read the result y.
HOLON_OP(relu_backward, "relu_backward(Tensor dy, Tensor y) -> Tensor")
    .doc("Gradient of relu.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::ReluBackward>)
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, relu_backward(g.dy(), g.x(1)));
    });
HOLON_OP(tanh_backward, "tanh_backward(Tensor dy, Tensor y) -> Tensor")
    .doc("Gradient of tanh.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::TanhBackward>)
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, tanh_backward(g.dy(), g.x(1)));
      in_x(g, mul(g.x(1), -2.0));
    });
HOLON_OP(sigmoid_backward, "sigmoid_backward(Tensor dy, Tensor y) -> Tensor")
    .doc("Gradient of sigmoid.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::SigmoidBackward>)
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, sigmoid_backward(g.dy(), g.x(1)));
      in_x(g, add(mul(g.x(1), -2.0), 1.0));
    });
// Gradients that read the input x.
HOLON_OP(gelu_backward, "gelu_backward(Tensor dy, Tensor x) -> Tensor")
    .doc("Gradient of gelu.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::GeluBackward>)
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, gelu_backward(g.dy(), g.x(1)));
      // phi(x) (2 - x^2)
      Tensor s = square(g.x(1));
      in_x(g, mul(mul(exp(mul(s, -0.5)), 0.39894228040143267794), sub(s, 2.0, {.reverse = true})));
    });
HOLON_OP(gelu_tanh_backward, "gelu_tanh_backward(Tensor dy, Tensor x) -> Tensor")
    .doc("Gradient of gelu by tanh.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::GeluTanhBackward>)
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, gelu_tanh_backward(g.dy(), g.x(1)));
      in_x(g, gelu_tanh_curvature(g.x(1)));
    });
HOLON_OP(silu_backward, "silu_backward(Tensor dy, Tensor x) -> Tensor")
    .doc("Gradient of silu.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::SiluBackward>)
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, silu_backward(g.dy(), g.x(1)));
      in_x(g, silu_curvature(g.x(1), 1));
    });
HOLON_OP(quick_gelu_backward, "quick_gelu_backward(Tensor dy, Tensor x) -> Tensor")
    .doc("Gradient of quick_gelu.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::QuickGeluBackward>)
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, quick_gelu_backward(g.dy(), g.x(1)));
      in_x(g, silu_curvature(g.x(1), 1.702));
    });
HOLON_OP(mish_backward, "mish_backward(Tensor dy, Tensor x) -> Tensor")
    .doc("Gradient of mish.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::MishBackward>)
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, mish_backward(g.dy(), g.x(1)));
      in_x(g, mish_curvature(g.x(1)));
    });
HOLON_OP(logsigmoid_backward, "logsigmoid_backward(Tensor dy, Tensor x) -> Tensor")
    .doc("Gradient of logsigmoid.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::LogSigmoidBackward>)
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, logsigmoid_backward(g.dy(), g.x(1)));
      Tensor s = sigmoid(g.x(1));
      in_x(g, neg(mul(s, one_minus(s))));
    });
HOLON_OP(softsign_backward, "softsign_backward(Tensor dy, Tensor x) -> Tensor")
    .doc("Gradient of softsign.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::SoftsignBackward>)
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, softsign_backward(g.dy(), g.x(1)));
      in_x(g, mul(mul(sign(g.x(1)), pow(add(abs(g.x(1)), 1.0), -3.0)), -2.0));
    });
HOLON_OP(hardsigmoid_backward, "hardsigmoid_backward(Tensor dy, Tensor x) -> Tensor")
    .doc("Gradient of hardsigmoid.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::HardSigmoidBackward>)
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, hardsigmoid_backward(g.dy(), g.x(1)));
    });
HOLON_OP(hardswish_backward, "hardswish_backward(Tensor dy, Tensor x) -> Tensor")
    .doc("Gradient of hardswish.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::HardSwishBackward>)
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, hardswish_backward(g.dy(), g.x(1)));
      if (g.needs(1)) g.dx(1, mul(unless(ge(abs(g.x(1)), 3.0), mul(g.dy(), g.x(0))), 1.0 / 3));
    });
HOLON_OP(selu_backward, "selu_backward(Tensor dy, Tensor x) -> Tensor")
    .doc("Gradient of selu.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::SeluBackward>)
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, selu_backward(g.dy(), g.x(1)));
      // The slope for x < 0 is its own derivative.
      if (g.needs(1)) g.dx(1, unless(gt(g.x(1), 0.0), selu_backward(mul(g.dy(), g.x(0)), g.x(1))));
    });

HOLON_OP(leaky_relu_backward, "leaky_relu_backward(Tensor dy, Tensor x, float negative_slope) -> Tensor")
    .doc("Gradient of leaky_relu.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel([](KernelCall& c) {
      kernels::binary(BinaryOp::LeakyReluBackward, c.in(0), c.in(1), c.out(), {c.f("negative_slope"_attr)});
    })
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, leaky_relu_backward(g.dy(), g.x(1), g.f("negative_slope"_attr)));
    });
HOLON_OP(elu_backward, "elu_backward(Tensor dy, Tensor x, float alpha) -> Tensor")
    .doc("Gradient of elu.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel([](KernelCall& c) {
      kernels::binary(BinaryOp::EluBackward, c.in(0), c.in(1), c.out(), {c.f("alpha"_attr)});
    })
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, elu_backward(g.dy(), g.x(1), g.f("alpha"_attr)));
      if (g.needs(1)) g.dx(1, unless(gt(g.x(1), 0.0), elu_backward(mul(g.dy(), g.x(0)), g.x(1), g.f("alpha"_attr))));
    });
HOLON_OP(celu_backward, "celu_backward(Tensor dy, Tensor x, float alpha) -> Tensor")
    .doc("Gradient of celu.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel([](KernelCall& c) {
      kernels::binary(BinaryOp::CeluBackward, c.in(0), c.in(1), c.out(), {c.f("alpha"_attr)});
    })
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, celu_backward(g.dy(), g.x(1), g.f("alpha"_attr)));
      if (g.needs(1))
        g.dx(1,
             unless(gt(g.x(1), 0.0),
                    div(celu_backward(mul(g.dy(), g.x(0)), g.x(1), g.f("alpha"_attr)), g.f("alpha"_attr))));
    });
HOLON_OP(softplus_backward, "softplus_backward(Tensor dy, Tensor x, float beta, float threshold) -> Tensor")
    .doc("Gradient of softplus.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel([](KernelCall& c) {
      kernels::binary(BinaryOp::SoftplusBackward, c.in(0), c.in(1), c.out(), {c.f("beta"_attr), c.f("threshold"_attr)});
    })
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, softplus_backward(g.dy(), g.x(1), g.f("beta"_attr), g.f("threshold"_attr)));
      Tensor u = mul(g.x(1), g.f("beta"_attr)), s = sigmoid(u);
      in_x(g, unless(gt(u, g.f("threshold"_attr)), mul(mul(s, one_minus(s)), g.f("beta"_attr))));
    });
HOLON_OP(hardtanh_backward, "hardtanh_backward(Tensor dy, Tensor x, float min_val, float max_val) -> Tensor")
    .doc("Gradient of hardtanh.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel([](KernelCall& c) {
      kernels::binary(BinaryOp::HardtanhBackward, c.in(0), c.in(1), c.out(),
                      {c.f("min_val"_attr), c.f("max_val"_attr)});
    })
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, hardtanh_backward(g.dy(), g.x(1), g.f("min_val"_attr), g.f("max_val"_attr)));
    });
HOLON_OP(shrink_backward, "shrink_backward(Tensor dy, Tensor x, float lambd) -> Tensor")
    .doc("Gradient of softshrink and of hardshrink.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel([](KernelCall& c) {
      kernels::binary(BinaryOp::ShrinkBackward, c.in(0), c.in(1), c.out(), {c.f("lambd"_attr)});
    })
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, shrink_backward(g.dy(), g.x(1), g.f("lambd"_attr)));
    });
HOLON_OP(threshold_backward, "threshold_backward(Tensor dy, Tensor x, float threshold) -> Tensor")
    .doc("Gradient of threshold.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel([](KernelCall& c) {
      kernels::binary(BinaryOp::ThresholdBackward, c.in(0), c.in(1), c.out(), {c.f("threshold"_attr)});
    })
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, threshold_backward(g.dy(), g.x(1), g.f("threshold"_attr)));
    });

}  // namespace holon::ops
