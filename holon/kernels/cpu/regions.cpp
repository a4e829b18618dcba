#include "holon/kernels/regions.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/base/small_vec.h"
#include "holon/kernels/add_n.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/stream.h"
#include "holon/kernels/device.h"

namespace holon::kernels {

namespace {

// The same region with as few axes as its strides allow; at least one.
struct Region {
  Dims shape, a, b;
  Region(const Dims& s, const Dims& as, const Dims& bs) {
    for (int i = 0; i < s.size(); ++i) {
      if (s[i] == 1) continue;
      if (!shape.empty() && a.back() == as[i] * s[i] && b.back() == bs[i] * s[i]) {
        shape.back() *= s[i];
        a.back() = as[i];
        b.back() = bs[i];
      } else {
        shape.push_back(s[i]);
        a.push_back(as[i]);
        b.push_back(bs[i]);
      }
    }
    if (shape.empty()) shape = a = b = {1};
  }
};

// Calls f(offset in a, offset in b) for every row, that is for every place along all axes but the last.
template <class F>
void for_each_row(const Region& region, F&& f) {
  int axes = region.shape.size() - 1;
  Dims at = Dims::filled(axes, 0);
  int64_t a = 0, b = 0;
  while (true) {
    f(a, b);
    int i = axes - 1;
    for (; i >= 0; --i) {
      a += region.a[i];
      b += region.b[i];
      if (++at[i] < region.shape[i]) break;
      a -= region.a[i] * region.shape[i];
      b -= region.b[i] * region.shape[i];
      at[i] = 0;
    }
    if (i < 0) return;
  }
}

// Up to this much one thread copies, without asking for others.
constexpr int64_t kSmallBytes = 256 << 10;
// Of a shorter row too little is in whole lines.
constexpr size_t kStreamedRow = 1024;

}  // namespace

void copy_region(std::byte* dst, const Dims& dst_strides, const std::byte* src, const Dims& src_strides,
                 const Dims& shape, int64_t item_bytes, size_t whole_bytes) {
  const int64_t bytes = shape.numel() * item_bytes;
  if (bytes == 0) return;
  Region region(shape, dst_strides, src_strides);
  const auto row = to_size(region.shape.back() * item_bytes);
  const bool rows = region.a.back() == 1 && region.b.back() == 1;
  const bool stream = std::max(to_size(bytes), whole_bytes) >= kStreamCopyBytes && row >= kStreamedRow;
  if (rows && region.shape.size() == 1) return copy_bytes(dst, src, row, whole_bytes);
  if (rows && (bytes <= kSmallBytes || (stream && num_threads() == 1))) {
    for_each_row(region, [&](int64_t to, int64_t from) {
      if (stream)
        stream_bytes(dst + to * item_bytes, src + from * item_bytes, row);
      else
        std::memcpy(dst + to * item_bytes, src + from * item_bytes, row);
    });
    if (stream) stream_fence();
    return;
  }
  Dims to = region.a, from = region.b;
  for (int64_t& s : to) s *= item_bytes;
  for (int64_t& s : from) s *= item_bytes;
  copy_bytes_strided(dst, to, src, from, region.shape, to_size(item_bytes));
}

void sum_region(std::byte* dst, const Dims& dst_strides, std::span<const std::byte* const> src, const Dims& src_strides,
                const Dims& shape, DType dtype) {
  if (shape.numel() == 0) return;
  auto item = static_cast<int64_t>(size_bytes(dtype));
  Region region(shape, dst_strides, src_strides);
  if (region.a.back() != 1 || region.b.back() != 1) {
    // The axis with elements side by side has a single one and was left out.
    region.shape.push_back(1);
    region.a.push_back(1);
    region.b.push_back(1);
  }
  const int64_t row = region.shape.back();
  SmallVec<const void*, 64> at(src.size());
  // Short rows are packed, so that one sum serves many of them.
  alignas(64) std::byte packed[32 << 10];
  int64_t targets[1024];
  const int64_t room =
      std::min<int64_t>(1024, static_cast<int64_t>(sizeof packed / (src.size() + 1)) / item) / row * row;
  if (row >= 64 || region.shape.size() == 1 || room == 0) {
    for_each_row(region, [&](int64_t to, int64_t from) {
      for (size_t k = 0; k < src.size(); ++k) at[k] = src[k] + from * item;
      add_n(dst + to * item, at, row, dtype);
    });
    return;
  }
  auto pack = [&](size_t k) { return packed + static_cast<int64_t>(k) * room * item; };
  const auto bytes = to_size(row * item);
  int64_t rows = 0;
  auto flush = [&] {
    for (size_t k = 0; k < src.size(); ++k) at[k] = pack(k);
    add_n(pack(src.size()), at, rows * row, dtype);
    for (int64_t r = 0; r < rows; ++r) std::memcpy(dst + targets[r] * item, pack(src.size()) + r * row * item, bytes);
    rows = 0;
  };
  for_each_row(region, [&](int64_t to, int64_t from) {
    for (size_t k = 0; k < src.size(); ++k) std::memcpy(pack(k) + rows * row * item, src[k] + from * item, bytes);
    targets[rows++] = to;
    if (rows * row == room) flush();
  });
  if (rows > 0) flush();
}

void sum_arrays(std::span<const Array* const> parts, Array& out) {
  if (out.numel() == 0) return;
  HOLON_ON_DEVICE(out, sum_arrays, parts, out);
  std::vector<Array> packed;
  SmallVec<const std::byte*, 64> sources;
  for (const Array* part : parts) {
    packed.push_back(contiguous(*part));
    sources.push_back(packed.back().bytes());
  }
  const Array result = out.is_contiguous() ? out : Array::empty(out.shape, out.dtype);
  sum_region(result.bytes(), result.strides, sources, contiguous_strides(out.shape), out.shape, out.dtype);
  if (!out.is_contiguous()) copy(result, out);
}

}  // namespace holon::kernels
