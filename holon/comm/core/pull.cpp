#include "holon/comm/core/pull.h"

#include <algorithm>

#include "holon/base/index.h"
#include "holon/base/small_vec.h"
#include "holon/kernels/add_n.h"
#include "holon/kernels/cpu/stream.h"
#include "holon/kernels/regions.h"

namespace holon::comm {

int64_t GroupPulls::elements_read(int me) const {
  int64_t elements = 0;
  for (int phase = 0; phase < phases(); ++phase)
    for (const Pull& pull : mine(phase)) {
      const auto own = std::count(pull.owners.begin(), pull.owners.end(), me);
      elements += (static_cast<int64_t>(pull.owners.size()) - own) * pull.shape.numel();
    }
  return elements;
}

void GroupPulls::run(int phase, DType dtype, std::span<const std::byte* const> parts, std::byte* dst,
                     size_t dst_bytes) const {
  pull_all(mine(phase), dtype, parts, dst, dst_bytes);
}

namespace {

bool is_row(const Pull& p) { return p.shape.size() == 1 && p.src_strides[0] == 1 && p.dst_strides[0] == 1; }

}  // namespace

void pull_all(std::span<const Pull> pulls, DType dtype, std::span<const std::byte* const> parts, std::byte* dst,
              size_t dst_bytes) {
  const auto item = static_cast<int64_t>(size_bytes(dtype));
  for (const Pull& pull : pulls) {
    std::byte* to = dst + pull.dst_start * item;
    const int64_t start = pull.src_start * item;
    const bool row = is_row(pull);
    if (pull.owners.size() == 1) {
      const std::byte* from = at_index(parts, pull.owners[0]) + start;
      if (to == from && pull.dst_strides == pull.src_strides) continue;  // gathered in place
      if (row) {
        kernels::copy_bytes(to, from, to_size(pull.shape[0] * item), dst_bytes);
        continue;
      }
      kernels::copy_region(to, pull.dst_strides, from, pull.src_strides, pull.shape, item, dst_bytes);
      continue;
    }
    if (row) {
      SmallVec<const void*, 64> rows;
      for (int owner : pull.owners) rows.push_back(at_index(parts, owner) + start);
      kernels::add_n(to, rows, pull.shape[0], dtype);
      continue;
    }
    SmallVec<const std::byte*, 64> sources;
    for (int owner : pull.owners) sources.push_back(at_index(parts, owner) + start);
    kernels::sum_region(to, pull.dst_strides, sources, pull.src_strides, pull.shape, dtype);
  }
}

}  // namespace holon::comm
