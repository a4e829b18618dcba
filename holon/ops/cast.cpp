// Conversions of dtype, and choices by a mask.
#include <limits>

#include "holon/internal_ops/cast.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/device.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/sort.h"
#include "holon/ops/unary.h"

namespace holon::ops {

HOLON_OP(cast, "cast(Tensor x, dtype dtype) -> Tensor")
    .doc("x [...] as another dtype: floats are truncated to integers; to bool it is x != 0. To a float8 they are "
         "rounded to "
         "nearest even, by way of float32; what is too large becomes infinity, or NaN in float8_e4m3fn.",
         "cast(ones(2), float64)")
    .fuses(Fuses::kElements)
    .takes_float8()
    .infer([](Infer& c) { c.out(c.shape(0), c.dtype("dtype"_attr)); })
    .rule([](RuleCall& r) {
      elementwise_rule(r.in, r.out, r.rule);
      // Between floating point types a conversion is linear except rounding; to integers it is not.
      auto is_summed = [](const Meta& m) { return is_floating(m.dtype) && !is_float8(m.dtype); };
      if (!is_summed(r.in[0]) || !is_summed(r.out[0])) return;
      Signature s;
      s.in.push_back(sbp::partial_sum());
      s.out.push_back(sbp::partial_sum());
      r.rule.add(s);
    })
    .layout(Layout::kLikeInput)
    .kernel([](KernelCall& c) { kernels::copy(c.in(0), c.out()); })
    .grad([](Grad& g) {
      if (is_float8(g.in_dtype()) || is_float8(g.dtype("dtype"_attr)))
        fail(ErrorKind::kNotImplemented,
             "to({}): no gradient goes through float8, which would round it. Detach the tensor before.",
             name(g.dtype("dtype"_attr)));
      if (is_floating(g.in_dtype())) g.dx(0, cast(g.dy(), g.in_dtype()));
    });

HOLON_OP(to_device, "to_device(Tensor x, device device, bool non_blocking=False) -> Tensor")
    .doc("x [...] on another device of this rank; a simulated device shares the memory. non_blocking: a copy to the "
         "CPU returns pinned memory whose values are valid once the device is done (cuda.synchronize()); after a copy "
         "from pinned memory, x must not be changed before that.",
         "to_device(ones(2), 'cpu')")
    .function_only()
    .body([](BodyCall& c) {
      const Device to = c.device("device"_attr), from = c.in(0).impl()->device;
      c.out.push_back(from.is_host() && to.is_host() ? same_on_device(c.in(0), to)
                                                     : copy_to_device(c.in(0), to, from, c.b("non_blocking"_attr),
                                                                      c.b("non_blocking"_attr) && to.is_host()));
    });
HOLON_OP(
    copy_to_device,
    "copy_to_device(Tensor x, device device, device source, bool non_blocking=False, bool pin_memory=False) -> Tensor")
    .doc("to_device between memories.")
    .hidden()
    .takes_float8()
    .infer_like()
    .rule_elementwise()
    .linear()
    .kernel([](KernelCall& c) {
      if (c.in(0).device.is_host() && c.out().device.is_host())
        kernels::copy(c.in(0), c.out());
      else
        kernels::copy_on_devices(c.in(0), c.out(), !c.b("non_blocking"_attr));
    })
    .grad([](Grad& g) { g.dx(0, to_device(g.dy(), g.device("source"_attr))); });
HOLON_OP(pin_memory, "pin_memory(Tensor x) -> Tensor")
    .doc("x [...] in pinned CPU memory, from which copies to a cuda device can be asynchronous (x.to(\"cuda\", "
         "non_blocking=True)); x itself if it is pinned already. Of a global tensor, each rank's part. Needs a cuda "
         "device.",
         "pin_memory(ones(2))")
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      const Device device = x.impl()->device;
      if (!device.is_host())
        fail_runtime("pin_memory: the tensor {} is on {}; only CPU memory can be pinned. Copy it by .cpu() first.",
                     x.shape(), device);
      c.out.push_back(x.array().is_pinned() ? x : copy_to_device(x, device, device, false, true));
    });
HOLON_OP(same_on_device, "same_on_device(Tensor x, device device) -> Tensor")
    .doc("to_device in one memory.")
    .hidden()
    .infer_like()
    .rule_elementwise()
    .linear()
    .view([](ViewCall& v, Array& out) {
      HOLON_CHECK(v.in.device.is_host(), "same_on_device: {} has separate memory", v.in.device);
      out.device = v.attrs().as_device(v.op().device_attr);
    })
    .grad([](Grad& g) { g.dx(0, g.dy()); });

HOLON_OP(where, "where(Tensor condition, Tensor x, Tensor other) -> Tensor")
    .doc("x where condition is true, other elsewhere, with broadcasting; either may be a number.",
         "where(ones(2) > 0, ones(2), zeros(2))")
    .autocast(Autocast::kPromote)
    .mask("condition")
    .promotes_only({1, 2})
    .fuses(Fuses::kElements)
    .infer([](Infer& c) {
      c.require_dtype(c.dtype_of(0) == boolean, "the condition is not bool", "Compare first, e.g. mask != 0.");
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
    .doc("value where mask is true, x elsewhere; both broadcast to one shape.",
         "masked_fill(ones(2), ones(2) > 0, 0.5)")
    .mask("mask")
    .promotes_only({0})
    .promotes_with({"value"})
    .fuses(Fuses::kElements)
    .infer([](Infer& c) {
      c.require_dtype(c.dtype_of(1) == boolean, "the mask is not bool", "Compare first, e.g. mask != 0.");
      c.out(broadcast_shapes(c.shape(0), c.shape(1), "masked_fill"), c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      elementwise_rule(r.in, r.out, r.rule);
      if (r.scalar("value"_attr).as_double() != 0) return;
      Signature s;  // linear in x, for a mask that is whole
      s.in.push_back(sbp::partial_sum());
      s.in.push_back(sbp::broadcast());
      s.out.push_back(sbp::partial_sum());
      r.rule.add(s);
    })
    .in_place()
    .layout(Layout::kLikeInput)
    .kernel([](KernelCall& c) { kernels::masked_fill(c.in(0), c.in(1), c.scalar("value"_attr), c.out()); })
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, reduce_to(masked_fill(g.dy(), g.x(1), 0), g.in_shape(0)));
    });

