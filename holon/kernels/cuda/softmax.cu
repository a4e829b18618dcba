// Softmax, its logarithm and their gradients. A row that fits into its group's registers is read once; a longer one
// once for the largest element and the sum of exponentials together, and once for the result.
#include "holon/kernels/softmax.h"

#include "holon/base/error.h"
#include "holon/kernels/compute_type.h"
#include "holon/kernels/cuda/online_softmax.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kMost = 512;  // threads

struct Mask {
  bool is_set;
  int64_t queries, diagonal;
  __device__ __forceinline__ int64_t valid(int64_t row, int64_t n) const {
    if (!is_set) return n;
    const int64_t v = row % queries + diagonal + 1;
    return v < 0 ? 0 : v > n ? n : v;
  }
};

template <class C, int kN, bool kUnits>
__global__ void __launch_bounds__(kMost, kRowBlocks<C>) softmax_rows(RowSet<2> set, bool log, C scale, Mask mask) {
  const Group g(set.group, set.columns);
  for (int64_t row0 = int64_t{blockIdx.x} * g.count; row0 < set.rows.count; row0 += int64_t{gridDim.x} * g.count) {
    const int64_t row = row0 + g.index;
    const bool live = row < set.rows.count;
    const auto at = set.rows.at(live ? row : 0);
    const int64_t length = live ? set.length : 0, valid = mask.valid(row, length);
    C v[kN];
    if (set.length <= int64_t{g.size} * kN) {
      const Part<kN, kUnits> part(g, 0);
      const int seen = part.limit(valid);
      part.load(v, set.array[0], at.v[0], seen, lowest<C>());
      C m = lowest<C>();
#pragma unroll
      for (int e = 0; e < kN; ++e) m = MaxNumber()(m, v[e]);
      m = g.reduce(m, MaxNumber());
      C s = 0;
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        const C d = (v[e] - m) * scale, x = part.offset(e) < seen ? f::exp_nonpositive(d) : C(0);
        s += x;
        v[e] = log ? d : x;
      }
      s = g.reduce(s, Add());
      const C k = log ? f::log(s) : C(1) / s;
#pragma unroll
      for (int e = 0; e < kN; ++e) v[e] = log ? v[e] - k : part.offset(e) < seen ? v[e] * k : C(0);
      part.store(v, set.array[1], at.v[1], part.limit(length));
      continue;
    }
    OnlineSum<C> sum = OnlineSum<C>::empty();
    for (int64_t first = 0; first < set.length; first += int64_t{g.size} * kN) {
      const Part<kN, kUnits> part(g, first);
      part.load(v, set.array[0], at.v[0], part.limit(valid), lowest<C>());
      sum.take(v, scale);
    }
    sum = g.reduce(sum, typename OnlineSum<C>::Merge{scale});
    const C k = log ? f::log(sum.sum) : C(1) / sum.sum;
    for (int64_t first = 0; first < set.length; first += int64_t{g.size} * kN) {
      const Part<kN, kUnits> part(g, first);
      const int seen = part.limit(valid);
      part.load(v, set.array[0], at.v[0], seen, lowest<C>());
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        const C d = (v[e] - sum.max) * scale;
        v[e] = log ? d - k : part.offset(e) < seen ? f::exp_nonpositive(d) * k : C(0);
      }
      part.store(v, set.array[1], at.v[1], part.limit(length));
    }
  }
}

template <class C, int kN, bool kUnits>
__global__ void __launch_bounds__(kMost, kRowBlocks<C>) softmax_rows_backward(RowSet<3> set, bool log, C scale) {
  const Group g(set.group, set.columns);
  for (int64_t row0 = int64_t{blockIdx.x} * g.count; row0 < set.rows.count; row0 += int64_t{gridDim.x} * g.count) {
    const bool live = row0 + g.index < set.rows.count;
    const auto at = set.rows.at(live ? row0 + g.index : 0);
    const int64_t length = live ? set.length : 0;
    C dy[kN], y[kN];
    auto load = [&](const Part<kN, kUnits>& part) {
      const int end = part.limit(length);
      part.load(dy, set.array[0], at.v[0], end, C(0));
      part.load(y, set.array[1], at.v[1], end, C(0));
    };
    auto add_up = [&] {
      C s = 0;
#pragma unroll
      for (int e = 0; e < kN; ++e) s += log ? dy[e] : dy[e] * y[e];
      return s;
    };
    auto finish = [&](const Part<kN, kUnits>& part, C s) {
#pragma unroll
      for (int e = 0; e < kN; ++e) dy[e] = log ? dy[e] - f::exp_nonpositive(y[e]) * s : scale * y[e] * (dy[e] - s);
      part.store(dy, set.array[2], at.v[2], part.limit(length));
    };
    if (set.length <= int64_t{g.size} * kN) {
      const Part<kN, kUnits> part(g, 0);
      load(part);
      finish(part, g.reduce(add_up(), Add()));
      continue;
    }
    C s = 0;
    for (int64_t first = 0; first < set.length; first += int64_t{g.size} * kN) {
      const Part<kN, kUnits> part(g, first);
      load(part);
      s += add_up();
    }
    s = g.reduce(s, Add());
    for (int64_t first = 0; first < set.length; first += int64_t{g.size} * kN) {
      const Part<kN, kUnits> part(g, first);
      load(part);
      finish(part, s);
    }
  }
}

