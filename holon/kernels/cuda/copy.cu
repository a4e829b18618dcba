// Copies and conversions on a device, and filling.
#include "holon/kernels/copy.h"

#include <algorithm>

#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/layout.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256;

constexpr int kAtOnce = 4;  // packs or elements that a thread has under way

// Packs of neighbours, then the elements from layout.rest on. The array written comes first.
template <class S, class D, int kN>
__global__ void __launch_bounds__(kThreads) copy_packs(const S* src, D* dst, Layout<2> layout) {
  constexpr int64_t tile = int64_t{kThreads} * kAtOnce;
  const bool repeated = layout.repeated[1];
#pragma unroll 1
  for (int64_t first = blockIdx.x * tile + threadIdx.x; first < layout.packs; first += gridDim.x * tile) {
    Pack<S, kN> in[kAtOnce];
    int64_t to[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t u = first + j * kThreads;
      if (u >= layout.packs) continue;
      const auto at = layout.at_pack(u, kN);
      to[j] = at.v[0];
      if (repeated)
        in[j].v[0] = src[at.v[1]];
      else
        in[j] = *reinterpret_cast<const Pack<S, kN>*>(src + at.v[1]);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (first + j * kThreads >= layout.packs) continue;
      Pack<D, kN> out;
#pragma unroll
      for (int k = 0; k < kN; ++k) out.v[k] = convert<D>(repeated ? in[j].v[0] : in[j].v[k]);
      *reinterpret_cast<Pack<D, kN>*>(dst + to[j]) = out;
    }
  }
#pragma unroll 1
  for (int64_t first = layout.rest + blockIdx.x * tile + threadIdx.x; first < layout.count; first += gridDim.x * tile) {
    S in[kAtOnce];
    int64_t to[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (first + j * kThreads >= layout.count) continue;
      const auto at = layout.index.at(first + j * kThreads);
      to[j] = at.v[0];
      in[j] = src[at.v[1]];
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      if (first + j * kThreads < layout.count) dst[to[j]] = convert<D>(in[j]);
  }
}

// For a loop over packs and one over the elements behind them.
template <int kArrays>
unsigned blocks_of(const Layout<kArrays>& l) {
  constexpr int64_t tile = int64_t{kThreads} * kAtOnce;
  return std::max(blocks_for(l.packs, tile), blocks_for(l.count - l.rest, tile));
}

// Where src's neighbours are not dst's: squares of both go through shared memory, so that reads and writes are of
// neighbours.
struct Transposition {
  static constexpr int kTile = 32;
  int64_t rows = 0, columns = 0;             // along dst's neighbours and along src's
  int64_t src_step = 0, dst_step = 0;        // of src to its next row, of dst to its next column
  int64_t row_tiles = 0, column_tiles = 0;
  Strided<2> outer;                          // of the other axes

  // Whether it is one, and worth its squares.
  static bool make(const Strided<2>& index, Transposition* t) {
    int row = -1, column = -1;
    for (int a = 0; a < index.axes; ++a) {
      if (index.stride[a][1] == 1) row = a;
      if (index.stride[a][0] == 1) column = a;
    }
    if (row < 0 || column < 0 || row == column || index.size[row] < kTile / 4 || index.size[column] < kTile / 4)
      return false;
    t->rows = index.size[row], t->columns = index.size[column];
    t->src_step = index.stride[row][0], t->dst_step = index.stride[column][1];
    t->row_tiles = (t->rows + kTile - 1) / kTile, t->column_tiles = (t->columns + kTile - 1) / kTile;
    Dims shape, strides[2];
    for (int a = index.axes - 1; a >= 0; --a) {
      if (a == row || a == column) continue;
      shape.push_back(index.size[a]);
      for (int k = 0; k < 2; ++k) strides[k].push_back(index.stride[a][k]);
    }
    t->outer = Strided<2>(shape, strides);
    return true;
  }
  int64_t tiles() const { return outer.count * row_tiles * column_tiles; }
};

template <class T>
__global__ void copy_transposed(const T* src, T* dst, Transposition t, int64_t tiles) {
  constexpr int kTile = Transposition::kTile, kRows = kThreads / kTile;
  HOLON_SHARED(T, tile, kTile * (kTile + 1));  // one more column: a column's elements are in different banks
  const int x = threadIdx.x % kTile, y = threadIdx.x / kTile;
  for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
    const int64_t column = i % t.column_tiles * kTile, rest = i / t.column_tiles, row = rest % t.row_tiles * kTile;
    const auto at = t.outer.at(rest / t.row_tiles);
    for (int k = y; k < kTile; k += kRows)
      if (row + k < t.rows && column + x < t.columns)
        tile[k * (kTile + 1) + x] = src[at.v[0] + (row + k) * t.src_step + column + x];
    __syncthreads();
    for (int k = y; k < kTile; k += kRows)
      if (row + x < t.rows && column + k < t.columns)
        dst[at.v[1] + (column + k) * t.dst_step + row + x] = tile[x * (kTile + 1) + k];
    __syncthreads();
  }
}

