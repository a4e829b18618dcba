#include "holon/ops/values.h"

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/global/slice.h"
#include "holon/internal_ops/cast.h"
#include "holon/kernels/on_device.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"
#include "holon/ops/part_metas.h"
#include "holon/ops/shape.h"
#include "holon/ops/to_global.h"
#include "holon/tensor/tracer.h"

namespace holon {

Tensor place(const Tensor& alike, const Placement& placement, const NdSbp& nd_sbp) {
  if (alike.is_global()) fail_type("place: the tensor is global already. Use to_global().");
  check_nd_sbp(alike.shape(), placement, nd_sbp, "place");
  NoGradGuard guard;
  ops::check_alike("place", alike, placement);
  Array part;
  int index = placement.index_of(Context::current().rank());
  if (index >= 0) {
    Region slice = region_of(alike.shape(), placement, nd_sbp, index);
    Tensor mine = alike.detach();
    for (int a = 0; a < alike.ndim(); ++a) mine = narrow(mine, a, slice.offset[a], slice.shape[a]);
    Dims at = placement.coordinate(index);
    bool counts = true;
    for (int d = 0; d < nd_sbp.size(); ++d) counts &= !nd_sbp[d].is_partial() || at[d] == 0;
    part = (counts ? clone(mine) : zeros(slice.shape, {.dtype = alike.dtype()})).array();
    part = kernels::on_device(part, placement.device());
  }
  return Tensor::global(std::move(part), alike.shape(), alike.dtype(), intern_spec(placement, nd_sbp));
}

namespace detail {

Tensor from_array(Array values, const TensorOptions& o) {
  NoGradGuard guard;
  TracerPause untraced;  // in a graph's build() these are constants
  if (bool(o.placement) != bool(o.sbp))
    fail_layout("tensor: placement and sbp must be given together; only {} was given. Give both for a global tensor, "
                "neither for a local one.",
                o.placement ? "placement" : "sbp");
  Tensor t = Tensor::local(std::move(values));
  if (o.dtype) t = t.to(*o.dtype);
  if (o.placement) t = place(t, o.placement, o.sbp);
  if (o.requires_grad) t.set_requires_grad();
  return t;
}

void check_count(size_t given, const Dims& shape) {
  for (int64_t n : shape)
    if (n < 0) fail_value("tensor: the shape {} has a negative size.", shape);
  if (static_cast<int64_t>(given) != shape.numel())
    fail_value("tensor: {} values were passed for the shape {}, which has {} elements.", given, shape, shape.numel());
}

void check_row(size_t row, size_t found, size_t expected) {
  if (found != expected)
    fail_value("tensor: row {} has {} numbers, row 0 has {}. All rows must have the same length.", row, found,
               expected);
}

Tensor whole_as(const Tensor& t, DType dtype) {
  NoGradGuard guard;
  Tensor whole = t.detach().full();
  if (!whole.device().is_host()) whole = copy_to_device(whole, Device(), whole.device());
  return whole.to(dtype);
}

}  // namespace detail
}  // namespace holon