HOLON_OP(masked_fill_tensor, "masked_fill_tensor(Tensor x, Tensor mask, Tensor value) -> Tensor")
    .doc("masked_fill with a value that is a tensor without axes.", "masked_fill(ones(2), ones(2) > 0, full([], 0.5))")
    .overload_of("masked_fill")
    .mask("mask")
    .in_place()
    .body([](BodyCall& c) {
      if (c.in(2).ndim() != 0)
        fail_value("masked_fill: value has shape {}; it must be a number, or a tensor without axes.", c.in(2).shape());
      c.out.push_back(where(c.in(1), c.in(2), c.in(0)));
    });

HOLON_OP(clamp, "clamp(Tensor x, Scalar? min=None, Scalar? max=None) -> Tensor")
    .doc("x clamped to [min, max], numbers; either may be None.", "clamp(ones(2), 0, 0.5)")
    .promotes()
    .promotes_with({"min", "max"})
    .elementwise()
    .in_place()
    .infer([](Infer& c) {
      if (!c.has("min"_attr) && !c.has("max"_attr))
        fail_value("clamp: neither min nor max was given. Give at least one.");
      c.out(c.shape(0), c.dtype_of(0));
    })
    .kernel([](KernelCall& c) {
      std::optional<Scalar> low, high;
      if (c.has("min"_attr)) low = c.scalar("min"_attr);
      if (c.has("max"_attr)) high = c.scalar("max"_attr);
      kernels::clamp(c.in(0), low, high, c.out());
    })
    .saves({0})
    .grad([](Grad& g) {
      constexpr double inf = std::numeric_limits<double>::infinity();
      g.dx(0,
           clamp_backward(g.dy(), g.x(), g.has("min"_attr) ? g.scalar("min"_attr).as_double() : -inf,
                          g.has("max"_attr) ? g.scalar("max"_attr).as_double() : inf));
    });
HOLON_OP(clamp_backward, "clamp_backward(Tensor dy, Tensor x, float min, float max) -> Tensor")
    .doc("Gradient of clamp.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel([](KernelCall& c) {
      kernels::binary(BinaryOp::ClampBackward, c.in(0), c.in(1), c.out(), {c.f("min"_attr), c.f("max"_attr)});
    })
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, clamp_backward(g.dy(), g.x(1), g.f("min"_attr), g.f("max"_attr)));
    });
HOLON_OP(clamp_tensor, "clamp_tensor(Tensor x, Tensor? min=None, Tensor? max=None) -> Tensor")
    .doc("clamp with bounds for each element.", "clamp(ones(2, 3), zeros(3), full([3], 0.5))")
    .overload_of("clamp")
    .wraps_numbers()
    .in_place()
    .body([](BodyCall& c) {
      if (!c.present(1) && !c.present(2)) fail_value("clamp: neither min nor max was given. Give at least one.");
      Tensor y = c.in(0);
      // At a bound the gradient is x's, and a NaN of either side wins.
      if (c.present(1)) y = where(logical_or(ge(y, c.in(1)), isnan(y)), y, c.in(1));
      if (c.present(2)) y = where(logical_or(le(y, c.in(2)), isnan(y)), y, c.in(2));
      c.out.push_back(y);
    });
HOLON_OP(clamp_min, "clamp_min(Tensor x, Scalar min) -> Tensor")
    .doc("x [...], but at least min.", "clamp_min(ones(2), 0)")
    .in_place()
    .body([](BodyCall& c) { c.out.push_back(clamp(c.in(0), c.scalar("min"_attr))); });
HOLON_OP(clamp_max, "clamp_max(Tensor x, Scalar max) -> Tensor")
    .doc("x [...], but at most max.", "clamp_max(ones(2), 0)")
    .in_place()
    .body([](BodyCall& c) { c.out.push_back(clamp(c.in(0), std::nullopt, c.scalar("max"_attr))); });
HOLON_OP(clamp_min_tensor, "clamp_min_tensor(Tensor x, Tensor min) -> Tensor")
    .doc("x, but at least min, element by element.", "clamp_min(ones(2), full([2], 1.5))")
    .overload_of("clamp_min")
    .in_place()
    .body([](BodyCall& c) { c.out.push_back(clamp(c.in(0), c.in(1), Tensor())); });
HOLON_OP(clamp_max_tensor, "clamp_max_tensor(Tensor x, Tensor max) -> Tensor")
    .doc("x, but at most max, element by element.", "clamp_max(ones(2), full([2], 0.5))")
    .overload_of("clamp_max")
    .in_place()
    .body([](BodyCall& c) { c.out.push_back(clamp(c.in(0), Tensor(), c.in(1))); });
HOLON_ALIAS(clip, clamp);

}  // namespace holon::ops

namespace holon {
Tensor Tensor::to(DType dtype) const { return dtype == this->dtype() ? *this : cast(*this, dtype); }
}  // namespace holon
