#include "holon/array/dims.h"

#include <algorithm>

#include "holon/base/error.h"

namespace holon {

int64_t Dims::numel_beyond() const {
  for (int64_t n : *this)
    if (n == 0) return 0;
  fail_value("a tensor of shape {} has more elements than a 64-bit integer can count. Choose smaller sizes.", *this);
}

std::string Dims::str() const {
  std::string s = "[";
  for (int i = 0; i < size_; ++i) s += (i ? ", " : "") + std::to_string(v_[i]);
  return s + "]";
}

void Dims::too_many(int n) {
  fail_value("a tensor of {} axes was requested; tensors have at most {}. Merge some by reshape.", n, kMaxAxes);
}

namespace {

// More than any memory has, and few enough that no place in bytes overflows.
constexpr int64_t kMostElements = int64_t{1} << 58;

// False: there are too many elements.
bool multiply(int64_t& step, int64_t size) {
  return !__builtin_mul_overflow(step, std::max<int64_t>(size, 1), &step) && step <= kMostElements;
}

}  // namespace

Dims contiguous_strides(const Dims& shape) {
  Dims s;
  s.resize(shape.size());
  int64_t step = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    s[i] = step;
    if (!multiply(step, shape[i])) [[unlikely]]
      return Dims::filled(shape.size(), 0);
  }
  return s;
}

Dims channels_last_strides(const Dims& shape) {
  Dims strides = shape;
  int64_t step = 1;
  bool fits = multiply(step, shape[1]);
  for (int a = shape.size() - 1; a >= 2; --a) {
    strides[a] = step;
    fits = fits && multiply(step, shape[a]);
  }
  strides[1] = 1;
  strides[0] = step;
  return fits && multiply(step, shape[0]) ? strides : Dims::filled(shape.size(), 0);
}

int normalize_axis(int64_t axis, int ndim, const char* op) {
  // A 0-d tensor takes axis 0 and -1, as in PyTorch.
  int64_t n = std::max(ndim, 1);
  if (axis < -n || axis >= n)
    fail(ErrorKind::kIndex, "{}: axis {} is out of range for a tensor of {} axes; it must be from {} to {}.", op, axis,
         ndim, -n, n - 1);
  return static_cast<int>(axis < 0 ? axis + n : axis);
}

Dims broadcast_shapes(const Dims& a, const Dims& b, const char* op) {
  const Dims& longer = a.size() >= b.size() ? a : b;
  const Dims& shorter = a.size() >= b.size() ? b : a;
  Dims out = longer;
  int shift = longer.size() - shorter.size();
  for (int i = 0; i < shorter.size(); ++i) {
    int64_t x = longer[i + shift], y = shorter[i];
    if (x != y && x != 1 && y != 1)
      fail_value(
          "{}: shapes {} and {} do not broadcast: sizes {} and {} differ at axis {} and neither is 1. Reshape or "
          "transpose one of them.",
          op, a, b, x, y, i + shift);
    out[i + shift] = x == 1 ? y : x;
  }
  return out;
}

}  // namespace holon
