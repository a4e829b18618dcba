#include "holon/kernels/half.h"

#include <bit>

#include "holon/base/index.h"
#include "holon/kernels/cpu/scratch.h"
#include "holon/kernels/cpu/small_gemm.h"

namespace holon::kernels {

namespace {

void widen(DType dtype, const uint16_t* x, float* y, int64_t n) {
  if (dtype == DType::kFloat16) {
    small_gemm().half_to_float(x, y, n);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = std::bit_cast<float>(static_cast<uint32_t>(x[i]) << 16);
  }
}

void narrow(DType dtype, const float* x, uint16_t* y, int64_t n) {
  if (dtype == DType::kFloat16) {
    small_gemm().float_to_half(x, y, n);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = BFloat16(x[i]).bits;
  }
}

}  // namespace

Array to_float(const Array& x) {
  Array dense = x;
  for (int i = 0; i < x.ndim(); ++i)
    if (x.strides[i] == 0) dense.shape[i] = 1;
  // The layout is kept where it is dense (a transposed matrix stays one), else the result is row-major.
  if (dense.is_dense()) {
    Array y = Array::empty_strided(dense.shape, dense.strides, DType::kFloat32);
    widen(x.dtype, x.data<uint16_t>(), y.data<float>(), dense.numel());
    y.shape = x.shape;
    return y;
  }
  Array y = Array::empty(dense.shape, DType::kFloat32);
  float* to = y.data<float>();
  const int last = x.ndim() - 1;
  const int64_t n = dense.shape[last], step = x.strides[last];
  Scratch row(to_size(n) * 2);
  for_each_row(dense.shape, dense.strides, [&](int64_t at) {
    const uint16_t* from = x.data<uint16_t>() + at;
    if (step != 1) {
      for (int64_t i = 0; i < n; ++i) row.as<uint16_t>()[i] = from[i * step];
      from = row.as<uint16_t>();
    }
    widen(x.dtype, from, to, n);
    to += n;
  });
  for (int i = 0; i < x.ndim(); ++i)
    if (x.strides[i] == 0) y.strides[i] = 0;
  y.shape = x.shape;
  return y;
}

void from_float(const Array& x, Array& y) {
  if (x.numel() == 0) return;
  if (x.strides == y.strides || (x.is_contiguous() && y.is_contiguous())) {
    narrow(y.dtype, x.data<float>(), y.data<uint16_t>(), x.numel());
    return;
  }
  const int last = y.ndim() - 1;
  const int64_t n = y.shape[last], step = y.strides[last], from_step = x.strides[last];
  Scratch row(to_size(n) * 2), values(to_size(n) * 4);
  for_each_row(y.shape, y.strides, x.strides, [&](int64_t at, int64_t from_at) {
    for (int64_t i = 0; i < n; ++i) values.as<float>()[i] = x.data<float>()[from_at + i * from_step];
    narrow(y.dtype, values.as<float>(), row.as<uint16_t>(), n);
    for (int64_t i = 0; i < n; ++i) y.data<uint16_t>()[at + i * step] = row.as<uint16_t>()[i];
  });
}

}  // namespace holon::kernels
