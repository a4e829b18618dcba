// Layer norm and RMS norm with gradients. Rows that fit into the registers of their group are read once. The gradients
// of weight and bias are added up by each group over its rows, by each block over its groups, and then over the blocks,
// in a fixed order.
#include "holon/kernels/norm.h"

#include <algorithm>

#include "holon/base/error.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/compute_type.h"
#include "holon/kernels/cuda/reduction.h"
#include "holon/kernels/functors.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

namespace f = HOLON_ISA::f;

constexpr int kMost = 512;  // threads

enum : int { kX, kOther, kSum, kY };

// Sums of deviations from a mean, and of their squares. The first ones tell how far the mean was rounded off.
template <class C>
struct Spread {
  C sum, squares;
  struct Merge {
    __device__ __forceinline__ Spread operator()(const Spread& a, const Spread& b) const {
      return {a.sum + b.sum, a.squares + b.squares};
    }
  };
};

// Arrays: x, other, sum = x + other, y; without `adds` the middle ones are not looked at.
template <class C, int kN, bool kUnits>
__global__ void __launch_bounds__(kMost, kRowBlocks<C>)
    norm_rows(RowSet<4> set, bool adds, bool centered, RowArray weight, RowArray bias, C eps, C* mean, C* rstd) {
  const Group g(set.group, set.columns);
  const bool resident = set.length <= int64_t{g.size} * kN;
  const C count = static_cast<C>(set.length);
  for (int64_t row0 = int64_t{blockIdx.x} * g.count; row0 < set.rows.count; row0 += int64_t{gridDim.x} * g.count) {
    const int64_t row = row0 + g.index;
    const bool live = row < set.rows.count;
    const auto at = set.rows.at(live ? row : 0);
    const int64_t length = live ? set.length : 0, step = int64_t{g.size} * kN;
    C v[kN];
    auto load = [&](const Part<kN, kUnits>& part, bool first) {
      const int end = part.limit(length);
      if (adds && !first) return part.load(v, set.array[kSum], at.v[kSum], end, C(0));
      part.load(v, set.array[kX], at.v[kX], end, C(0));
      if (!adds) return;
      part.template each<C>(set.array[kOther], at.v[kOther], end, [&](int e, C other) { v[e] += other; });
      part.store(v, set.array[kSum], at.v[kSum], end);
      round_to(set.array[kSum].dtype, v);
    };
    auto sum = [&] {
      C s = 0;
#pragma unroll
      for (int e = 0; e < kN; ++e) s += v[e];
      return s;
    };
    Spread<C> spread{0, 0};
    auto add_spread = [&](const Part<kN, kUnits>& part, C m) {
      const int end = part.limit(length);
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        const C d = part.offset(e) < end ? v[e] - m : C(0);
        spread.sum += d;
        spread.squares += d * d;
      }
    };
    auto finish = [&](const Part<kN, kUnits>& part, C m, C r) {
#pragma unroll
      for (int e = 0; e < kN; ++e) v[e] = (v[e] - m) * r;
      const int end = part.limit(length);
      if (weight.data) part.template each<C>(weight, 0, end, [&](int e, C w) { v[e] *= w; });
      if (bias.data) part.template each<C>(bias, 0, end, [&](int e, C w) { v[e] += w; });
      part.store(v, set.array[kY], at.v[kY], end);
    };
    C m = 0, r;
    auto settle = [&] {
      spread = g.reduce(spread, typename Spread<C>::Merge());
      const C off = centered ? spread.sum / count : C(0), variance = spread.squares / count - off * off;
      m += off;
      r = C(1) / f::sqrt((variance < C(0) ? C(0) : variance) + eps);
    };
    if (resident) {
      const Part<kN, kUnits> part(g, 0);
      load(part, true);
      if (centered) m = g.reduce(sum(), Add()) / count;
      add_spread(part, m);
      settle();
      finish(part, m, r);
    } else {
      C s = 0;
      if (centered) {
        for (int64_t first = 0; first < set.length; first += step) {
          load(Part<kN, kUnits>(g, first), true);
          s += sum();
        }
        m = g.reduce(s, Add()) / count;
      }
      for (int64_t first = 0; first < set.length; first += step) {
        const Part<kN, kUnits> part(g, first);
        load(part, !centered);
        add_spread(part, m);
      }
      settle();
      for (int64_t first = 0; first < set.length; first += step) {
        const Part<kN, kUnits> part(g, first);
        load(part, false);
        finish(part, m, r);
      }
    }
    if (!live || g.rank != 0) continue;
    if (centered) mean[row] = m;
    rstd[row] = r;
  }
}

