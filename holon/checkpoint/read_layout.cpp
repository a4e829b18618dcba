#include "holon/checkpoint/read_layout.h"

#include <algorithm>

#include "holon/base/index.h"
#include "holon/checkpoint/safetensors.h"

namespace holon::checkpoint {

namespace {

constexpr uint64_t kLeast = uint64_t{1} << 20;  // smaller tensors are read where they are needed
constexpr double kMostExcess = 1.04;            // of the bytes that are needed

bool repeats(const GlobalSpec& spec) {
  for (int a = 0; a < spec.nd_sbp.size(); ++a)
    if (!spec.nd_sbp[a].is_split() && spec.placement.hierarchy()[a] > 1) return true;
  return false;
}

// How many bytes are read for a region, as whole blocks have a checksum.
double bytes_to_read(const Region& wanted, std::span<const Region> parts, DType dtype) {
  double sum = 0;
  for (auto& part : parts) {
    int64_t runs = 1, run = static_cast<int64_t>(size_bytes(dtype));
    bool whole = true;  // behind this axis
    bool none = false;
    for (int a = part.shape.size() - 1; a >= 0; --a) {
      const int64_t begin = std::max(wanted.offset[a], part.offset[a]);
      const int64_t end = std::min(wanted.offset[a] + wanted.shape[a], part.offset[a] + part.shape[a]);
      none |= begin >= end;
      (whole ? run : runs) *= end - begin;
      whole &= end - begin == part.shape[a];
    }
    if (none) continue;
    const double all = static_cast<double>(part.shape.numel()) * static_cast<double>(size_bytes(dtype));
    const double blocks = static_cast<double>(runs) * (static_cast<double>(run) + static_cast<double>(kBlockBytes));
    sum += whole ? all : std::min(all, blocks);
  }
  return sum;
}

bool reads_little_else(const GlobalSpec& spec, const Dims& shape, DType dtype, std::span<const Region> parts) {
  const Region first = region_of(shape, spec.placement, spec.nd_sbp, 0);
  const double needed = static_cast<double>(first.shape.numel()) * static_cast<double>(size_bytes(dtype));
  return bytes_to_read(first, parts, dtype) <= std::max(kMostExcess * needed, needed + 2.0 * kBlockBytes);
}

}  // namespace

const GlobalSpec* layout_to_read(const GlobalSpec* target, const Dims& shape, DType dtype,
                                 std::span<const Region> parts) {
  const Placement& p = target->placement;
  if (p.size() == 1 || to_size(shape.numel()) * size_bytes(dtype) < kLeast) return target;
  if (!repeats(*target) && reads_little_else(*target, shape, dtype, parts)) return target;
  for (int a = 0; a < shape.size(); ++a) {
    if (shape[a] < p.size()) continue;
    const GlobalSpec split{p, NdSbp::filled(p.hierarchy().size(), sbp::split(a))};
    if (reads_little_else(split, shape, dtype, parts)) return intern_spec(split.placement, split.nd_sbp);
  }
  return target;
}

}  // namespace holon::checkpoint
