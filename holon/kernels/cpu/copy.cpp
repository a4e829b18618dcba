#include "holon/kernels/copy.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/device.h"

namespace holon::kernels {

namespace {

constexpr int64_t kBytesPerThread = 256 << 10;
constexpr int64_t kTile = 64;
static_assert(std::extent_v<decltype(Table::convert)> == kDTypeCount);

// One vector of 16 bytes, which every x86-64 has; n of them hold a block of n x n elements.
template <class T>
struct Block {
  typedef T V __attribute__((vector_size(16)));
  static constexpr int n = 16 / sizeof(T);
};

template <class V, int... i>
inline V interleave_low(V a, V b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(a, b, (i / 2 + i % 2 * static_cast<int>(sizeof...(i)))...);
}
template <class V, int... i>
inline V interleave_high(V a, V b, std::integer_sequence<int, i...>) {
  constexpr int n = sizeof...(i);
  return __builtin_shufflevector(a, b, (n / 2 + i / 2 + i % 2 * n)...);
}

// Transposes a block: interleaving the vectors k and k + n / 2 once for each bit of n moves row bits to column bits.
template <class T>
inline void transpose_block(const std::byte* src, int64_t src_stride, T* dst, int64_t dst_stride) {
  using V = typename Block<T>::V;
  constexpr int n = Block<T>::n;
  using Index = std::make_integer_sequence<int, n>;
  V rows[n], next[n];
  for (int k = 0; k < n; ++k) std::memcpy(&rows[k], src + k * src_stride, 16);
  for (int bit = 1; bit < n; bit *= 2) {
    for (int k = 0; k < n / 2; ++k) {
      next[2 * k] = interleave_low(rows[k], rows[k + n / 2], Index());
      next[2 * k + 1] = interleave_high(rows[k], rows[k + n / 2], Index());
    }
    for (int k = 0; k < n; ++k) rows[k] = next[k];
  }
  for (int k = 0; k < n; ++k) std::memcpy(dst + k * dst_stride, &rows[k], 16);
}

// dst[i][j] = src[j][i] for i < rows, j < cols; both have elements side by side along their last axis. A tile goes
// through a buffer, so that both sides are touched by whole runs of cache lines, whatever their strides.
template <class T>
void transpose(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride, int64_t rows,
               int64_t cols) {
  constexpr int64_t size = sizeof(T), n = Block<T>::n, tile_size = size == 8 ? kTile / 2 : kTile;
  alignas(64) T tile[tile_size][tile_size];
  for (int64_t j0 = 0; j0 < cols; j0 += tile_size) {
    const int64_t k = std::min(tile_size, cols - j0), k_blocks = k / n * n;
    for (int64_t i0 = 0; i0 < rows; i0 += tile_size) {
      const int64_t m = std::min(tile_size, rows - i0), m_blocks = m / n * n;
      const std::byte* from = src + j0 * src_stride + i0 * size;
      std::byte* to = dst + i0 * dst_stride + j0 * size;
      auto one = [&](int64_t i, int64_t j) { std::memcpy(&tile[i][j], from + j * src_stride + i * size, sizeof(T)); };
      for (int64_t j = 0; j < k_blocks; j += n) {
        for (int64_t i = 0; i < m_blocks; i += n)
          transpose_block(from + j * src_stride + i * size, src_stride, &tile[i][j], tile_size);
        for (int64_t i = m_blocks; i < m; ++i)
          for (int64_t l = j; l < j + n; ++l) one(i, l);
      }
      for (int64_t j = k_blocks; j < k; ++j)
        for (int64_t i = 0; i < m; ++i) one(i, j);
      for (int64_t i = 0; i < m; ++i) std::memcpy(to + i * dst_stride, tile[i], to_size(k * size));
    }
  }
}

template <class T>
void strided_row(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride, int64_t n) {
  if (src_stride == 0 && dst_stride == static_cast<int64_t>(sizeof(T))) {
    gather_elements(src, 0, sizeof(T), dst, n);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    T v;
    std::memcpy(&v, src + i * src_stride, sizeof v);
    std::memcpy(dst + i * dst_stride, &v, sizeof v);
  }
}

struct StridedCopy {
  std::byte* dst;
  const std::byte* src;
  LoopAxes axes;  // operand 0: dst, 1: src
  int64_t itemsize;
  int inner = 1;       // axes that one call of piece() covers
  bool rows_of_bytes;  // the last axis is contiguous on both sides

