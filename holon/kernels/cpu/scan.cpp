#include "holon/kernels/scan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/device.h"

namespace holon::kernels {

namespace {

// f(offsets of the row's first element in each array, in elements), for each row along the axis.
template <size_t n, class F>
void each_row(const Array* const (&arrays)[n], int axis, F&& f) {
  const Array& first = *arrays[0];
  for (auto* a : arrays) HOLON_CHECK(a->shape == first.shape, "scan: {} with {}", a->shape, first.shape);
  int64_t rows = 1, at[n] = {}, index[kMaxAxes] = {};
  for (int d = 0; d < first.ndim(); ++d) rows *= d == axis ? 1 : first.shape[d];
  if (first.numel() == 0) return;
  for (int64_t r = 0; r < rows; ++r) {
    f(at);
    for (int d = first.ndim() - 1; d >= 0; --d) {
      if (d == axis) continue;
      for (size_t k = 0; k < n; ++k) at[k] += arrays[k]->strides[d];
      if (++index[d] < first.shape[d]) break;
      for (size_t k = 0; k < n; ++k) at[k] -= arrays[k]->strides[d] * first.shape[d];
      index[d] = 0;
    }
  }
}

struct Axis {
  int64_t size, step[4];
};
template <size_t n>
Axis axis_of(const Array* const (&arrays)[n], int axis) {
  Axis a{arrays[0]->ndim() ? arrays[0]->shape[axis] : 1, {}};
  for (size_t k = 0; k < n; ++k) a.step[k] = arrays[k]->ndim() ? arrays[k]->strides[axis] : 0;
  return a;
}

template <class F>
void visit_floating(const char* op, DType dtype, F&& f) {
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>)
      fail_type("{}: {} is not a floating-point type. Convert it first.", op, name(dtype));
    else
      f(tag);
  });
}

double log_add(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  double high = std::max(a, b), low = std::min(a, b);
  return std::isinf(high) ? high : high + std::log1p(std::exp(low - high));
}

}  // namespace

void logcumsumexp(const Array& x, int axis, Array& out) {
  HOLON_ON_DEVICE(out, logcumsumexp, x, axis, out);
  visit_floating("logcumsumexp", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Array* const arrays[] = {&x, &out};
    const Axis a = axis_of(arrays, axis);
    each_row(arrays, axis, [&](const int64_t* at) {
      double sum = -std::numeric_limits<double>::infinity();
      for (int64_t i = 0; i < a.size; ++i) {
        sum = log_add(sum, static_cast<double>(x.data<T>()[at[0] + i * a.step[0]]));
        out.data<T>()[at[1] + i * a.step[1]] = T(static_cast<float>(sum));
        if constexpr (std::is_same_v<T, double>) out.data<T>()[at[1] + i * a.step[1]] = sum;
      }
    });
  });
}

void logcumsumexp_backward(const Array& dy, const Array& x, const Array& y, int axis, Array& out) {
  HOLON_ON_DEVICE(out, logcumsumexp_backward, dy, x, y, axis, out);
  visit_floating("logcumsumexp", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Array* const arrays[] = {&dy, &x, &y, &out};
    const Axis a = axis_of(arrays, axis);
    each_row(arrays, axis, [&](const int64_t* at) {
      auto value = [&](const Array& v, int k, int64_t i) {
        return static_cast<double>(v.data<T>()[at[k] + i * a.step[k]]);
      };
      // t[i] = dy[i] + exp(y[i] - y[i + 1]) t[i + 1]; y never falls, so that no exponent is positive.
      double t = 0;
      for (int64_t i = a.size - 1; i >= 0; --i) {
        double here = value(y, 2, i), carried = 0;
        if (i + 1 < a.size) carried = std::isinf(here) && here < 0 ? 0 : std::exp(here - value(y, 2, i + 1)) * t;
        t = value(dy, 0, i) + carried;
        double dx = std::isinf(here) && here < 0 ? 0 : std::exp(value(x, 1, i) - here) * t;
        if constexpr (std::is_same_v<T, double>)
          out.data<T>()[at[3] + i * a.step[3]] = dx;
        else
          out.data<T>()[at[3] + i * a.step[3]] = T(static_cast<float>(dx));
      }
    });
  });
}

void cumprod_backward(const Array& dy, const Array& x, int axis, Array& out) {
  HOLON_ON_DEVICE(out, cumprod_backward, dy, x, axis, out);
  visit_floating("cumprod", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Array* const arrays[] = {&dy, &x, &out};
    const Axis a = axis_of(arrays, axis);
    std::vector<double> left(to_size(a.size));
    each_row(arrays, axis, [&](const int64_t* at) {
      auto value = [&](const Array& v, int k, int64_t i) {
        return static_cast<double>(v.data<T>()[at[k] + i * a.step[k]]);
      };
      double product = 1;
      for (int64_t i = 0; i < a.size; ++i) {
        at_index(left, i) = product;
        product *= value(x, 1, i);
      }
      // s[i] = dy[i] + x[i + 1] s[i + 1], and dx[i] = x[0] ... x[i - 1] s[i].
      double s = 0;
      for (int64_t i = a.size - 1; i >= 0; --i) {
        s = value(dy, 0, i) + (i + 1 < a.size ? value(x, 1, i + 1) * s : 0);
        double dx = at_index(left, i) * s;
        if constexpr (std::is_same_v<T, double>)
          out.data<T>()[at[2] + i * a.step[2]] = dx;
        else
          out.data<T>()[at[2] + i * a.step[2]] = T(static_cast<float>(dx));
      }
    });
  });
}

void cumextremum(bool max, const Array& x, int axis, Array& values, Array& indices) {
  HOLON_ON_DEVICE(values, cumextremum, max, x, axis, values, indices);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Array* const arrays[] = {&x, &values, &indices};
    const Axis a = axis_of(arrays, axis);
    each_row(arrays, axis, [&](const int64_t* at) {
      T best{};
      int64_t place = 0;
      for (int64_t i = 0; i < a.size; ++i) {
        T v = x.data<T>()[at[0] + i * a.step[0]];
        auto is_nan = [](T t) {
          if constexpr (std::is_integral_v<T>)
            return false;
          else
            return std::isnan(static_cast<double>(t));
        };
        if (i == 0 || is_nan(v) || (!is_nan(best) && (max ? v >= best : v <= best))) best = v, place = i;
        values.data<T>()[at[1] + i * a.step[1]] = best;
        indices.data<int64_t>()[at[2] + i * a.step[2]] = place;
      }
    });
  });
}

void flip(const Array& x, uint32_t axes, Array& out) {
  if (x.numel() == 0) return;
  Array turned = x;
  for (int d = 0; d < x.ndim(); ++d)
    if (axes >> d & 1) {
      turned.offset += (x.shape[d] - 1) * x.strides[d];
      turned.strides[d] = -x.strides[d];
    }
  copy(turned, out);
}

}  // namespace holon::kernels
