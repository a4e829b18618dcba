#include "holon/kernels/softmax.h"

#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/parallel.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/cpu/rows.h"
#include "holon/kernels/device.h"
#include "holon/kernels/tree.h"

namespace holon::kernels {

namespace {

constexpr int64_t kRowGrain = 8192;  // elements

int64_t row_grain(int64_t length) { return std::max<int64_t>(1, kRowGrain / std::max<int64_t>(length, 1)); }

void check_alike(const char* op, const Array& a, const Array& b) {
  HOLON_CHECK(a.shape == b.shape && a.dtype == b.dtype, "{}: {} {} and {} {}", op, a.shape, name(a.dtype), b.shape,
              name(b.dtype));
}

// If the softmax runs across memory, an axis along which all arrays are contiguous; -1 otherwise, and where the order
// of sums may not depend on the shape.
int column_axis(const Array* const* arrays, int n, int axis, DType compute) {
  const Array& a = *arrays[0];
  if (adds_in_tree(a)) return -1;
  for (int i = 0; i < a.ndim(); ++i) {
    if (i == axis || a.shape[i] < 8) continue;
    bool all = true;
    for (int k = 0; k < n; ++k) all &= arrays[k]->strides[i] == 1 && arrays[k]->dtype == compute;
    if (all) return i;
  }
  return -1;
}

// f(byte offsets of the arrays, cols) for tiles of at most kSoftmaxCols columns.
template <class F>
void for_each_tile(const Array* const* arrays, int n, int axis, int cols_axis, F&& f) {
  const Array& a = *arrays[0];
  const int64_t size = static_cast<int64_t>(size_bytes(a.dtype));
  const int64_t cols = a.shape[cols_axis], tiles = (cols + kSoftmaxCols - 1) / kSoftmaxCols;
  const int64_t others = a.numel() / (cols * a.shape[axis]);
  parallel_for(others * tiles, row_grain(a.shape[axis] * std::min(cols, kSoftmaxCols)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t item = begin; item < end; ++item) {
                   int64_t at[3], rest = item / tiles;
                   const int64_t j = item % tiles * kSoftmaxCols;
                   for (int k = 0; k < n; ++k) at[k] = j * size;
                   for (int i = a.ndim() - 1; i >= 0; --i) {
                     if (i == axis || i == cols_axis) continue;
                     for (int k = 0; k < n; ++k) at[k] += rest % a.shape[i] * arrays[k]->strides[i] * size;
                     rest /= a.shape[i];
                   }
                   f(at, std::min(kSoftmaxCols, cols - j));
                 }
               });
}

void forward(const char* op, const Array& x, int axis, double scale, std::optional<int64_t> diagonal, Array& out,
             bool log) {
  check_alike(op, x, out);
  const DType compute = float_compute(x.dtype, op);
  if (x.numel() == 0) return;
  const int kind = compute == DType::kFloat64;
  const bool plain = scale == 1 && !diagonal;
  const Array* arrays[] = {&x, &out};
  if (plain && x.ndim() > 1 && x.strides[axis] != 1)
    if (int cols = column_axis(arrays, 2, axis, compute); cols >= 0) {
      const SoftmaxColumnsFn run = (log ? table().log_softmax_columns : table().softmax_columns)[kind];
      for_each_tile(arrays, 2, axis, cols, [&](const int64_t* at, int64_t n) {
        run(x.bytes() + at[0], x.strides[axis], out.bytes() + at[1], out.strides[axis], x.shape[axis], n);
      });
      return;
    }
  const Rows from(x, axis, compute), to(out, axis, compute);
  const int64_t n = from.length(), q = diagonal ? x.shape[x.ndim() - 2] : 1;
  const SoftmaxFn run = (log ? table().log_softmax : table().softmax)[kind];
  parallel_for(from.count(), row_grain(n), [&](int64_t begin, int64_t end) {
    RowBuffer a(from.direct() ? 0 : n), b(to.direct() ? 0 : n);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t valid = diagonal ? std::clamp<int64_t>(i % q + *diagonal + 1, 0, n) : n;
      run(from.read(i, a), to.target(i, b), n, scale, valid);
      to.write(i, b);
    }
  });
}

