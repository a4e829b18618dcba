#include "holon/checkpoint/core/read_layout.h"

#include <algorithm>
#include <cmath>

#include "holon/base/index.h"

namespace holon::checkpoint {

namespace {

constexpr uint64_t kLeast = uint64_t{1} << 20;  // smaller tensors are read where they are needed
constexpr int kMostLookedAt = 16;               // ranks
constexpr double kMostExcess = 1.02;            // bytes that are read for each that is needed

bool repeats(const GlobalSpec& spec) {
  for (int a = 0; a < spec.nd_sbp.size(); ++a)
    if (!spec.nd_sbp[a].is_split() && spec.placement.hierarchy()[a] > 1) return true;
  return false;
}

// How many bytes are read for a region.
double bytes_to_read(const Region& wanted, const StoredParts& stored, DType dtype) {
  double sum = 0;
  for (auto& part : stored.regions) {
    int64_t runs = 1, run = static_cast<int64_t>(size_bytes(dtype));
    bool whole = true;  // behind this axis
    bool none = false;
    for (size_t i = stored.axis_order.size(); i-- > 0;) {
      const int a = stored.axis_order[i];
      const int64_t begin = std::max(wanted.offset[a], part.offset[a]);
      const int64_t end = std::min(wanted.offset[a] + wanted.shape[a], part.offset[a] + part.shape[a]);
      none |= begin >= end;
      (whole ? run : runs) *= end - begin;
      whole &= end - begin == part.shape[a];
    }
    if (none) continue;
    const double all = static_cast<double>(part.shape.numel()) * static_cast<double>(size_bytes(dtype));
    const double blocks =
        static_cast<double>(runs) * (static_cast<double>(run) + static_cast<double>(stored.block_bytes));
    sum += whole ? all : std::min(all, blocks);
  }
  return sum;
}

// How many bytes are read for each that is needed, by some of the ranks. What one block of each adds counts for
// nothing.
double excess(const GlobalSpec& spec, const Dims& shape, DType dtype, const StoredParts& stored) {
  const int n = spec.placement.size(), every = (n + kMostLookedAt - 1) / kMostLookedAt;
  double read = 0, needed = 0;
  for (int i = 0; i < n; i += every) {
    const Region region = region_of(shape, spec.placement, spec.nd_sbp, i);
    needed += static_cast<double>(region.shape.numel()) * static_cast<double>(size_bytes(dtype));
    read += bytes_to_read(region, stored, dtype) - static_cast<double>(stored.block_bytes);
  }
  return read / needed;
}

}  // namespace

const GlobalSpec* layout_to_read(const GlobalSpec* target, const Dims& shape, DType dtype, const StoredParts& stored) {
  const Placement& p = target->placement;
  if (p.size() == 1 || to_size(shape.numel()) * size_bytes(dtype) < kLeast) return target;
  const GlobalSpec* best = target;
  double least = repeats(*target) ? INFINITY : excess(*target, shape, dtype, stored);
  for (int a = 0; a < shape.size() && least > kMostExcess; ++a) {
    if (shape[a] < p.size()) continue;
    const GlobalSpec split{p, NdSbp::filled(p.hierarchy().size(), sbp::split(a))};
    const double found = excess(split, shape, dtype, stored);
    if (found >= least) continue;
    least = found;
    best = intern_spec(split.placement, split.nd_sbp);
  }
  return best;
}

}  // namespace holon::checkpoint