template <class C, bool kUnits>
__global__ void __launch_bounds__(kMost, kRowBlocks<C>) log_sum_exp_rows(RowSet<1> set, C* out) {
  constexpr int kN = 16;
  const Group g(set.group, set.columns);
  for (int64_t row0 = int64_t{blockIdx.x} * g.count; row0 < set.rows.count; row0 += int64_t{gridDim.x} * g.count) {
    const int64_t row = row0 + g.index;
    const bool live = row < set.rows.count;
    const auto at = set.rows.at(live ? row : 0);
    OnlineSum<C> sum = OnlineSum<C>::empty();
    for (int64_t first = 0; first < set.length; first += int64_t{g.size} * kN) {
      C v[kN];
      const Part<kN, kUnits> part(g, first);
      part.load(v, set.array[0], at.v[0], part.limit(live ? set.length : 0), lowest<C>());
      sum.take(v, C(1));
    }
    sum = g.reduce(sum, typename OnlineSum<C>::Merge{C(1)});
    if (live && g.rank == 0) out[row] = sum.log();
  }
}

void check_alike(const char* op, const Array& a, const Array& b) {
  HOLON_CHECK(a.shape == b.shape && a.dtype == b.dtype, "{}: {} {} and {} {}", op, a.shape, name(a.dtype), b.shape,
              name(b.dtype));
}

void forward(const char* op, const Array& x, int axis, double scale, std::optional<int64_t> diagonal, Array& out,
             bool log) {
  check_alike(op, x, out);
  const DType compute = float_compute(x.dtype, op);
  if (x.numel() == 0) return;
  use_device_of(out);
  RowSet<2> set({&x, &out}, axis, 1, diagonal.has_value());
  const Mask mask{diagonal.has_value(), diagonal ? x.shape[x.ndim() - 2] : 1, diagonal.value_or(0)};
  auto run = [&]<class C, int kN, bool kUnits>() {
    set.choose_group(kN, kMost);
    launch(softmax_rows<C, kN, kUnits>, set.blocks(), set.threads(), 0, set, log, static_cast<C>(scale), mask);
  };
  if (compute == DType::kFloat64)
    run.operator()<double, 8, false>();
  else if (!set.units)
    run.operator()<float, 8, false>();
  else if (set.length <= 256)  // few registers for short rows, so that they are not empty
    run.operator()<float, 8, true>();
  else
    run.operator()<float, 16, true>();
}

void backward(const char* op, const Array& dy, const Array& y, int axis, double scale, Array& dx, bool log) {
  check_alike(op, dy, y);
  check_alike(op, dy, dx);
  const DType compute = float_compute(dy.dtype, op);
  if (dy.numel() == 0) return;
  use_device_of(dx);
  RowSet<3> set({&dy, &y, &dx}, axis, 1, false);
  auto run = [&]<class C, int kN, bool kUnits>() {
    set.choose_group(kN, kMost);
    launch(softmax_rows_backward<C, kN, kUnits>, set.blocks(), set.threads(), 0, set, log, static_cast<C>(scale));
  };
  if (compute == DType::kFloat64)
    run.operator()<double, 8, false>();
  else
    set.units ? run.operator()<float, 8, true>() : run.operator()<float, 8, false>();
}

void softmax(const Array& x, int axis, Array& out) { forward("softmax", x, axis, 1, std::nullopt, out, false); }
void log_softmax(const Array& x, int axis, Array& out) { forward("log_softmax", x, axis, 1, std::nullopt, out, true); }
void softmax_backward(const Array& dy, const Array& y, int axis, Array& dx) {
  backward("softmax_backward", dy, y, axis, 1, dx, false);
}
void log_softmax_backward(const Array& dy, const Array& y, int axis, Array& dx) {
  backward("log_softmax_backward", dy, y, axis, 1, dx, true);
}

void scale_mask_softmax(const Array& x, double scale, std::optional<int64_t> diagonal, Array& out) {
  HOLON_CHECK(x.ndim() >= 2, "scale_mask_softmax: scores of shape {}", x.shape);
  if (!(scale > 0)) fail_value("scale_mask_softmax: scale is {}. It must be positive.", scale);
  forward("scale_mask_softmax", x, x.ndim() - 1, scale, diagonal, out, false);
}
void scale_mask_softmax_backward(const Array& dy, const Array& y, double scale, Array& dx) {
  backward("scale_mask_softmax_backward", dy, y, dy.ndim() - 1, scale, dx, false);
}

void log_sum_exp(const Array& x, Array& out) {
  const DType compute = float_compute(x.dtype, "log_sum_exp");
  HOLON_CHECK(out.dtype == compute && out.is_contiguous(), "log_sum_exp: the output is {}", name(out.dtype));
  if (out.numel() == 0) return;
  use_device_of(out);
  RowSet<1> set({&x}, x.ndim() - 1, 1, true);
  HOLON_CHECK(out.numel() == set.rows.count, "log_sum_exp: {} into {}", x.shape, out.shape);
  set.choose_group(16, kMost);
  if (compute == DType::kFloat64)
    launch(log_sum_exp_rows<double, false>, set.blocks(), set.threads(), 0, set, out.data<double>());
  else
    launch(set.units ? log_sum_exp_rows<float, true> : log_sum_exp_rows<float, false>, set.blocks(), set.threads(), 0,
           set, out.data<float>());
}

HOLON_DEVICE_KERNEL(softmax, softmax);
HOLON_DEVICE_KERNEL(log_softmax, log_softmax);
HOLON_DEVICE_KERNEL(softmax_backward, softmax_backward);
HOLON_DEVICE_KERNEL(log_softmax_backward, log_softmax_backward);
HOLON_DEVICE_KERNEL(scale_mask_softmax, scale_mask_softmax);
HOLON_DEVICE_KERNEL(scale_mask_softmax_backward, scale_mask_softmax_backward);
HOLON_DEVICE_KERNEL(log_sum_exp, log_sum_exp);

}  // namespace
}  // namespace holon::kernels::cuda
