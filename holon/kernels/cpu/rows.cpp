#include "holon/kernels/cpu/rows.h"

#include "holon/base/error.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/loops.h"

namespace holon::kernels {

namespace {

// The step between elements of the last axes taken as one; -1 if they are not one row.
int64_t common_step(const Array& a, int axes) {
  if (a.numel() == 0) return 1;
  int64_t step = 1, expected = -1;
  for (int i = a.ndim() - 1; i >= a.ndim() - axes; --i) {
    if (a.shape[i] == 1) continue;
    if (expected < 0)
      step = a.strides[i];
    else if (a.strides[i] != expected)
      return -1;
    expected = a.strides[i] * a.shape[i];
  }
  return step;
}

}  // namespace

Rows::Rows(const Array& a, int axis, DType compute) {
  const int64_t size = static_cast<int64_t>(size_bytes(a.dtype));
  data_ = a.bytes();
  dtype_ = a.dtype;
  compute_ = compute;
  for (int i = 0; i < a.ndim(); ++i) {
    if (i == axis) {
      length_ = a.shape[i];
      stride_ = a.strides[i] * size;
      continue;
    }
    count_ *= a.shape[i];
    const int64_t stride = a.strides[i] * size;
    // Neighbours in order that are one axis become one.
    if (outer_ > 0 && strides_[outer_ - 1] == stride * a.shape[i]) {
      shape_[outer_ - 1] *= a.shape[i];
      strides_[outer_ - 1] = stride;
    } else {
      shape_[outer_] = a.shape[i];
      strides_[outer_++] = stride;
    }
  }
  direct_ = dtype_ == compute_ && (stride_ == size || length_ == 1);
}

Rows Rows::along_last(const Array& a, int axes, DType compute) {
  const int64_t step = common_step(a, axes);
  HOLON_CHECK(step >= 0, "the last {} axes of strides {} are not one row", axes, a.strides);
  Array merged = a;
  int64_t length = 1;
  for (int i = 0; i < axes; ++i) {
    length *= merged.shape.back();
    merged.shape.erase(merged.ndim() - 1);
    merged.strides.erase(merged.strides.size() - 1);
  }
  merged.shape.push_back(length);
  merged.strides.push_back(step);
  return Rows(merged, merged.ndim() - 1, compute);
}

std::byte* Rows::address(int64_t i) const {
  if (outer_ == 1) return data_ + i * strides_[0];
  int64_t at = 0;
  for (int k = outer_ - 1; k >= 0; --k) {
    at += i % shape_[k] * strides_[k];
    i /= shape_[k];
  }
  return data_ + at;
}

const void* Rows::read(int64_t i, RowBuffer& buffer) const {
  std::byte* row = address(i);
  if (direct_) return row;
  load_elements(row, stride_, dtype_, compute_, buffer.row(), length_, buffer.scratch());
  return buffer.row();
}

void* Rows::target(int64_t i, RowBuffer& buffer) const { return direct_ ? address(i) : buffer.row(); }

void Rows::write(int64_t i, RowBuffer& buffer) const {
  if (!direct_) store_elements(buffer.row(), compute_, dtype_, address(i), stride_, length_, buffer.scratch());
}

Array with_rows(const Array& a, int axes) {
  if (common_step(a, axes) >= 0) return a;
  Array b = Array::empty(a.shape, a.dtype, a.device);
  copy(a, b);
  return b;
}

DType float_compute(DType dtype, const char* op) {
  if (!is_floating(dtype))
    fail_type("{} needs a floating-point type, not {}. Convert the input first.", op, name(dtype));
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

}  // namespace holon::kernels