template <class S, class D>
void run_copy(const Array& src, Array& dst) {
  constexpr int n = std::min(kPack<S>, kPack<D>);
  const Layout<2> layout(dst.shape, {part_of(dst, dst.shape), part_of(src, dst.shape)}, n);
  launch(copy_packs<S, D, n>, blocks_of(layout), kThreads, 0, src.data<S>(), dst.data<D>(), layout);
}

// The same dtype: what counts is how wide an element is.
template <class T>
void run_move(const Array& src, Array& dst) {
  if (Transposition t; Transposition::make(Strided<2>(dst.shape, {src.strides, dst.strides}), &t))
    return launch(copy_transposed<T>, blocks_for(t.tiles(), 1), kThreads, 0, src.data<T>(), dst.data<T>(), t,
                  t.tiles());
  run_copy<T, T>(src, dst);
}

void copy(const Array& src, Array& dst) {
  if (dst.numel() == 0) return;
  const cudaStream_t s = use_device_of(dst);
  if (src.dtype == dst.dtype) {
    if (Strided<2>(dst.shape, {src.strides, dst.strides}).contiguous())
      return check(cudaMemcpyAsync(dst.bytes(), src.bytes(), dst.nbytes(), cudaMemcpyDeviceToDevice, s),
                   "a copy on the device");
    switch (size_bytes(src.dtype)) {
      case 1: return run_move<uint8_t>(src, dst);
      case 2: return run_move<uint16_t>(src, dst);
      case 4: return run_move<uint32_t>(src, dst);
      default: return run_move<uint64_t>(src, dst);
    }
  }
  visit_dtype(src.dtype, [&](auto from) {
    visit_dtype(dst.dtype,
                [&](auto to) { run_copy<typename decltype(from)::type, typename decltype(to)::type>(src, dst); });
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads) fill_packs(T* dst, T value, Layout<1> layout) {
  constexpr int kN = kPack<T>;
  const int64_t first = blockIdx.x * int64_t{kThreads} + threadIdx.x, step = int64_t{kThreads} * gridDim.x;
  Pack<T, kN> pack;
#pragma unroll
  for (int k = 0; k < kN; ++k) pack.v[k] = value;
  for (int64_t u = first; u < layout.packs; u += step)
    *reinterpret_cast<Pack<T, kN>*>(dst + layout.at_pack(u, kN).v[0]) = pack;
  for (int64_t i = layout.rest + first; i < layout.count; i += step) dst[layout.index.at(i).v[0]] = value;
}

void fill(Array& out, Scalar value) {
  if (out.numel() == 0) return;
  use_device_of(out);
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T v;
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      v = static_cast<T>(value.as_int());
    else if constexpr (std::is_same_v<T, bool>)
      v = value.as_double() != 0;
    else
      v = static_cast<T>(static_cast<DTypeOf<T>::Compute>(value.as_double()));
    const Layout<1> layout(out.shape, {part_of(out, out.shape)}, kPack<T>);
    launch(fill_packs<T>, blocks_of(layout), kThreads, 0, out.data<T>(), v, layout);
  });
}

HOLON_DEVICE_KERNEL(copy, copy);
HOLON_DEVICE_KERNEL(fill, fill);

}  // namespace
}  // namespace holon::kernels::cuda
