// How a kernel goes through several arrays of one shape: in packs of neighbours where all of them allow it, else
// element by element.
#pragma once

#include <algorithm>

#include "holon/kernels/cuda/strides.h"

namespace holon::kernels::cuda {

// An array that takes part, with the strides of the shape that is gone through (broadcast_strides). No data: it is not
// read.
struct Part {
  const void* data;
  Dims strides;
  size_t size;  // of an element in bytes
};
inline Part part_of(const Array& a, const Dims& shape) {
  return {a.bytes(), broadcast_strides(a, shape), size_bytes(a.dtype)};
}

template <int kArrays>
struct Layout {
  Strided<kArrays> index;  // of elements, or of packs where there are several rows of them
  bool flat = false;       // one row: pack u is at u * width
  bool repeated[kArrays];  // in packs: one element for all of a pack
  int64_t count = 0;       // elements
  int64_t packs = 0;       // these are gone through first
  int64_t rest = 0;        // the first element that is not in a pack

  using At = typename Strided<kArrays>::At;
  HOLON_BOTH At at_pack(int64_t u, int width) const {
    if (!flat) return index.at(u);
    At p;
    for (int k = 0; k < kArrays; ++k) p.v[k] = repeated[k] ? 0 : u * width;
    return p;
  }

  Layout() = default;
  // width: of a pack. parts[0] is written: its order of the axes is followed.
  Layout(const Dims& shape, const Part (&parts)[kArrays], int width) : count(shape.numel()) {
    if (count == 0) return;
    int order[kMaxAxes], n = 0;
    for (int i = 0; i < shape.size(); ++i)
      if (shape[i] != 1) order[n++] = i;
    std::stable_sort(order, order + n, [&](int a, int b) { return parts[0].strides[a] > parts[0].strides[b]; });
    Dims sizes = Dims::filled(n, 1), strides[kArrays];
    for (int k = 0; k < kArrays; ++k) {
      strides[k] = Dims::filled(n, 0);
      for (int i = 0; i < n; ++i) strides[k][i] = parts[k].strides[order[i]];
    }
    for (int i = 0; i < n; ++i) sizes[i] = shape[order[i]];
    index = Strided<kArrays>(sizes, strides);
    flat = index.axes <= 1;
    bool whole = true;
    for (int k = 0; k < kArrays; ++k) {
      repeated[k] = index.axes == 0 ? k > 0 : index.stride[0][k] == 0;
      if (repeated[k] && k > 0) continue;
      whole &= index.axes == 0 || index.stride[0][k] == 1;
      whole &= reinterpret_cast<uintptr_t>(parts[k].data) % (parts[k].size * static_cast<size_t>(width)) == 0;
      for (int a = 1; a < index.axes; ++a) whole &= index.stride[a][k] % width == 0;
    }
    if (!whole || (!flat && index.size[0] % width != 0)) {
      flat = false;
      return;
    }
    packs = count / width;
    rest = packs * width;
    if (flat) return;
    // The last axis in packs.
    Dims pack_sizes = Dims::filled(index.axes, 1), pack_strides[kArrays];
    for (int k = 0; k < kArrays; ++k) pack_strides[k] = Dims::filled(index.axes, 0);
    for (int a = 0; a < index.axes; ++a) {
      const int i = index.axes - 1 - a;
      pack_sizes[i] = a == 0 ? index.size[a] / width : index.size[a];
      for (int k = 0; k < kArrays; ++k) pack_strides[k][i] = a == 0 ? index.stride[a][k] * width : index.stride[a][k];
    }
    index = Strided<kArrays>(pack_sizes, pack_strides);
  }
};

}  // namespace holon::kernels::cuda
