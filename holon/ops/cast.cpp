// Conversions of dtype, and choices by a mask.
#include "holon/kernels/cpu/copy.h"
#include "holon/ops/elementwise.h"

namespace holon::ops {

HOLON_OP(cast, "cast(Tensor x, dtype dtype) -> Tensor")
    .doc("x as another dtype: floats to integers are cut off, anything to bool is x != 0.", "cast(ones(2), float64)")
    .infer([](Infer& c) { c.out(c.shape(0), c.dtype("dtype")); })
    .rule([](RuleCall& r) {
      elementwise_rule(r.in, r.out, r.rule);
      // Between floating point types a conversion is linear but for rounding; to integers it is not.
      if (!is_floating(r.in[0].dtype) || !is_floating(r.out[0].dtype)) return;
      Signature s;
      s.in.push_back(sbp::partial_sum());
      s.out.push_back(sbp::partial_sum());
      r.rule.add(s);
    })
    .layout(Layout::kLikeInput)
    .kernel([](KernelCall& c) { kernels::copy(c.in(0), c.out()); })
    .grad([](Grad& g) { if (is_floating(g.in_dtype())) g.dx(0, cast(g.dy(), g.in_dtype())); });

HOLON_OP(to_device, "to_device(Tensor x, device device) -> Tensor")
    .doc("x on another device of this rank; a simulated device shares the memory.", "to_device(ones(2), 'cpu')")
    .function_only().infer_like().rule_elementwise().linear()
    .view([](ViewCall& v, Array& out) {
      out = v.in;
      out.device = v.attrs().as_device(v.op().device_attr);
    })
    .grad([](Grad& g) { g.dx(0, g.dy()); });

HOLON_OP(where, "where(Tensor condition, Tensor x, Tensor other) -> Tensor")
    .doc("x where condition is true, other elsewhere, with broadcasting.", "where(ones(2) > 0, ones(2), zeros(2))")
    .infer([](Infer& c) {
      c.require_dtype(c.dtype_of(0) == boolean, "the condition is not bool", "Compare first, e.g. mask != 0.");
      c.require_dtype(c.dtype_of(1) == c.dtype_of(2), "x and other have different dtypes", "Convert one of them by to().");
      Dims s = broadcast_shapes(broadcast_shapes(c.shape(0), c.shape(1), "where"), c.shape(2), "where");
      c.out(s, c.dtype_of(1));
    })
    .rule([](RuleCall& r) {
      elementwise_rule(r.in, r.out, r.rule);
      Signature s;  // linear in x and other together, for a condition that is whole
      s.in.push_back(sbp::broadcast());
      s.in.push_back(sbp::partial_sum());
      s.in.push_back(sbp::partial_sum());
      s.out.push_back(sbp::partial_sum());
      r.rule.add(s);
    })
    .wraps_numbers()
    .kernel([](KernelCall& c) { kernels::where(c.in(0), c.in(1), c.in(2), c.out()); })
    .saves({0})
    .grad([](Grad& g) {
      if (g.needs(1)) g.dx(1, reduce_to(where(g.x(0), g.dy(), zeros_like(g.dy())), g.in_shape(1)));
      if (g.needs(2)) g.dx(2, reduce_to(where(g.x(0), zeros_like(g.dy()), g.dy()), g.in_shape(2)));
    });

HOLON_OP(masked_fill, "masked_fill(Tensor x, Tensor mask, Scalar value) -> Tensor")
    .doc("value where mask is true, x elsewhere; mask broadcasts to x.", "masked_fill(ones(2), ones(2) > 0, 0.5)")
    .infer([](Infer& c) {
      c.require_dtype(c.dtype_of(1) == boolean, "the mask is not bool", "Compare first, e.g. mask != 0.");
      c.require(broadcast_shapes(c.shape(0), c.shape(1), "masked_fill") == c.shape(0), "mask does not broadcast to x", "Reshape it.");
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      elementwise_rule(r.in, r.out, r.rule);
      if (r.scalar("value").as_double() != 0) return;
      Signature s;  // linear in x, for a mask that is whole
      s.in.push_back(sbp::partial_sum());
      s.in.push_back(sbp::broadcast());
      s.out.push_back(sbp::partial_sum());
      r.rule.add(s);
    })
    .in_place().layout(Layout::kLikeInput)
    .kernel([](KernelCall& c) {
      Array value = Array::empty({}, c.in(0).dtype);
      kernels::fill(value, c.scalar("value"));
      kernels::where(c.in(1), value, c.in(0), c.out());
    })
    .saves({1})
    .grad([](Grad& g) { if (g.needs(0)) g.dx(0, masked_fill(g.dy(), g.x(1), 0)); });

HOLON_OP(clamp, "clamp(Tensor x, Scalar? min=None, Scalar? max=None) -> Tensor")
    .doc("x held between min and max; either may be None.", "clamp(ones(2), 0, 0.5)")
    .in_place()
    .body([](BodyCall& c) {
      if (!c.has("min") && !c.has("max")) fail_value("clamp: neither min nor max was given. Give at least one.");
      Tensor y = c.in(0);
      if (c.has("min")) y = maximum_scalar(y, c.scalar("min"));
      if (c.has("max")) y = minimum_scalar(y, c.scalar("max"));
      c.out.push_back(y);
    });
HOLON_ALIAS(clip, clamp);

}  // namespace holon::ops

namespace holon {
Tensor Tensor::to(DType dtype) const { return dtype == this->dtype() ? *this : cast(*this, dtype); }
}  // namespace holon
