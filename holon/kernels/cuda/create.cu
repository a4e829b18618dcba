// Arrays that are made from their indices, and triangles of matrices.
#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/strides.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/index.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct Ramp {
  enum Kind : int32_t { kIntegers, kReals, kBothEnds } kind;
  int64_t first, steps;  // the number of the first element; kBothEnds: of how many
  int64_t start_i, step_i;
  double start, step, end;
};

template <class T>
__global__ void ramp(T* out, int64_t stride, int64_t n, Ramp r) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{kThreads} * gridDim.x) {
    const int64_t k = r.first + i;
    if (r.kind == Ramp::kIntegers) {
      out[i * stride] = convert<T>(r.start_i + k * r.step_i);
      continue;
    }
    // Rounded twice, as on the CPU. From the nearer end, so that both ends are exact.
    const bool from_end = r.kind == Ramp::kBothEnds && k >= r.steps / 2 && r.steps > 1;
    const int64_t way = from_end ? k + 1 - r.steps : k;
    out[i * stride] = convert<T>(__dadd_rn(from_end ? r.end : r.start, __dmul_rn(r.step, static_cast<double>(way))));
  }
}

void run_ramp(const Ramp& r, Array& out) {
  const int64_t n = out.shape[0];
  if (n == 0) return;
  use_device_of(out);
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(ramp<T>, blocks_for(n, kThreads), kThreads, 0, out.data<T>(), out.strides[0], n, r);
  });
}

void arange(Scalar start, Scalar step, int64_t offset, Array& out) {
  const bool whole = !start.is_float() && !step.is_float();
  run_ramp({whole ? Ramp::kIntegers : Ramp::kReals, offset, 0, whole ? start.as_int() : 0, whole ? step.as_int() : 0,
            start.as_double(), step.as_double(), 0},
           out);
}

void linspace(double start, double end, int64_t steps, int64_t offset, Array& out) {
  const double step = steps > 1 ? (end - start) / static_cast<double>(steps - 1) : 0;
  run_ramp({Ramp::kBothEnds, offset, steps, 0, 0, start, step, end}, out);
}

// Rows and columns of an element's number.
struct Matrix {
  int64_t rows, cols;
  bool small;
  Divider by_rows, by_cols;

  Matrix(const Array& a, int64_t rows, int64_t cols) : rows(rows), cols(cols), small(a.numel() < (int64_t{1} << 31)) {
    if (!small || a.numel() == 0) return;
    by_rows = Divider(static_cast<uint32_t>(rows));
    by_cols = Divider(static_cast<uint32_t>(cols));
  }
  HOLON_BOTH int64_t over_cols(int64_t e) const {
    return small ? by_cols.quotient(static_cast<uint32_t>(e)) : e / cols;
  }
  HOLON_BOTH int64_t over_rows(int64_t e) const {
    return small ? by_rows.quotient(static_cast<uint32_t>(e)) : e / rows;
  }
};

// Keeps columns < row + edge (lower), or >= row + edge.
template <class S>
__global__ void triangle(const S* x, S* out, Strided<2> index, Matrix matrix, int64_t edge, bool lower) {
  for (int64_t e = blockIdx.x * int64_t{kThreads} + threadIdx.x; e < index.count; e += int64_t{kThreads} * gridDim.x) {
    const int64_t line = matrix.over_cols(e), col = e - line * matrix.cols;
    const int64_t row = line - matrix.over_rows(line) * matrix.rows;
    const auto at = index.at(e);
    out[at.v[1]] = (col < row + edge) == lower ? x[at.v[0]] : S(0);
  }
}

void run_triangle(const Array& x, int64_t edge, Array& out, bool lower) {
  if (out.numel() == 0) return;
  use_device_of(out);
  const Strided<2> index(out.shape, {x.strides, out.strides});
  const Matrix matrix(out, out.shape[out.ndim() - 2], out.shape.back());
  const auto run = [&](auto tag) {
    using S = typename decltype(tag)::type;
    launch(triangle<S>, blocks_for(index.count, kThreads), kThreads, 0, x.data<S>(), out.data<S>(), index, matrix, edge,
           lower);
  };
  switch (size_bytes(out.dtype)) {
    case 1: return run(TypeTag<uint8_t>{});
    case 2: return run(TypeTag<uint16_t>{});
    case 4: return run(TypeTag<uint32_t>{});
    default: return run(TypeTag<uint64_t>{});
  }
}

void tril(const Array& x, int64_t diagonal, int64_t row_offset, int64_t col_offset, Array& out) {
  run_triangle(x, row_offset + diagonal - col_offset + 1, out, true);
}
void triu(const Array& x, int64_t diagonal, int64_t row_offset, int64_t col_offset, Array& out) {
  run_triangle(x, row_offset + diagonal - col_offset, out, false);
}

template <class I, class S>
__global__ void one_hots(const I* indices, S* out, S one, Strided<1> index_at, Strided<1> out_at, Matrix matrix,
                         int64_t classes, int64_t class_offset, FaultReport* faults, const char* op) {
  for (int64_t e = blockIdx.x * int64_t{kThreads} + threadIdx.x; e < out_at.count; e += int64_t{kThreads} * gridDim.x) {
    const int64_t line = matrix.over_cols(e), col = e - line * matrix.cols;
    const int64_t wanted = indices[index_at.at(line).v[0]];
    if (col == 0 && (wanted < 0 || wanted >= classes)) report(faults, Fault::kIndex, op, wanted, line, 0, classes);
    out[out_at.at(e).v[0]] = wanted == col + class_offset ? one : S(0);
  }
}

void one_hot(const Array& indices, int64_t classes, int64_t class_offset, Array& out) {
  if (out.numel() == 0) return;
  use_device_of(out);
  const Strided<1> index_at(indices.shape, {indices.strides}), out_at(out.shape, {out.strides});
  const Matrix matrix(out, 1, out.shape.back());
  const uint64_t one = element_bits(1, out.dtype);
  const auto run = [&](auto index_tag, auto tag) {
    using I = typename decltype(index_tag)::type;
    using S = typename decltype(tag)::type;
    launch(one_hots<I, S>, blocks_for(out_at.count, kThreads), kThreads, 0, indices.data<I>(), out.data<S>(),
           static_cast<S>(one), index_at, out_at, matrix, classes, class_offset, fault_report(), current_op());
  };
  const auto with_index = [&](auto tag) {
    indices.dtype == DType::kInt64 ? run(TypeTag<int64_t>{}, tag) : run(TypeTag<int32_t>{}, tag);
  };
  switch (size_bytes(out.dtype)) {
    case 1: return with_index(TypeTag<uint8_t>{});
    case 2: return with_index(TypeTag<uint16_t>{});
    case 4: return with_index(TypeTag<uint32_t>{});
    default: return with_index(TypeTag<uint64_t>{});
  }
}

HOLON_DEVICE_KERNEL(arange, arange);
HOLON_DEVICE_KERNEL(linspace, linspace);
HOLON_DEVICE_KERNEL(tril, tril);
HOLON_DEVICE_KERNEL(triu, triu);
HOLON_DEVICE_KERNEL(one_hot, one_hot);

}  // namespace
}  // namespace holon::kernels::cuda