void backward(const char* op, const Array& dy, const Array& y, int axis, double scale, Array& dx, bool log) {
  check_alike(op, dy, y);
  check_alike(op, dy, dx);
  const DType compute = float_compute(dy.dtype, op);
  if (dy.numel() == 0) return;
  const int kind = compute == DType::kFloat64;
  const Array* arrays[] = {&dy, &y, &dx};
  if (scale == 1 && dy.ndim() > 1 && dy.strides[axis] != 1)
    if (int cols = column_axis(arrays, 3, axis, compute); cols >= 0) {
      const SoftmaxBackwardColumnsFn run =
          (log ? table().log_softmax_backward_columns : table().softmax_backward_columns)[kind];
      for_each_tile(arrays, 3, axis, cols, [&](const int64_t* at, int64_t n) {
        run(dy.bytes() + at[0], dy.strides[axis], y.bytes() + at[1], y.strides[axis], dx.bytes() + at[2],
            dx.strides[axis], dy.shape[axis], n);
      });
      return;
    }
  const Rows gradient(dy, axis, compute), result(y, axis, compute), to(dx, axis, compute);
  const int64_t n = gradient.length();
  const SoftmaxBackwardFn run = (log ? table().log_softmax_backward : table().softmax_backward)[kind];
  parallel_for(gradient.count(), row_grain(n), [&](int64_t begin, int64_t end) {
    RowBuffer a(gradient.direct() ? 0 : n), b(result.direct() ? 0 : n), c(to.direct() ? 0 : n);
    for (int64_t i = begin; i < end; ++i) {
      run(gradient.read(i, a), result.read(i, b), to.target(i, c), n, scale);
      to.write(i, c);
    }
  });
}

}  // namespace

void softmax(const Array& x, int axis, Array& out) {
  HOLON_ON_DEVICE(out, softmax, x, axis, out);
  forward("softmax", x, axis, 1, std::nullopt, out, false);
}
void log_softmax(const Array& x, int axis, Array& out) {
  HOLON_ON_DEVICE(out, log_softmax, x, axis, out);
  forward("log_softmax", x, axis, 1, std::nullopt, out, true);
}
void softmax_backward(const Array& dy, const Array& y, int axis, Array& dx) {
  HOLON_ON_DEVICE(dx, softmax_backward, dy, y, axis, dx);
  backward("softmax_backward", dy, y, axis, 1, dx, false);
}
void log_softmax_backward(const Array& dy, const Array& y, int axis, Array& dx) {
  HOLON_ON_DEVICE(dx, log_softmax_backward, dy, y, axis, dx);
  backward("log_softmax_backward", dy, y, axis, 1, dx, true);
}

void scale_mask_softmax(const Array& x, double scale, std::optional<int64_t> diagonal, Array& out) {
  HOLON_ON_DEVICE(out, scale_mask_softmax, x, scale, diagonal, out);
  HOLON_CHECK(x.ndim() >= 2, "scale_mask_softmax: scores of shape {}", x.shape);
  if (!(scale > 0)) fail_value("scale_mask_softmax: scale is {}. It must be positive.", scale);
  forward("scale_mask_softmax", x, x.ndim() - 1, scale, diagonal, out, false);
}

void scale_mask_softmax_backward(const Array& dy, const Array& y, double scale, Array& dx) {
  HOLON_ON_DEVICE(dx, scale_mask_softmax_backward, dy, y, scale, dx);
  backward("scale_mask_softmax_backward", dy, y, dy.ndim() - 1, scale, dx, false);
}

void log_sum_exp(const Array& x, Array& out) {
  HOLON_ON_DEVICE(out, log_sum_exp, x, out);
  const DType compute = float_compute(x.dtype, "log_sum_exp");
  HOLON_CHECK(out.dtype == compute && out.is_contiguous(), "log_sum_exp: the output is {}", name(out.dtype));
  const Rows rows(x, x.ndim() - 1, compute);
  HOLON_CHECK(out.numel() == rows.count(), "log_sum_exp: {} into {}", x.shape, out.shape);
  const int kind = compute == DType::kFloat64;
  const RowFn log = table().unary[static_cast<int>(UnaryOp::Log)][static_cast<int>(Compute::kF64)];
  parallel_for(rows.count(), row_grain(rows.length()), [&](int64_t begin, int64_t end) {
    constexpr int64_t kBlock = 64;
    const Number none[3] = {};
    double most[kBlock], sums[kBlock];
    RowBuffer a(rows.direct() ? 0 : rows.length());
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t count = std::min(kBlock, end - at);
      for (int64_t i = 0; i < count; ++i)
        table().sum_exp[kind](rows.read(at + i, a), rows.length(), &most[i], &sums[i]);
      const void* in[] = {sums};
      log(in, sums, count, none);
      for (int64_t i = 0; i < count; ++i) {
        const double v = most[i] + sums[i];
        if (kind)
          out.data<double>()[at + i] = v;
        else
          out.data<float>()[at + i] = static_cast<float>(v);
      }
    }
  });
}

}  // namespace holon::kernels
