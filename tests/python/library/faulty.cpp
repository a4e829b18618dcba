// Ops whose declarations are wrong, each in one way, and one that is right.
#include <holon/dispatch/dispatch.h>
#include <holon/kernels/copy.h>

namespace {

using namespace holon;

// f(x[i, k]) for all elements of matrices, where f also gets the element before it in its row.
template <class F>
void by_rows(KernelCall& c, F&& f) {
  const Array x = kernels::contiguous(c.in(0));
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t n = x.shape[0], k = x.shape[1];
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < k; ++j) {
        const T* at = x.data<T>() + i * k + j;
        c.out().data<T>()[i * k + j] = static_cast<T>(f(double(*at), j > 0 ? double(at[-1]) : 0.0));
      }
  });
}

void matrices(Infer& c) {
  c.require(c.ndim(0) == 2, "x is no matrix", "Reshape it.");
  c.require_floating(0);
  c.out(c.shape(0), c.dtype_of(0));
}

HOLON_OP(step_in_row, "step_in_row(Tensor x) -> Tensor")
    .doc("x minus the element before it in its row. The rule divides rows.")
    .infer(matrices)
    .rule("n k -> n k")
    .kernel([](KernelCall& c) { by_rows(c, [](double x, double before) { return x - before; }); });

HOLON_OP(plus_one, "plus_one(Tensor x) -> Tensor")
    .doc("x + 1. It lets addends through, each of which then gets 1.")
    .infer(matrices)
    .rule("n k -> n k")
    .linear()
    .kernel([](KernelCall& c) { by_rows(c, [](double x, double) { return x + 1; }); });

HOLON_OP(halved_rows, "halved_rows(Tensor x) -> Tensor")
    .doc("x / 2. The rule never divides rows, which could be, and lets no addends through.")
    .infer(matrices)
    .rule("n K -> n K")
    .kernel([](KernelCall& c) { by_rows(c, [](double x, double) { return x / 2; }); });

HOLON_OP(wrong_square, "wrong_square(Tensor x) -> Tensor")
    .doc("x * x, with half its gradient.")
    .infer(matrices)
    .rule("n k -> n k")
    .kernel([](KernelCall& c) { by_rows(c, [](double x, double) { return x * x; }); })
    .saves({0})
    .grad([](Grad& g) {
      g.dx(0, call("mul", {g.dy(), g.x()})[0]);
    });

HOLON_OP(right_square, "right_square(Tensor x, *, float scale=1.0) -> Tensor")
    .doc("scale x * x.")
    .infer(matrices)
    .rule("n k -> n k")
    .kernel([](KernelCall& c) { by_rows(c, [scale = c.f("scale"_attr)](double x, double) { return scale * x * x; }); })
    .saves({0})
    .grad([](Grad& g) {
      const Tensor twice = call("mul_scalar", {call("mul", {g.dy(), g.x()})[0]}, {{"value", 2.0}})[0];
      g.dx(0, call("mul_scalar", {twice}, {{"value", g.f("scale"_attr)}})[0]);
    });

}  // namespace
