#include "holon/global/slice.h"

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/global/region_at.h"

namespace holon {

Region region_of(const Dims& logical, const Placement& placement, const NdSbp& nd_sbp, int index) {
  return region_at(logical, placement.hierarchy(), {nd_sbp.begin(), nd_sbp.end()}, placement.coordinate(index));
}

Region region_at(const Dims& logical, const Dims& hierarchy, std::span<const Sbp> nd_sbp, const Dims& coordinate) {
  Region s{Dims::filled(logical.size(), 0), logical};
  for (int i = 0; i < static_cast<int>(nd_sbp.size()); ++i) {
    const Sbp sbp = at_index(nd_sbp, i);
    if (!sbp.is_split()) continue;
    int axis = sbp.axis;
    Interval piece = balanced_split(s.shape[axis], hierarchy[i], coordinate[i]);
    s.offset[axis] += piece.begin;
    s.shape[axis] = piece.size;
  }
  return s;
}

void check_nd_sbp(const Dims& shape, const Placement& placement, const NdSbp& nd_sbp, const char* op) {
  int axes = placement.hierarchy().size();
  if (nd_sbp.size() != axes)
    fail_layout("{}: {} sbp for {}, whose hierarchy has {} {}. Give one sbp per axis of the hierarchy.", op,
                nd_sbp.size(), placement, axes, axes == 1 ? "axis" : "axes");
  for (Sbp s : nd_sbp)
    if (s.is_split() && s.axis >= shape.size())
      fail_runtime("{}: Split axis out of range (expected to be in range of [0, {}), but got {}!) for shape {}.{}", op,
                   shape.size(), static_cast<int>(s.axis), shape,
                   shape.empty() ? " A tensor without axes cannot be split: use broadcast or partial_sum." : "");
}

}  // namespace holon