enum : int { kDy, kInput, kAdded, kDx };

// Arrays: dy, x, other, dx. parts, if any: for each block the sums over its rows of dy xhat, and of dy.
template <class C, int kN, bool kUnits, bool kParts>
__global__ void __launch_bounds__(kMost, kN <= 8 ? kRowBlocks<C> : 1)
    norm_rows_backward(RowSet<4> set, bool adds, RowArray weight, const C* mean, const C* rstd, C* parts) {
  const Group g(set.group, set.columns);
  const bool resident = kParts || set.length <= int64_t{g.size} * kN;
  const C count = static_cast<C>(set.length);
  C dw[kParts ? kN : 1] = {}, db[kParts ? kN : 1] = {};
  for (int64_t row0 = int64_t{blockIdx.x} * g.count; row0 < set.rows.count; row0 += int64_t{gridDim.x} * g.count) {
    const int64_t row = row0 + g.index;
    const bool live = row < set.rows.count;
    const auto at = set.rows.at(live ? row : 0);
    const int64_t length = live ? set.length : 0, step = int64_t{g.size} * kN;
    const C m = live && mean ? mean[row] : C(0), r = live ? rstd[row] : C(0);
    C d[kN], h[kN];  // dy weight, x - mean: scaled late, so that their products cancel where they should
    auto load = [&](const Part<kN, kUnits>& part) {
      const int end = part.limit(length);
      part.load(d, set.array[kDy], at.v[kDy], end, C(0));
      part.load(h, set.array[kInput], at.v[kInput], end, m);
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        h[e] -= m;
        if constexpr (kParts) {
          dw[e] += d[e] * (h[e] * r);
          db[e] += d[e];
        }
      }
      if (weight.data) part.template each<C>(weight, 0, end, [&](int e, C w) { d[e] *= w; });
    };
    C s = 0, q = 0;
    auto add_up = [&] {
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        s += d[e];
        q += d[e] * h[e];
      }
    };
    auto finish = [&](const Part<kN, kUnits>& part) {
#pragma unroll
      for (int e = 0; e < kN; ++e) d[e] = r * (d[e] - s - h[e] * r * q);
      const int end = part.limit(length);
      if (adds) part.template each<C>(set.array[kAdded], at.v[kAdded], end, [&](int e, C added) { d[e] += added; });
      part.store(d, set.array[kDx], at.v[kDx], end);
    };
    auto means = [&] {
      s = mean ? g.reduce(s, Add()) / count : C(0);
      q = g.reduce(q, Add()) * r / count;
    };
    if (resident) {
      const Part<kN, kUnits> part(g, 0);
      load(part);
      add_up();
      means();
      finish(part);
    } else {
      for (int64_t first = 0; first < set.length; first += step) {
        load(Part<kN, kUnits>(g, first));
        add_up();
      }
      means();
      for (int64_t first = 0; first < set.length; first += step) {
        const Part<kN, kUnits> part(g, first);
        load(part);
        finish(part);
      }
    }
  }
  if constexpr (kParts) {
    const Part<kN, kUnits> part(g, 0);
    const int end = part.limit(set.length);
    C* out = parts + int64_t{blockIdx.x} * 2 * set.length;
    C* total = g.count > 1 ? dynamic_shared<C>() : out;
    for (int turn = 0; turn < g.count; ++turn) {
      if (turn == g.index) {
#pragma unroll
        for (int e = 0; e < kN; ++e) {
          if (part.offset(e) >= end) continue;
          const int64_t j = part.begin() + part.offset(e);
          total[j] = turn == 0 ? dw[e] : total[j] + dw[e];
          total[set.length + j] = turn == 0 ? db[e] : total[set.length + j] + db[e];
        }
      }
      __syncthreads();
    }
    if (g.count > 1)
      for (int64_t j = threadIdx.x; j < 2 * set.length; j += blockDim.x) out[j] = total[j];
  }
}

template <class C>
__global__ void __launch_bounds__(256)
    sum_parts(const C* parts, int64_t blocks, int64_t n, RowArray dweight, RowArray dbias, Strided<2> index) {
  const Group g(8, true);
  for (int64_t j0 = int64_t{blockIdx.x} * g.count; j0 < 2 * n; j0 += int64_t{gridDim.x} * g.count) {
    const int64_t j = j0 + g.index;
    // Not a reference to one of the parameters, for which they would be copied to memory.
    void* const out = j < n ? dweight.data : dbias.data;
    const bool wanted = j < 2 * n && out;
    double s = 0;
    for (int64_t b = g.rank; b < blocks && wanted; b += g.size) s += static_cast<double>(parts[b * 2 * n + j]);
    s = g.reduce(s, Add());
    if (!wanted || g.rank != 0) continue;
    const auto at = index.at(j < n ? j : j - n);
    store_any(out, j < n ? dweight.dtype : dbias.dtype, j < n ? at.v[0] : at.v[1], s);
  }
}

