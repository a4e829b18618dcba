#include "holon/checkpoint/core/pieces.h"

#include <algorithm>

namespace holon::checkpoint {

void for_each_piece(const Region& region, size_t item_bytes, int64_t bytes,
                    const std::function<void(const Region& piece)>& f) {
  const int n = region.shape.size();
  if (region.shape.numel() == 0) return;
  // Along the axes before `axis` one index at a time, along it as many as fit, and of those behind it all.
  int axis = 0;
  int64_t inner = region.shape.numel() * static_cast<int64_t>(item_bytes);
  while (axis < n && inner > bytes) inner /= region.shape[axis++];
  if (axis-- == 0) return f(region);
  const int64_t step = std::max<int64_t>(1, bytes / inner);
  Region piece = region;
  for (int a = 0; a < axis; ++a) piece.shape[a] = 1;
  while (true) {
    for (int64_t at = 0; at < region.shape[axis]; at += step) {
      piece.offset[axis] = region.offset[axis] + at;
      piece.shape[axis] = std::min(step, region.shape[axis] - at);
      f(piece);
    }
    int a = axis - 1;
    for (; a >= 0; --a) {
      if (++piece.offset[a] < region.offset[a] + region.shape[a]) break;
      piece.offset[a] = region.offset[a];
    }
    if (a < 0) return;
  }
}

Region whole(const Dims& shape) { return {Dims::filled(shape.size(), 0), shape}; }

Array region_in(const Array& array, const Region& held, const Region& part) {
  int64_t offset = 0;
  for (int a = 0; a < part.shape.size(); ++a) offset += (part.offset[a] - held.offset[a]) * array.strides[a];
  return array.view(part.shape, array.strides, offset);
}

std::optional<Region> overlap_of(const Region& a, const Region& b) {
  Region out = a;
  for (int d = 0; d < a.shape.size(); ++d) {
    const int64_t end = std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]);
    out.offset[d] = std::max(a.offset[d], b.offset[d]);
    out.shape[d] = end - out.offset[d];
    if (out.shape[d] <= 0) return std::nullopt;
  }
  return out;
}

}  // namespace holon::checkpoint
