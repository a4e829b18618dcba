// An op library as a user writes it: one op with a kernel, one that is composed, one with a rule of its own.
#include <holon/dispatch/dispatch.h>
#include <holon/kernels/copy.h>

#include <cmath>

namespace {

using namespace holon;

HOLON_OP(soft_cap, "soft_cap(Tensor x, *, float cap=30.0) -> Tensor")
    .doc("cap * tanh(x / cap): x where it is small, never beyond cap.", "soft_cap(ones(2))")
    .infer([](Infer& c) {
      c.require_floating(0);
      c.require(c.f("cap"_attr) > 0, "cap is not positive", "Give a limit above 0.");
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule_elementwise()
    .autocast(Autocast::kFloat32)
    .flops([](const CallShapes& c) { return 3.0 * static_cast<double>(c.in(0).numel()); })
    .kernel([](KernelCall& c) {
      Array x = kernels::contiguous(c.in(0));
      visit_floating(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        using C = typename DTypeOf<T>::Compute;
        const C cap = static_cast<C>(c.f("cap"_attr));
        for (int64_t i = 0; i < x.numel(); ++i)
          c.out().data<T>()[i] = static_cast<T>(cap * std::tanh(static_cast<C>(x.data<T>()[i]) / cap));
      });
    })
    .saves({}, {0})
    .grad([](Grad& g) {
      // 1 - tanh^2, from the result.
      Tensor y = call("div_scalar", {g.y()}, {{"value", g.f("cap"_attr)}})[0];
      Tensor slope = call("sub_scalar", {call("square", {y})[0]}, {{"value", 1.0}, {"reverse", true}})[0];
      g.dx(0, call("mul", {g.dy(), slope})[0]);
    });

HOLON_OP(twice_capped, "twice_capped(Tensor x) -> Tensor").doc("soft_cap of soft_cap.").body([](BodyCall& c) {
  c.out.push_back(call("soft_cap", {call("soft_cap", {c.in(0)})[0]})[0]);
});

HOLON_OP(row_dot, "row_dot(Tensor x, Tensor y) -> Tensor")
    .doc("The products of the rows of x and y [n, k]: [n].")
    .infer([](Infer& c) {
      c.require(c.shape(0) == c.shape(1) && c.ndim(0) == 2, "x and y are not two matrices of one shape",
                "Reshape them.");
      c.require_dtype(c.dtype_of(0) == float32 && c.dtype_of(1) == float32, "takes float32 only",
                      "Convert them first.");
      c.out({c.shape(0)[0]}, c.dtype_of(0));
    })
    .rule("n k, n k -> n")
    .autocast(Autocast::kPromote)
    .linear_in({0, 1})
    .kernel([](KernelCall& c) {
      Array x = kernels::contiguous(c.in(0)), y = kernels::contiguous(c.in(1));
      for (int64_t i = 0; i < x.shape[0]; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < x.shape[1]; ++k)
          sum += double(x.data<float>()[i * x.shape[1] + k]) * y.data<float>()[i * x.shape[1] + k];
        c.out().data<float>()[i] = static_cast<float>(sum);
      }
    });

}  // namespace