// Sums over the rows, for weights too long for the pass over the rows: of dy xhat into dweight, of dy into dbias.
template <class C>
struct WeightSums {
  static constexpr int kInputs = 2;
  using Stored = C;
  struct Lane {
    C product, sum;
  };
  struct State {
    double product, sum;
  };
  const C *mean, *rstd;
  RowArray dweight, dbias;

  __device__ Lane lane() const { return {0, 0}; }
  __device__ State state() const { return {0, 0}; }
  __device__ __forceinline__ void take(Lane& l, const C (&x)[2], int64_t, int64_t row) const {
    l.product += x[0] * ((x[1] - (mean ? mean[row] : C(0))) * rstd[row]);
    l.sum += x[0];
  }
  __device__ __forceinline__ void fold(State& s, const Lane& l) const {
    s.product += static_cast<double>(l.product);
    s.sum += static_cast<double>(l.sum);
  }
  __device__ __forceinline__ State merge(const State& a, const State& b) const {
    return {a.product + b.product, a.sum + b.sum};
  }
  __device__ __forceinline__ void store(int64_t at, const State& s) const {
    if (dweight.data) store_any(dweight.data, dweight.dtype, at, s.product);
    if (dbias.data) store_any(dbias.data, dbias.dtype, at, s.sum);
  }
};

// A weight as the rows' kernels take it: elements of equal steps, of a dtype that is loaded as the one that is computed
// in.
Array as_weight(const Array& a, DType compute, int64_t n) {
  if (!a.defined()) return a;
  HOLON_CHECK(a.numel() == n, "norm: a weight of shape {} for rows of {} elements", a.shape, n);
  if (a.dtype <= compute) return contiguous(a);
  Array b = Array::empty(a.shape, compute, a.device);
  copy(a, b);
  return b;
}
bool whole_units(const Array& a) {
  return !a.defined() || reinterpret_cast<uintptr_t>(a.bytes()) % (size_bytes(a.dtype) * kUnit) == 0;
}

void check_operand(const char* op, const Array& a, const Array& like, DType compute) {
  HOLON_CHECK(a.shape == like.shape && float_compute(a.dtype, op) <= compute, "{}: {} {} with {} {}", op,
              name(a.dtype), a.shape, name(like.dtype), like.shape);
}
void check_statistic(const Array& a, int64_t rows, DType compute) {
  HOLON_CHECK(a.numel() == rows && a.dtype == compute && a.is_contiguous(),
              "norm: a statistic of shape {} {} for {} rows", a.shape, name(a.dtype), rows);
}

void forward(const char* op, const Array& x, const Array* other, int axes, const Array& weight, const Array& bias,
             double eps, Array* sum, Array& y, Array* mean, Array& rstd) {
  const Array& normed = sum ? *sum : x;
  const DType compute = float_compute(normed.dtype, op);
  HOLON_CHECK(sum || x.dtype == y.dtype, "{}: {} into {}", op, name(x.dtype), name(y.dtype));
  check_operand(op, x, normed, compute);
  check_operand(op, y, normed, compute);
  if (other) check_operand(op, *other, normed, compute);
  if (x.numel() == 0) return;
  use_device_of(y);
  const Array in = with_rows(x, axes), more = other ? with_rows(*other, axes) : in;
  Array out = with_rows(y, axes), total = sum ? with_rows(*sum, axes) : in;
  RowSet<4> set({&in, &more, &total, &out}, x.ndim() - axes, axes, true);
  check_statistic(rstd, set.rows.count, compute);
  if (mean) check_statistic(*mean, set.rows.count, compute);
  const Array w = as_weight(weight, compute, set.length), b = as_weight(bias, compute, set.length);
  set.units = set.units && whole_units(w) && whole_units(b);
  auto run = [&]<class C, int kN, bool kUnits>() {
    set.choose_group(kN, kMost);
    launch(norm_rows<C, kN, kUnits>, set.blocks(), set.threads(), 0, set, other != nullptr, mean != nullptr,
           RowArray(w, 1), RowArray(b, 1), static_cast<C>(eps), mean ? mean->data<C>() : nullptr, rstd.data<C>());
  };
  if (compute == DType::kFloat64)
    run.operator()<double, 8, false>();
  else
    set.units ? run.operator()<float, 8, true>() : run.operator()<float, 8, false>();
  if (out.storage.get() != y.storage.get()) copy(out, y);
  if (sum && total.storage.get() != sum->storage.get()) copy(total, *sum);
}

