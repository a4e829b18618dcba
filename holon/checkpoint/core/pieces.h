// Regions in pieces that are next to each other in memory, so that tensors of any size take little of it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "holon/array/array.h"
#include "holon/global/slice.h"
#include "holon/global/spec.h"

namespace holon::checkpoint {

// Calls f for pieces of a region, in row-major order, each of at most `bytes` bytes (one element at least) and one
// stretch of a row-major array of that region. Not for empty regions.
void for_each_piece(const Region& region, size_t item_bytes, int64_t bytes,
                    const std::function<void(const Region& piece)>& f);

// The region of a whole tensor.
Region whole(const Dims& shape);

// The part of `array`, which is the region `held` of a tensor, that is another region of it. Pre: it is inside.
Array region_in(const Array& array, const Region& held, const Region& part);

// What two regions of one tensor have in common; nothing if that is empty.
std::optional<Region> overlap_of(const Region& a, const Region& b);

// A tensor to be written, of which this process provides regions.
struct Weight {
  std::string name;
  DType dtype = DType::kFloat32;
  Dims shape;
  const GlobalSpec* spec = nullptr;  // nullptr: local
  std::function<Array(const Region& region)> read;
};

}  // namespace holon::checkpoint
