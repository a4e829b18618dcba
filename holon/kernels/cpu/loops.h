// Element-wise loops over strided operands: orders and merges the axes, converts dtypes in small blocks, shares the
// work out to threads, and leaves contiguous rows to a loop of the table.
#pragma once

#include "holon/array/array.h"
#include "holon/array/scalar.h"
#include "holon/kernels/compute_type.h"
#include "holon/kernels/cpu/table.h"

namespace holon::kernels {

// Work below this many elements stays in one thread.
inline constexpr int64_t kGrain = 32768;

inline constexpr int kMaxOperands = 4;

// The axes of a loop over several operands, with strides in bytes.
struct LoopAxes {
  int n = 0;
  int64_t shape[kMaxAxes];
  int64_t strides[kMaxAxes][kMaxOperands];
  int operands = 0;

  int64_t numel() const {
    int64_t m = 1;
    for (int i = 0; i < n; ++i) m *= shape[i];
    return m;
  }
  void add(int64_t size, const int64_t* s);
  // Orders the axes by the strides of the first operand, largest first, drops those of size 1, and merges those that
  // are one in all operands. At least one axis remains.
  void simplify();
};

// dst[0 .. n) = the n elements of the given size that are `stride` bytes apart, and the way back.
void gather_elements(const std::byte* src, int64_t stride, size_t size, std::byte* dst, int64_t n);
void scatter_elements(const std::byte* src, std::byte* dst, int64_t stride, size_t size, int64_t n);
// The same with a conversion. scratch has room for n elements of `from`; it is not used where src is contiguous.
void load_elements(const std::byte* src, int64_t stride, DType from, DType to, void* dst, int64_t n,
                   std::byte* scratch);
void store_elements(const void* src, DType from, DType to, std::byte* dst, int64_t stride, int64_t n,
                    std::byte* scratch);

struct LoopInput {
  const std::byte* data;
  const Dims* shape;    // broadcasts to the output's, aligned at the right
  const Dims* strides;  // in elements of dtype
  DType dtype;
  DType compute;  // what the row function reads

  LoopInput() = default;
  LoopInput(const Array& a, DType compute_dtype)
      : data(a.bytes()), shape(&a.shape), strides(&a.strides), dtype(a.dtype), compute(compute_dtype) {}
};

struct Loop {
  RowFn rows = nullptr;
  // Faster variants where one of two inputs is constant along a row; may be null.
  RowFn vector_scalar = nullptr, scalar_vector = nullptr;
  int inputs = 0;
  LoopInput in[kMaxOperands - 1];
  Array* out = nullptr;
  DType out_compute = DType::kFloat32;
  const Number* params = nullptr;
};

// out = op(in...), broadcasting. An input may be out itself; other overlaps are not supported.
void run_loop(const Loop& loop);

}  // namespace holon::kernels
