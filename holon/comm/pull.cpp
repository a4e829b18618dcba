#include "holon/comm/pull.h"

#include "holon/base/index.h"
#include "holon/base/small_vec.h"
#include "holon/kernels/regions.h"

namespace holon::comm {

void pull_all(std::span<const Pull> pulls, DType dtype, std::span<const std::byte* const> parts, std::byte* dst,
              const Dims& dst_strides, size_t dst_bytes) {
  auto item = static_cast<int64_t>(size_bytes(dtype));
  for (auto& pull : pulls) {
    std::byte* to = dst + pull.dst_start * item;
    int64_t start = pull.src_start * item;
    if (pull.owners.size() == 1) {
      const std::byte* from = at_index(parts, pull.owners[0]) + start;
      kernels::copy_region(to, dst_strides, from, pull.src_strides, pull.shape, item, dst_bytes);
      continue;
    }
    SmallVec<const std::byte*, 64> sources;
    for (int owner : pull.owners) sources.push_back(at_index(parts, owner) + start);
    kernels::sum_region(to, dst_strides, sources, pull.src_strides, pull.shape, dtype);
  }
}

}  // namespace holon::comm
