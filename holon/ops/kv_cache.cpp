// The memory of keys and values that a compiled step of a model writes a token into.
#include "holon/base/error.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/on_device.h"
#include "holon/registry/op_def.h"

namespace holon::ops {

HOLON_OP(kv_put, "kv_put(Tensor held, Tensor x, Tensor place) -> Tensor")
    .doc(
        "held [batch, heads, capacity, width] with x [batch, heads, n, width] from position place [1] on. A graph that "
        "assigns the result to held writes x alone.")
    .hidden()
    .infer([](Infer& c) {
      const Dims &held = c.shape(0), &x = c.shape(1);
      c.require_dtype(c.dtype_of(0) == c.dtype_of(1), "the dtypes of held and x differ", "Convert x by to().");
      c.require_dtype(c.dtype_of(2) == int64, "place is not int64", "Convert it by to(int64).");
      c.require(held.size() == 4 && x.size() == 4 && held[0] == x[0] && held[1] == x[1] && held[3] == x[3] &&
                    x[2] <= held[2],
                "x does not fit into held", "They are [batch, heads, positions, width], and differ in positions only.");
      c.require(c.shape(2) == Dims{1}, "place is not one number", "Give a tensor of one element.");
      c.out(held, c.dtype_of(0));
    })
    .rule("b h C w, b h N w, O -> b h C w")
    .writes_over({0})
    .kernel([](KernelCall& c) {
      const Array &held = c.in(0), &x = c.in(1), place = kernels::on_device(c.in(2), Device());
      const int64_t at = *place.data<int64_t>(), n = x.shape[2];
      if (at < 0 || at > held.shape[2] - n)
        fail_value("kv_put: {} positions from {} on do not fit into {}.", n, at, held.shape[2]);
      Array& out = c.out();
      const bool same = out.storage == held.storage && out.offset == held.offset && out.strides == held.strides;
      if (!same) kernels::copy(held, out);
      Array to = out.view(x.shape, out.strides, at * out.strides[2]);
      kernels::copy(x, to);
    });

}  // namespace holon::ops
