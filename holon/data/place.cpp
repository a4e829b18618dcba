#include "holon/data/place.h"

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/global/slice.h"
#include "holon/kernels/on_device.h"
#include "holon/ops.h"

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
  Slice slice = slice_of({size}, placement, rows, index);
  return {slice.offset[0], slice.shape[0]};
}

Tensor join_rows(const Tensor& rows, int64_t size, const Placement& placement, const NdSbp& nd_sbp) {
  if (rows.is_global()) fail_type("a loaded batch is local; found a global tensor {}.", rows.shape());
  if (rows.ndim() == 0) fail_value("a loaded batch has rows; found a tensor without axes.");
  auto [first, count] = part_rows(size, placement, nd_sbp);
  Dims shape = rows.shape();
  shape[0] = size;
  check_nd_sbp(shape, placement, nd_sbp, "a batch");
  if (count > 0 && rows.shape()[0] != count)
    fail_value("this rank's part of a batch has {} rows; found {}.", count, rows.shape());
  NoGradGuard guard;
  Array part;
  int index = placement.index_of(Context::current().rank());
  if (index >= 0) {
    Slice slice = slice_of(shape, placement, nd_sbp, index);
    Tensor mine = rows.detach();
    if (count == 0) mine = narrow(mine, 0, 0, 0);
    for (int a = 1; a < rows.ndim(); ++a)
      if (slice.shape[a] != shape[a]) mine = narrow(mine, a, slice.offset[a], slice.shape[a]);
    part = kernels::on_device(contiguous(mine).array(), placement.device());
  }
  return Tensor::global(std::move(part), shape, rows.dtype(), intern_spec(placement, nd_sbp));
}

Tensor pinned(const Tensor& t) { return t.impl()->device.is_cuda() ? t : pin_memory(t); }

}  // namespace holon::data
