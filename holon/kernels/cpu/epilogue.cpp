#include "holon/kernels/epilogue.h"

#include "holon/base/error.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/device.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/gemm.h"

namespace holon::kernels {
namespace {

bool reads_other(Then then) { return then == Then::kAdd || then == Then::kMul || then == Then::kReluBackward; }
UnaryOp unary_of(Then then) {
  return then == Then::kRelu ? UnaryOp::Relu : then == Then::kGelu ? UnaryOp::Gelu : UnaryOp::GeluTanh;
}
BinaryOp binary_of(Then then) {
  return then == Then::kAdd ? BinaryOp::Add : then == Then::kMul ? BinaryOp::Mul : BinaryOp::ReluBackward;
}

// Calls f(at, n) for the runs of a block of a contiguous matrix with rows of `width` elements.
template <class F>
void each_run(int64_t width, int64_t i, int64_t m, int64_t j, int64_t n, F&& f) {
  if (n == width) return f(i * width, m * n);
  for (int64_t row = i; row < i + m; ++row) f(row * width + j, n);
}

struct Rows {
  RowFn fn;
  float* out;
  const float* other;
  int64_t width;
  static void run(void* state, int64_t i, int64_t m, int64_t j, int64_t n) {
    static constexpr Number kNone[3] = {};
    const Rows& r = *static_cast<const Rows*>(state);
    each_run(r.width, i, m, j, n, [&](int64_t at, int64_t count) {
      const void* in[] = {r.out + at, r.other ? r.other + at : nullptr};
      r.fn(in, r.out + at, count, kNone);
    });
  }
};

struct GeluRows {
  GeluFn fn;
  float *y, *slope;
  int64_t width;
  static void run(void* state, int64_t i, int64_t m, int64_t j, int64_t n) {
    const GeluRows& r = *static_cast<const GeluRows*>(state);
    each_run(r.width, i, m, j, n, [&](int64_t at, int64_t count) { r.fn(r.y + at, r.y + at, r.slope + at, count); });
  }
};

// product(out, finish) with the finish that `then` is; where there is none, one kernel after the other.
template <class F>
void run(Then then, const Array* other, Array& out, F&& product) {
  HOLON_CHECK(reads_other(then) == (other != nullptr) &&
                  (!other || (other->shape == out.shape && other->dtype == out.dtype)),
              "a product into {} {} is followed by an operation with {}", name(out.dtype), out.shape,
              other ? other->shape : Dims{});
  // In other's own memory the product would be written over what is still to be read.
  const bool in_place = other && other->storage.get() == out.storage.get();
  if (out.dtype == DType::kFloat32 && out.is_contiguous() && !in_place) {
    const Array dense = other ? contiguous(*other) : Array();
    Rows rows{other ? table().binary[static_cast<int>(binary_of(then))][0][0]
                    : table().unary[static_cast<int>(unary_of(then))][0],
              out.data<float>(), other ? dense.data<float>() : nullptr, out.ndim() ? out.shape.back() : 1};
    product(out, Finish{Rows::run, &rows});
    return;
  }
  Array before = in_place || !out.is_contiguous() ? Array::empty(out.shape, out.dtype, out.device) : out;
  product(before, Finish{});
  if (other)
    binary(binary_of(then), before, *other, out);
  else
    unary(unary_of(then), before, out);
}

}  // namespace

void linear_then(const Array& x, const Array& w, const Array* bias, Then then, const Array* other, Array& out) {
  HOLON_ON_DEVICE(out, linear_then, x, w, bias, then, other, out);
  run(then, other, out, [&](Array& to, const Finish& finish) { linear(x, w, bias, to, finish); });
}

void matmul_then(const Array& a, const Array& b, Then then, const Array* other, Array& out) {
  HOLON_ON_DEVICE(out, matmul_then, a, b, then, other, out);
  run(then, other, out,
      [&](Array& to, const Finish& finish) { finish.run ? matmul(a, b, to, 1, finish) : matmul(a, b, to); });
}

void linear_gelu(const Array& x, const Array& w, const Array* bias, bool by_tanh, Array& y, Array& slope) {
  HOLON_ON_DEVICE(y, linear_gelu, x, w, bias, by_tanh, y, slope);
  HOLON_CHECK(y.shape == slope.shape && y.dtype == slope.dtype, "linear_gelu: {} and slopes {}", y.shape, slope.shape);
  const Compute compute = compute_type(y.dtype);
  HOLON_CHECK(compute == Compute::kF32 || compute == Compute::kF64, "linear_gelu: {} is not a floating-point type",
              name(y.dtype));
  const GeluFn fn = table().gelu_and_slope[by_tanh][compute == Compute::kF64];
  if (y.dtype == DType::kFloat32 && y.is_contiguous() && slope.is_contiguous()) {
    GeluRows rows{fn, y.data<float>(), slope.data<float>(), y.shape.back()};
    linear(x, w, bias, y, Finish{GeluRows::run, &rows});
    return;
  }
  // In the type that gelu is computed in.
  Array before = Array::empty(y.shape, y.dtype, y.device);
  linear(x, w, bias, before);
  const DType t = dtype_of(compute);
  Array value = Array::empty(y.shape, t, y.device), bend = Array::empty(y.shape, t, y.device);
  copy(before, value);
  const int64_t size = static_cast<int64_t>(size_bytes(t));
  parallel_for(value.numel(), kGrain, [&](int64_t begin, int64_t end) {
    fn(value.bytes() + begin * size, value.bytes() + begin * size, bend.bytes() + begin * size, end - begin);
  });
  copy(value, y);
  copy(bend, slope);
}

}  // namespace holon::kernels