// In the dtype, and as rows of equal steps.
Array converted(const Array& a, DType dtype) {
  if (a.dtype == dtype) return a;
  Array b = Array::empty(a.shape, dtype, a.device);
  copy(a, b);
  return b;
}
// The rows' axes and the others as one each.
Array as_matrix(const Array& a, int64_t rows, int64_t n) {
  const Array c = contiguous(a);
  return c.view({rows, n}, {n, 1});
}

template <class C>
void run_backward(RowSet<4>& set, const Array& dy, const Array& x, bool adds, const Array& w, const Array& mean,
                  const Array& rstd, Array* dweight, Array* dbias) {
  const C *m = mean.defined() ? mean.data<C>() : nullptr, *r = rstd.data<C>();
  const int64_t rows = set.rows.count, n = set.length;
  // Rows whose part of the weights' gradients fits into registers with them.
  const bool fits = n <= kMost * (std::is_same_v<C, float> && set.units ? 16 : 8);
  if ((dweight || dbias) && fits && !set.columns) {
    const bool is_long = n > kMost * 8;
    set.choose_group(is_long ? 16 : 8, kMost);
    const int of_block = kMost / set.group;
    const int64_t blocks = std::min((rows + of_block - 1) / of_block, int64_t{multiprocessors()} * (is_long ? 1 : 2));
    const Scratch parts(static_cast<size_t>(blocks * 2 * n) * sizeof(C));
    const size_t shared = of_block > 1 ? static_cast<size_t>(2 * n) * sizeof(C) : 0;
    auto run = [&](auto kernel) {
      launch(kernel, static_cast<unsigned>(blocks), kMost, shared, set, adds, RowArray(w, 1), m, r, parts.data<C>());
    };
    if constexpr (std::is_same_v<C, float>) {
      if (set.units)
        run(is_long ? norm_rows_backward<C, 16, true, true> : norm_rows_backward<C, 8, true, true>);
      else
        run(norm_rows_backward<C, 8, false, true>);
    } else {
      run(norm_rows_backward<C, 8, false, true>);
    }
    const Array& shaped = dweight ? *dweight : *dbias;
    const Strided<2> index(shaped.shape, {shaped.strides, dbias ? dbias->strides : shaped.strides});
    launch(sum_parts<C>, blocks_for(2 * n, kWarp), 256, 0, parts.data<C>(), blocks, n,
           dweight ? RowArray(*dweight, 1) : RowArray(), dbias ? RowArray(*dbias, 1) : RowArray(), index);
    return;
  }
  if (dweight || dbias) {  // first: dx may be dy
    const Array matrices[] = {as_matrix(converted(dy, x.dtype), rows, n), as_matrix(x, rows, n)};
    const Array* const in[] = {&matrices[0], &matrices[1]};
    Array sums[2];
    for (int k = 0; k < 2; ++k)
      if (k ? dbias : dweight) sums[k] = Array::empty({n}, DType::kFloat64, x.device);
    run_reduction(WeightSums<C>{m, r, RowArray(sums[0], 1), RowArray(sums[1], 1)}, in, 1, {0, 1});
    for (int k = 0; k < 2; ++k)
      if (Array* d = k ? dbias : dweight) copy(sums[k].view(d->shape, contiguous_strides(d->shape)), *d);
  }
  set.choose_group(8, kMost);
  auto kernel = norm_rows_backward<C, 8, false, false>;
  if constexpr (std::is_same_v<C, float>)
    if (set.units) kernel = norm_rows_backward<C, 8, true, false>;
  launch(kernel, set.blocks(), set.threads(), 0, set, adds, RowArray(w, 1), m, r, nullptr);
}