  StridedCopy(std::byte* d, const std::byte* s, LoopAxes a, int64_t size) : dst(d), src(s), axes(a), itemsize(size) {
    const int last = axes.n - 1;
    rows_of_bytes = axes.strides[last][0] == itemsize && axes.strides[last][1] == itemsize;
    if (axes.numel() == 1) rows_of_bytes = true;
    if (rows_of_bytes || axes.strides[last][0] != itemsize || itemsize > 8 || (itemsize & (itemsize - 1)) != 0) return;
    // A transposition: the source is contiguous along another axis, which moves next to the last.
    for (int i = last - 1; i >= 0; --i) {
      if (axes.strides[i][1] != itemsize || axes.shape[i] < 4 || axes.shape[last] < 4) continue;
      std::rotate(axes.shape + i, axes.shape + i + 1, axes.shape + last);
      for (int k = i; k + 1 < last; ++k)
        for (int o = 0; o < 2; ++o) std::swap(axes.strides[k][o], axes.strides[k + 1][o]);
      inner = 2;
      break;
    }
  }

  int64_t pieces() const {
    int64_t n = 1;
    for (int i = 0; i < axes.n - inner; ++i) n *= axes.shape[i];
    return n;
  }

  // The part [begin, end) of the first inner axis of the piece at the given offsets.
  void piece(std::byte* d, const std::byte* s, int64_t begin, int64_t end) const {
    const int first = axes.n - inner;
    d += begin * axes.strides[first][0];
    s += begin * axes.strides[first][1];
    const int64_t n = end - begin;
    const int64_t ds = axes.strides[axes.n - 1][0], ss = axes.strides[axes.n - 1][1];
    if (inner == 2) {
      const int64_t row = axes.strides[first][0], cols = axes.shape[axes.n - 1];
      switch (itemsize) {
        case 1: return transpose<uint8_t>(d, row, s, ss, n, cols);
        case 2: return transpose<uint16_t>(d, row, s, ss, n, cols);
        case 4: return transpose<uint32_t>(d, row, s, ss, n, cols);
        default: return transpose<uint64_t>(d, row, s, ss, n, cols);
      }
    }
    if (rows_of_bytes) {
      std::memcpy(d, s, to_size(n * itemsize));
      return;
    }
    switch (itemsize) {
      case 1: return strided_row<uint8_t>(d, ds, s, ss, n);
      case 2: return strided_row<uint16_t>(d, ds, s, ss, n);
      case 4: return strided_row<uint32_t>(d, ds, s, ss, n);
      case 8: return strided_row<uint64_t>(d, ds, s, ss, n);
      default:
        for (int64_t i = 0; i < n; ++i) std::memcpy(d + i * ds, s + i * ss, to_size(itemsize));
    }
  }

  // Work items are (piece, index along its first inner axis), numbered through.
  void run(int64_t begin, int64_t end) const {
    const int outer = axes.n - inner;
    const int64_t length = axes.shape[outer];
    int64_t index[kMaxAxes], rest = begin / length, at = begin % length, d = 0, s = 0;
    for (int i = outer - 1; i >= 0; --i) {
      index[i] = rest % axes.shape[i];
      rest /= axes.shape[i];
      d += index[i] * axes.strides[i][0];
      s += index[i] * axes.strides[i][1];
    }
    while (begin < end) {
      const int64_t take = std::min(length - at, end - begin);
      piece(dst + d, src + s, at, at + take);
      begin += take;
      at = 0;
      for (int i = outer - 1; i >= 0; --i) {
        d += axes.strides[i][0];
        s += axes.strides[i][1];
        if (++index[i] < axes.shape[i]) break;
        d -= axes.strides[i][0] * axes.shape[i];
        s -= axes.strides[i][1] * axes.shape[i];
        index[i] = 0;
      }
    }
  }
};

template <size_t kSize>
void copy_row(const void* const* in, void* out, int64_t n, const Number*) {
  std::memmove(out, in[0], to_size(n) * kSize);
}

}  // namespace

void copy_bytes_strided(void* dst, std::span<const int64_t> dst_strides, const void* src,
                        std::span<const int64_t> src_strides, std::span<const int64_t> shape, size_t itemsize) {
  HOLON_CHECK(shape.size() <= kMaxAxes && dst_strides.size() == shape.size() && src_strides.size() == shape.size(),
              "copy: {} axes, {} and {} strides", shape.size(), dst_strides.size(), src_strides.size());
  LoopAxes axes;
  axes.operands = 2;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return;
    const int64_t s[] = {dst_strides[i], src_strides[i]};
    axes.add(shape[i], s);
  }
  axes.simplify();
  const StridedCopy job(static_cast<std::byte*>(dst), static_cast<const std::byte*>(src), axes,
                        static_cast<int64_t>(itemsize));
  const int64_t items = job.pieces() * job.axes.shape[job.axes.n - job.inner];
  const int64_t item_bytes = job.inner == 2 ? job.axes.shape[job.axes.n - 1] * job.itemsize : job.itemsize;
  // Tiles of a transposition should not be cut by threads more than needed.
  const int64_t grain = std::max<int64_t>(kBytesPerThread / item_bytes, job.inner == 2 ? kTile : 1);
  parallel_for(items, grain, [&](int64_t begin, int64_t end) { job.run(begin, end); });
}

