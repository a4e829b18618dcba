// Activations and their fused gradients. None is linear: a partial sum is added up before.
#include "holon/ops/elementwise.h"

namespace holon::ops {

HOLON_UNARY(relu, Relu, kSame).doc("max(x, 0).", "relu(ones(2))").saves({}, {0}).grad([](Grad& g) { g.dx(0, relu_backward(g.dy(), g.y())); });
HOLON_UNARY(tanh, Tanh, kFloat).doc("The hyperbolic tangent.", "tanh(ones(2))").saves({}, {0}).grad([](Grad& g) { g.dx(0, tanh_backward(g.dy(), g.y())); });
HOLON_UNARY(sigmoid, Sigmoid, kFloat).doc("1 / (1 + exp(-x)).", "sigmoid(ones(2))").saves({}, {0}).grad([](Grad& g) { g.dx(0, sigmoid_backward(g.dy(), g.y())); });
HOLON_UNARY(silu, Silu, kFloat).doc("x * sigmoid(x).", "silu(ones(2))").saves({0}).grad([](Grad& g) { g.dx(0, silu_backward(g.dy(), g.x())); });

HOLON_OP(gelu, "gelu(Tensor x, *, str approximate='none') -> Tensor")
    .doc("x * Phi(x) with the normal distribution's Phi, by erf, or by its tanh approximation if approximate is 'tanh'.", "gelu(ones(2))")
    .infer([](Infer& c) {
      c.require_floating(0);
      c.require(c.text("approximate") == "none" || c.text("approximate") == "tanh", "approximate must be 'none' or 'tanh'", "Choose one of them.");
      c.out(c.shape(0), c.dtype_of(0));
    })
    .elementwise()
    .kernel([](KernelCall& c) { kernels::unary(c.text("approximate") == "tanh" ? UnaryOp::GeluTanh : UnaryOp::Gelu, c.in(0), c.out()); })
    .saves({0})
    .grad([](Grad& g) {
      g.dx(0, g.text("approximate") == "tanh" ? gelu_tanh_backward(g.dy(), g.x()) : gelu_backward(g.dy(), g.x()));
    });

HOLON_OP(relu_backward, "relu_backward(Tensor dy, Tensor y) -> Tensor")
    .doc("Gradient of relu.").infer_broadcast().elementwise().linear_in({0}).hidden().kernel(binary_kernel<BinaryOp::ReluBackward>)
    .saves({1}).grad([](Grad& g) { if (g.needs(0)) g.dx(0, relu_backward(g.dy(), g.x(1))); });
HOLON_OP(gelu_backward, "gelu_backward(Tensor dy, Tensor x) -> Tensor")
    .doc("Gradient of gelu.").infer_broadcast().elementwise().linear_in({0}).hidden().kernel(binary_kernel<BinaryOp::GeluBackward>);
HOLON_OP(gelu_tanh_backward, "gelu_tanh_backward(Tensor dy, Tensor x) -> Tensor")
    .doc("Gradient of gelu by tanh.").infer_broadcast().elementwise().linear_in({0}).hidden().kernel(binary_kernel<BinaryOp::GeluTanhBackward>);
HOLON_OP(silu_backward, "silu_backward(Tensor dy, Tensor x) -> Tensor")
    .doc("Gradient of silu.").infer_broadcast().elementwise().linear_in({0}).hidden().kernel(binary_kernel<BinaryOp::SiluBackward>);
HOLON_OP(tanh_backward, "tanh_backward(Tensor dy, Tensor y) -> Tensor")
    .doc("Gradient of tanh.").infer_broadcast().elementwise().linear_in({0}).hidden().kernel(binary_kernel<BinaryOp::TanhBackward>)
    .saves({0, 1}).grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, tanh_backward(g.dy(), g.x(1)));
      if (g.needs(1)) g.dx(1, mul(g.dy(), mul_scalar(mul(g.x(0), g.x(1)), -2.0)));
    });
HOLON_OP(sigmoid_backward, "sigmoid_backward(Tensor dy, Tensor y) -> Tensor")
    .doc("Gradient of sigmoid.").infer_broadcast().elementwise().linear_in({0}).hidden().kernel(binary_kernel<BinaryOp::SigmoidBackward>)
    .saves({0, 1}).grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, sigmoid_backward(g.dy(), g.x(1)));
      if (g.needs(1)) g.dx(1, mul(g.dy(), mul(g.x(0), add_scalar(mul_scalar(g.x(1), -2.0), 1.0))));
    });

}  // namespace holon::ops
