#include "holon/data/place.h"

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/global/slice.h"
#include "holon/kernels/on_device.h"
#include "holon/ops/cast.h"

namespace holon::data {

std::pair<int64_t, int64_t> part_rows(int64_t size, const Placement& placement, const NdSbp& nd_sbp) {
  // Splits along other axes have no say in the rows.
  NdSbp rows = nd_sbp;
  for (int d = 0; d < rows.size(); ++d) {
    if (rows[d].is_partial())
      fail_value("a batch cannot be loaded as a partial sum {}. Split or broadcast it.", nd_sbp);
    if (rows[d].is_split() && rows[d].axis != 0) rows = rows.with(d, sbp::broadcast());
  }
  check_nd_sbp({size}, placement, rows, "a batch");
  int index = placement.index_of(Context::current().rank());
  if (index < 0) return {0, 0};
  Region slice = region_of({size}, placement, rows, index);
  return {slice.offset[0], slice.shape[0]};
}

Tensor pinned(const Tensor& t) { return t.impl()->device.is_host() ? pin_memory(t) : t; }

}  // namespace holon::data
