#include "holon/data/place.h"

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/global/slice.h"
#include "holon/ops.h"

namespace holon::data {

Tensor place(const Tensor& alike, const Placement& placement, const NdSbp& nd_sbp) {
  if (alike.is_global()) fail_type("place: the tensor is global already. Use to_global().");
  check_nd_sbp(alike.shape(), placement, nd_sbp, "place");
  NoGradGuard guard;
  Array part;
  int index = placement.index_of(Context::current().rank());
  if (index >= 0) {
    Slice slice = slice_of(alike.shape(), placement, nd_sbp, index);
    Tensor mine = alike.detach();
    for (int a = 0; a < alike.ndim(); ++a) mine = narrow(mine, a, slice.offset[a], slice.shape[a]);
    Dims at = placement.coordinate(index);
    bool counts = true;
    for (int d = 0; d < nd_sbp.size(); ++d) counts &= !nd_sbp[d].is_partial() || at[d] == 0;
    part = (counts ? clone(mine) : zeros(slice.shape, {.dtype = alike.dtype()})).array();
    part.device = placement.device();
  }
  return Tensor::global(std::move(part), alike.shape(), alike.dtype(), intern_spec(placement, nd_sbp));
}

}  // namespace holon::data