void copy(const Array& src, Array& dst) {
  if (!src.device.is_host() || !dst.device.is_host()) [[unlikely]]
    return copy_on_devices(src, dst);
  HOLON_CHECK(src.shape == dst.shape, "copy: the shapes {} and {} differ", src.shape, dst.shape);
  const int64_t n = dst.numel();
  if (n == 0) return;
  const int64_t from = static_cast<int64_t>(size_bytes(src.dtype)), to = static_cast<int64_t>(size_bytes(dst.dtype));
  const bool flat = (src.is_contiguous() && dst.is_contiguous()) || (src.strides == dst.strides && dst.is_dense());
  if (flat) {
    const std::byte* s = src.bytes();
    std::byte* d = dst.bytes();
    ConvertFn convert = table().convert[static_cast<int>(src.dtype)][static_cast<int>(dst.dtype)];
    parallel_for(n, kBytesPerThread / to, [&](int64_t begin, int64_t end) {
      if (src.dtype == dst.dtype)
        std::memcpy(d + begin * to, s + begin * from, to_size((end - begin) * to));
      else
        convert(s + begin * from, d + begin * to, end - begin);
    });
    return;
  }
  if (src.dtype == dst.dtype) {
    Dims ds = dst.strides, ss = src.strides;
    for (int i = 0; i < ds.size(); ++i) {
      ds[i] *= to;
      ss[i] *= to;
    }
    copy_bytes_strided(dst.bytes(), ds, src.bytes(), ss, dst.shape, to_size(to));
    return;
  }
  Loop loop;
  loop.rows = to == 1 ? copy_row<1> : to == 2 ? copy_row<2> : to == 4 ? copy_row<4> : copy_row<8>;
  loop.inputs = 1;
  loop.in[0] = LoopInput(src, dst.dtype);
  loop.out = &dst;
  loop.out_compute = dst.dtype;
  run_loop(loop);
}

Array converted(const Array& a, DType dtype) {
  Array out = Array::empty(a.shape, dtype, a.device);
  copy(a, out);
  return out;
}

Array contiguous(const Array& a) {
  if (a.is_contiguous()) return a;
  Array out = Array::empty(a.shape, a.dtype, a.device);
  copy(a, out);
  return out;
}

void fill(Array& out, Scalar value) {
  HOLON_ON_DEVICE(out, fill, out, value);
  if (out.numel() == 0) return;
  // The value in out's own type, seen as an array with no axes.
  alignas(8) std::byte element[8];
  const Number v = number_of(value);
  if (value.is_float())
    load_elements(reinterpret_cast<const std::byte*>(&v.d), 8, DType::kFloat64, out.dtype, element, 1, nullptr);
  else
    load_elements(reinterpret_cast<const std::byte*>(&v.i), 8, DType::kInt64, out.dtype, element, 1, nullptr);
  Dims ds = out.strides, ss = Dims::filled(out.ndim(), 0);
  for (int i = 0; i < ds.size(); ++i) ds[i] *= static_cast<int64_t>(size_bytes(out.dtype));
  copy_bytes_strided(out.bytes(), ds, element, ss, out.shape, size_bytes(out.dtype));
}

}  // namespace holon::kernels
