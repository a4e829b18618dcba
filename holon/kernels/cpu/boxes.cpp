#include "holon/kernels/cpu/boxes.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "holon/base/parallel.h"
#include "holon/base/small_vec.h"
#include "holon/kernels/cpu/add_n.h"
#include "holon/kernels/cpu/copy.h"
#include "holon/kernels/cpu/stream.h"

namespace holon::kernels {

namespace {

// The same box with as few axes as its strides allow; at least one.
struct Box {
  Dims shape, a, b;
  Box(const Dims& s, const Dims& as, const Dims& bs) {
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
void for_each_row(const Box& box, F&& f) {
  int axes = box.shape.size() - 1;
  Dims at = Dims::filled(axes, 0);
  int64_t a = 0, b = 0;
  while (true) {
    f(a, b);
    int i = axes - 1;
    for (; i >= 0; --i) {
      a += box.a[i];
      b += box.b[i];
      if (++at[i] < box.shape[i]) break;
      a -= box.a[i] * box.shape[i];
      b -= box.b[i] * box.shape[i];
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

void copy_box(std::byte* dst, const Dims& dst_strides, const std::byte* src, const Dims& src_strides, const Dims& shape,
              int64_t item_bytes, size_t whole_bytes) {
  const int64_t bytes = shape.numel() * item_bytes;
  if (bytes == 0) return;
  Box box(shape, dst_strides, src_strides);
  const auto row = static_cast<size_t>(box.shape.back() * item_bytes);
  const bool rows = box.a.back() == 1 && box.b.back() == 1;
  const bool stream = std::max(static_cast<size_t>(bytes), whole_bytes) >= kStreamCopyBytes && row >= kStreamedRow;
  if (rows && box.shape.size() == 1) return copy_bytes(dst, src, row, whole_bytes);
  if (rows && (bytes <= kSmallBytes || (stream && num_threads() == 1))) {
    for_each_row(box, [&](int64_t to, int64_t from) {
      if (stream)
        stream_bytes(dst + to * item_bytes, src + from * item_bytes, row);
      else
        std::memcpy(dst + to * item_bytes, src + from * item_bytes, row);
    });
    if (stream) stream_fence();
    return;
  }
  Dims to = box.a, from = box.b;
  for (int64_t& s : to) s *= item_bytes;
  for (int64_t& s : from) s *= item_bytes;
  copy_bytes_strided(dst, to, src, from, box.shape, static_cast<size_t>(item_bytes));
}

void sum_box(std::byte* dst, const Dims& dst_strides, std::span<const std::byte* const> src, const Dims& src_strides,
             const Dims& shape, DType dtype) {
  if (shape.numel() == 0) return;
  auto item = static_cast<int64_t>(size_bytes(dtype));
  Box box(shape, dst_strides, src_strides);
  if (box.a.back() != 1 || box.b.back() != 1) {
    // The axis with elements side by side has a single one and was left out.
    box.shape.push_back(1);
    box.a.push_back(1);
    box.b.push_back(1);
  }
  int64_t row = box.shape.back();
  SmallVec<const void*, 16> at(src.size());
  if (row >= 64 || box.shape.size() == 1) {
    for_each_row(box, [&](int64_t to, int64_t from) {
      for (size_t k = 0; k < src.size(); ++k) at[k] = src[k] + from * item;
      add_n(dst + to * item, at, row, dtype);
    });
    return;
  }
  // Short rows are packed, so that one sum serves many of them.
  int64_t room = std::max<int64_t>(1, 1024 / row) * row;
  std::vector<std::byte> packed(static_cast<size_t>(room * item) * (src.size() + 1));
  auto pack = [&](size_t k) { return packed.data() + static_cast<int64_t>(k) * room * item; };
  std::vector<int64_t> targets;
  auto bytes = static_cast<size_t>(row * item);
  auto flush = [&] {
    auto rows = static_cast<int64_t>(targets.size());
    for (size_t k = 0; k < src.size(); ++k) at[k] = pack(k);
    add_n(pack(src.size()), at, rows * row, dtype);
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(dst + targets[static_cast<size_t>(r)] * item, pack(src.size()) + r * row * item, bytes);
    targets.clear();
  };
  for_each_row(box, [&](int64_t to, int64_t from) {
    auto r = static_cast<int64_t>(targets.size());
    for (size_t k = 0; k < src.size(); ++k) std::memcpy(pack(k) + r * row * item, src[k] + from * item, bytes);
    targets.push_back(to);
    if ((r + 1) * row == room) flush();
  });
  if (!targets.empty()) flush();
}

}  // namespace holon::kernels