void backward(const char* op, const Array& dy, const Array& x, int axes, const Array& weight, const Array* mean,
              const Array& rstd, const Array* other, Array& dx, Array* dweight, Array* dbias) {
  const DType compute = float_compute(x.dtype, op);
  HOLON_CHECK(x.shape == dx.shape && x.dtype == dx.dtype, "{}: {} {} into {} {}", op, name(x.dtype), x.shape,
              name(dx.dtype), dx.shape);
  HOLON_CHECK(other || x.dtype == dy.dtype, "{}: {} and {}", op, name(x.dtype), name(dy.dtype));
  check_operand(op, dy, x, compute);
  if (other) check_operand(op, *other, x, compute);
  use_device_of(dx);
  for (Array* d : {dweight, dbias})
    if (d && x.numel() == 0) fill(*d, 0);
  if (x.numel() == 0) return;
  const Array in = with_rows(x, axes), gradient = with_rows(dy, axes), more = other ? with_rows(*other, axes) : in;
  Array out = with_rows(dx, axes);
  RowSet<4> set({&gradient, &in, &more, &out}, x.ndim() - axes, axes, true);
  // A rank's part of a statistic may be a window on the whole.
  const Array r = contiguous(rstd), m = mean ? contiguous(*mean) : Array(), w = as_weight(weight, compute, set.length);
  check_statistic(r, set.rows.count, compute);
  if (mean) check_statistic(m, set.rows.count, compute);
  for (Array* d : {dweight, dbias})
    HOLON_CHECK(!d || d->numel() == set.length, "{}: a gradient of shape {} for rows of {} elements", op, d->shape,
                set.length);
  set.units = set.units && whole_units(w);
  if (compute == DType::kFloat64)
    run_backward<double>(set, gradient, in, other != nullptr, w, m, r, dweight, dbias);
  else
    run_backward<float>(set, gradient, in, other != nullptr, w, m, r, dweight, dbias);
  if (out.storage.get() != dx.storage.get()) copy(out, dx);
}

void layer_norm(const Array& x, int axes, const Array& weight, const Array& bias, double eps, Array& y, Array& mean,
                Array& rstd) {
  forward("layer_norm", x, nullptr, axes, weight, bias, eps, nullptr, y, &mean, rstd);
}
void layer_norm_backward(const Array& dy, const Array& x, int axes, const Array& weight, const Array& mean,
                         const Array& rstd, Array& dx, Array* dweight, Array* dbias) {
  backward("layer_norm_backward", dy, x, axes, weight, &mean, rstd, nullptr, dx, dweight, dbias);
}
void add_layer_norm(const Array& x, const Array& other, int axes, const Array& weight, const Array& bias, double eps,
                    Array& sum, Array& y, Array& mean, Array& rstd) {
  forward("add_layer_norm", x, &other, axes, weight, bias, eps, &sum, y, &mean, rstd);
}
void layer_norm_backward_add(const Array& dy, const Array& x, int axes, const Array& weight, const Array& mean,
                             const Array& rstd, const Array& other, Array& dx, Array* dweight, Array* dbias) {
  backward("layer_norm_backward_add", dy, x, axes, weight, &mean, rstd, &other, dx, dweight, dbias);
}
void rms_norm(const Array& x, int axes, const Array& weight, double eps, Array& y, Array& rstd) {
  forward("rms_norm", x, nullptr, axes, weight, Array(), eps, nullptr, y, nullptr, rstd);
}
void rms_norm_backward(const Array& dy, const Array& x, int axes, const Array& weight, const Array& rstd, Array& dx,
                       Array* dweight) {
  backward("rms_norm_backward", dy, x, axes, weight, nullptr, rstd, nullptr, dx, dweight, nullptr);
}
void add_rms_norm(const Array& x, const Array& other, int axes, const Array& weight, double eps, Array& sum, Array& y,
                  Array& rstd) {
  forward("add_rms_norm", x, &other, axes, weight, Array(), eps, &sum, y, nullptr, rstd);
}
void rms_norm_backward_add(const Array& dy, const Array& x, int axes, const Array& weight, const Array& rstd,
                           const Array& other, Array& dx, Array* dweight) {
  backward("rms_norm_backward_add", dy, x, axes, weight, nullptr, rstd, &other, dx, dweight, nullptr);
}

HOLON_DEVICE_KERNEL(layer_norm, layer_norm);
HOLON_DEVICE_KERNEL(layer_norm_backward, layer_norm_backward);
HOLON_DEVICE_KERNEL(add_layer_norm, add_layer_norm);
HOLON_DEVICE_KERNEL(layer_norm_backward_add, layer_norm_backward_add);
HOLON_DEVICE_KERNEL(rms_norm, rms_norm);
HOLON_DEVICE_KERNEL(rms_norm_backward, rms_norm_backward);
HOLON_DEVICE_KERNEL(add_rms_norm, add_rms_norm);
HOLON_DEVICE_KERNEL(rms_norm_backward_add, rms_norm_backward_add);

}  // namespace
}  // namespace holon::kernels::cuda
