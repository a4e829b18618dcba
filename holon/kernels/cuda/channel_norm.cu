// Batch norm and group norm: sums over everything but the channels (reduction.h), a few numbers for each channel, and
// one pass over the elements with them.
#include "holon/kernels/channel_norm.h"

#include <algorithm>
#include <cmath>

#include "holon/base/error.h"
#include "holon/kernels/compute_type.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/reduction.h"
#include "holon/kernels/functors.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

namespace f = HOLON_ISA::f;

constexpr int kThreads = 256;

// Two sums in double: their differences lose digits.
struct TwoSums {
  double first, second;
};
struct AddsTwo {
  using Lane = TwoSums;
  using State = TwoSums;
  __device__ TwoSums lane() const { return {0, 0}; }
  __device__ TwoSums state() const { return {0, 0}; }
  __device__ __forceinline__ void fold(TwoSums& s, const TwoSums& l) const { s = merge(s, l); }
  __device__ __forceinline__ TwoSums merge(const TwoSums& a, const TwoSums& b) const {
    return {a.first + b.first, a.second + b.second};
  }
};

// out[at] and out[count + at] = the sums of x and of its squares.
template <class C>
struct Moments : AddsTwo {
  static constexpr int kInputs = 1;
  using Stored = C;
  double* out;
  int64_t count;
  __device__ __forceinline__ void take(TwoSums& l, const C (&x)[1], int64_t, int64_t) const {
    const auto v = static_cast<double>(x[0]);
    l.first += v;
    l.second += v * v;
  }
  __device__ __forceinline__ void store(int64_t at, const TwoSums& s) const {
    out[at] = s.first;
    out[count + at] = s.second;
  }
};

// The same of dy and dy (x - mean[at]).
template <class C>
struct Products : AddsTwo {
  static constexpr int kInputs = 2;
  using Stored = C;
  double* out;
  int64_t count;
  const C* mean;
  __device__ __forceinline__ void take(TwoSums& l, const C (&x)[2], int64_t at, int64_t) const {
    const auto g = static_cast<double>(x[0]);
    l.first += g;
    l.second += g * (static_cast<double>(x[1]) - static_cast<double>(mean[at]));
  }
  __device__ __forceinline__ void store(int64_t at, const TwoSums& s) const {
    out[at] = s.first;
    out[count + at] = s.second;
  }
};

// Mean and reciprocal deviation of groups of `size` elements. refines: mean is there already and is only used, because
// the squares of float64 elements lose digits that count.
template <class C>
struct GroupStatistics : AddsTwo {
  static constexpr int kInputs = 1;
  using Stored = C;
  C *mean, *rstd;
  double size, eps;
  bool refines;
  __device__ __forceinline__ void take(TwoSums& l, const C (&x)[1], int64_t at, int64_t) const {
    double v = static_cast<double>(x[0]);
    if (refines) v -= static_cast<double>(mean[at]);
    l.first += v;
    l.second += v * v;
  }
  __device__ __forceinline__ void store(int64_t at, const TwoSums& s) const {
    const double m = s.first / size, variance = s.second / size - m * m;
    if (!refines) mean[at] = static_cast<C>(m);
    rstd[at] = static_cast<C>(1 / f::sqrt((variance > 0 ? variance : 0) + eps));
  }
};

// A number of each channel, or none: then what is given.
struct Channels {
  const void* data;
  DType dtype;
  explicit Channels(const Array& a) : data(a.defined() ? a.bytes() : nullptr), dtype(a.dtype) {}
  __device__ __forceinline__ double at(int64_t c, double otherwise) const {
    return data ? load_any<double>(data, dtype, c) : otherwise;
  }
};

// Images of channels in groups: batch norm has one image, and groups of one channel. Number i is that of image i /
// channels.
struct Layout {
  int64_t images, channels, per_group;
  __device__ __forceinline__ int64_t group_of(int64_t i) const {
    return i / channels * (channels / per_group) + i % channels / per_group;
  }
  HOLON_BOTH int64_t count() const { return images * channels; }
};

// y = (x - mean) factor + shift, or dx = dy factor - shift - (x - mean) slope; one of each for each channel of each
// image.
template <class C>
struct Coefficients {
  C *mean, *factor, *shift, *slope;
  Coefficients(const Scratch& room, int64_t n)
      : mean(room.data<C>()), factor(mean + n), shift(factor + n), slope(shift + n) {}
};

template <class C>
__global__ void make_coefficients(Layout layout, const C* mean, const C* rstd, Channels weight, Channels bias,
                                  Coefficients<C> out) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < layout.count();
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t c = i % layout.channels, g = layout.group_of(i);
    out.mean[i] = mean[g];
    out.factor[i] = static_cast<C>(static_cast<double>(rstd[g]) * weight.at(c, 1));
    out.shift[i] = static_cast<C>(bias.at(c, 0));
  }
}

// sums: as Products makes them. size: elements that the statistics of a group are of; 0: they are constants.
template <class C>
__global__ void make_slopes(Layout layout, const C* mean, const C* rstd, Channels weight, const double* sums,
                            double size, Coefficients<C> out) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < layout.count();
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t c = i % layout.channels, g = layout.group_of(i), first = c - c % layout.per_group;
    const auto r = static_cast<double>(rstd[g]);
    double s = 0, q = 0;
    for (int64_t k = 0; k < layout.per_group && size != 0; ++k) {
      const int64_t at = i - c + first + k;
      const double w = weight.at(first + k, 1);
      s += w * sums[at];
      q += w * sums[layout.count() + at];
    }
    out.mean[i] = mean[g];
    out.factor[i] = static_cast<C>(r * weight.at(c, 1));
    out.shift[i] = static_cast<C>(size != 0 ? r * s / size : 0.0);
    out.slope[i] = static_cast<C>(size != 0 ? r * r * r * q / size : 0.0);
  }
}

template <class C>
__global__ void spread_means(Layout layout, const C* mean, C* out) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < layout.count(); i += int64_t{gridDim.x} * kThreads)
    out[i] = mean[layout.group_of(i)];
}

template <class C>
__global__ void __launch_bounds__(kThreads)
    sum_images(Layout layout, const double* sums, const C* rstd, RowArray dweight, RowArray dbias) {
  const Group g(8, true);
  for (int64_t c0 = int64_t{blockIdx.x} * g.count; c0 < layout.channels; c0 += int64_t{gridDim.x} * g.count) {
    const int64_t c = c0 + g.index;
    const bool live = c < layout.channels;
    TwoSums t{0, 0};
    for (int64_t image = g.rank; image < layout.images && live; image += g.size) {
      const int64_t i = image * layout.channels + c;
      t.first += sums[i];
      t.second += sums[layout.count() + i] * static_cast<double>(rstd[layout.group_of(i)]);
    }
    t = g.reduce(t, [](const TwoSums& a, const TwoSums& b) { return TwoSums{a.first + b.first, a.second + b.second}; });
    if (!live || g.rank != 0) continue;
    store_any(dweight.data, dweight.dtype, c * dweight.step, t.second);
    store_any(dbias.data, dbias.dtype, c * dbias.step, t.first);
  }
}

enum : int { kX, kOut, kDy };

// data: x, out and for gradients dy; the last array of the index is the coefficients' number. kWidth elements of a unit
// have the same coefficients, or (by_channel) those that follow each other.
template <class C, int kArrays, int kWidth>
__global__ void __launch_bounds__(kThreads) scale_channels(Strided<kArrays + 1> index, RowArray x, RowArray out,
                                                           RowArray dy, bool by_channel, Coefficients<C> k) {
  constexpr int kUnroll = 2;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  visit_stored<C>(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Unit = Pack<T, kWidth>;
    using Numbers = Pack<C, kWidth>;
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < index.count; i += step * kUnroll) {
      Unit xs[kUnroll], gs[kUnroll];
      typename Strided<kArrays + 1>::At at[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u * step >= index.count) continue;
        at[u] = index.at(i + u * step);
        xs[u] = *reinterpret_cast<const Unit*>(static_cast<const T*>(x.data) + at[u].v[kX]);
        if constexpr (kArrays > 2)
          gs[u] = *reinterpret_cast<const Unit*>(static_cast<const T*>(dy.data) + at[u].v[kDy]);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u * step >= index.count) continue;
        const int64_t c = at[u].v[kArrays];
        auto numbers = [&](const C* p) {
          Numbers v;
          if (by_channel) {
            v = *reinterpret_cast<const Numbers*>(p + c);
          } else {
#pragma unroll
            for (int w = 0; w < kWidth; ++w) v.v[w] = p[c];
          }
          return v;
        };
        const Numbers m = numbers(k.mean), a = numbers(k.factor), b = numbers(k.shift);
        Unit result;
        if constexpr (kArrays > 2) {
          const Numbers s = numbers(k.slope);
#pragma unroll
          for (int w = 0; w < kWidth; ++w)
            result.v[w] =
                narrow<T>(value_of<C>(gs[u].v[w]) * a.v[w] - b.v[w] - (value_of<C>(xs[u].v[w]) - m.v[w]) * s.v[w]);
        } else {
#pragma unroll
          for (int w = 0; w < kWidth; ++w)
            result.v[w] = narrow<T>((value_of<C>(xs[u].v[w]) - m.v[w]) * a.v[w] + b.v[w]);
        }
        *reinterpret_cast<Unit*>(static_cast<T*>(out.data) + at[u].v[kOut]) = result;
      }
    }
  });
}

// One pass over the elements; arrays: x, out and dy or not.
template <class C, int kArrays>
void run_scale(const Array* const (&arrays)[kArrays], const Layout& layout, const Coefficients<C>& k) {
  const Array& x = *arrays[0];
  int order[kMaxAxes];
  for (int i = 0; i < x.ndim(); ++i) order[i] = i;
  std::stable_sort(order, order + x.ndim(),
                   [&](int i, int j) { return std::abs(x.strides[i]) > std::abs(x.strides[j]); });
  Dims shape, strides[kArrays + 1];
  for (int o = 0; o < x.ndim(); ++o) {
    const int i = order[o];
    if (x.shape[i] == 1) continue;
    shape.push_back(x.shape[i]);
    for (int a = 0; a < kArrays; ++a) strides[a].push_back(arrays[a]->strides[i]);
    strides[kArrays].push_back(i == 1 ? 1 : i == 0 && layout.images > 1 ? layout.channels : 0);
  }
  Strided<kArrays + 1> index(shape, strides);
  const int last = index.axes - 1;
  const bool by_channel = last >= 0 && index.stride[0][kArrays] == 1;
  bool units = last >= 0 && index.size[0] % kUnit == 0 && (by_channel || index.stride[0][kArrays] == 0);
  for (int a = 0; a < kArrays && units; ++a) {
    HOLON_CHECK(arrays[a]->shape == x.shape && arrays[a]->dtype == x.dtype, "batch_norm: {} {} with {} {}",
                arrays[a]->shape, name(arrays[a]->dtype), x.shape, name(x.dtype));
    units =
        index.stride[0][a] == 1 && reinterpret_cast<uintptr_t>(arrays[a]->bytes()) % (size_bytes(x.dtype) * kUnit) == 0;
    for (int d = 1; d < index.axes; ++d) units = units && index.stride[d][a] % kUnit == 0;
  }
  for (int d = 1; d < index.axes && by_channel; ++d) units = units && index.stride[d][kArrays] % kUnit == 0;
  units =
      units && (!by_channel || layout.count() % kUnit == 0);  // then each kind of coefficient begins at a whole unit
  const RowArray in(x, 1), out(*arrays[1], 1), dy = kArrays > 2 ? RowArray(*arrays[kArrays - 1], 1) : RowArray();
  if (!units) {
    launch(scale_channels<C, kArrays, 1>, blocks_for(index.count, kThreads * 2), kThreads, 0, index, in, out, dy,
           by_channel, k);
    return;
  }
  shape = {};
  Dims unit_strides[kArrays + 1];
  for (int d = last; d >= 0; --d) {
    shape.push_back(d == 0 ? index.size[0] / kUnit : index.size[d]);
    for (int a = 0; a <= kArrays; ++a)
      unit_strides[a].push_back(d == 0 ? index.stride[0][a] * kUnit : index.stride[d][a]);
  }
  const Strided<kArrays + 1> of_units(shape, unit_strides);
  launch(scale_channels<C, kArrays, kUnit>, blocks_for(of_units.count, kThreads * 2), kThreads, 0, of_units, in, out,
         dy, by_channel, k);
}

DType compute_of(const Array& x) {
  HOLON_CHECK(x.ndim() >= 2, "batch_norm: {} has no channels.", x.shape);
  return float_compute(x.dtype, "batch_norm");
}
template <class F>
void with_compute(const Array& x, F&& f) {
  compute_of(x) == DType::kFloat64 ? f.template operator()<double>() : f.template operator()<float>();
}

// One number for each of n, contiguous, in the dtype.
Array numbers(const Array& a, int64_t n, DType dtype) {
  if (!a.defined()) return a;
  HOLON_CHECK(a.numel() == n, "batch_norm: {} numbers for {} channels.", a.numel(), n);
  if (a.dtype == dtype) return contiguous(a);
  Array b = Array::empty(a.shape, dtype, a.device);
  copy(a, b);
  return b;
}
Array weights(const Array& a, int64_t n) { return numbers(a, n, a.dtype); }

void check_sums(const Array& out, int64_t channels) {
  HOLON_CHECK(out.shape == (Dims{2, channels}) && out.dtype == DType::kFloat64 && out.is_contiguous(),
              "batch_norm: sums into {} {}", name(out.dtype), out.shape);
}
Dims channel_strides(const Array& x, int64_t of_images) {
  Dims s = Dims::filled(x.ndim(), 0);
  s[1] = 1;
  s[0] = of_images;
  return s;
}

void channel_moments(const Array& x, Array& out) {
  use_device_of(out);
  with_compute(x, [&]<class C>() {
    const int64_t n = x.shape[1];
    check_sums(out, n);
    const Array* const in[] = {&x};
    run_reduction(Moments<C>{{}, out.data<double>(), n}, in, ((1u << x.ndim()) - 1) & ~2u, channel_strides(x, 0));
  });
}

void channel_products(const Array& dy, const Array& x, const Array& mean, Array& out) {
  use_device_of(out);
  with_compute(x, [&]<class C>() {
    const int64_t n = x.shape[1];
    check_sums(out, n);
    const Array m = numbers(mean, n, DTypeOf<C>::value);
    const Array* const in[] = {&dy, &x};
    run_reduction(Products<C>{{}, out.data<double>(), n, m.data<C>()}, in, ((1u << x.ndim()) - 1) & ~2u,
                  channel_strides(x, 0));
  });
}

void channel_normalize(const Array& x, const Array& mean, const Array& rstd, const Array& weight, const Array& bias,
                       Array& y) {
  if (x.numel() == 0) return;
  use_device_of(y);
  with_compute(x, [&]<class C>() {
    const Layout layout{1, x.shape[1], 1};
    const int64_t n = layout.channels;
    const Array m = numbers(mean, n, DTypeOf<C>::value), r = numbers(rstd, n, DTypeOf<C>::value),
                w = weights(weight, n), b = weights(bias, n);
    const Scratch room(static_cast<size_t>(4 * n) * sizeof(C));
    const Coefficients<C> k(room, n);
    launch(make_coefficients<C>, blocks_for(n, kThreads), kThreads, 0, layout, m.data<C>(), r.data<C>(), Channels(w),
           Channels(b), k);
    run_scale<C, 2>({&x, &y}, layout, k);
  });
}

void channel_normalize_backward(const Array& dy, const Array& x, const Array& mean, const Array& rstd,
                                const Array& weight, const Array& products, double count, Array& dx) {
  if (x.numel() == 0) return;
  use_device_of(dx);
  with_compute(x, [&]<class C>() {
    const Layout layout{1, x.shape[1], 1};
    const int64_t n = layout.channels;
    const Array m = numbers(mean, n, DTypeOf<C>::value), r = numbers(rstd, n, DTypeOf<C>::value),
                w = weights(weight, n);
    const Scratch room(static_cast<size_t>(4 * n) * sizeof(C));
    const Coefficients<C> k(room, n);
    launch(make_slopes<C>, blocks_for(n, kThreads), kThreads, 0, layout, m.data<C>(), r.data<C>(), Channels(w),
           products.data<double>(), count, k);
    run_scale<C, 3>({&x, &dx, &dy}, layout, k);
  });
}

__global__ void make_statistics(const double* sums, int64_t n, double count, double eps, double momentum,
                                RowArray old_mean, RowArray old_var, RowArray mean, RowArray rstd, RowArray new_mean,
                                RowArray new_var) {
  for (int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x; c < n; c += int64_t{gridDim.x} * kThreads) {
    const double m = sums[c] / count;
    double var = sums[n + c] / count - m * m;
    var = var > 0 ? var : m != m ? m : 0;
    const double fresh = var * count / (count - 1);
    store_any(mean.data, mean.dtype, c * mean.step, m);
    store_any(rstd.data, rstd.dtype, c * rstd.step, 1 / f::sqrt(var + eps));
    auto next = [&](const RowArray& old, double v) {
      return old.data ? (1 - momentum) * load_any<double>(old.data, old.dtype, c * old.step) + momentum * v : v;
    };
    store_any(new_mean.data, new_mean.dtype, c * new_mean.step, next(old_mean, m));
    store_any(new_var.data, new_var.dtype, c * new_var.step, next(old_var, fresh));
  }
}

RowArray of_channels(const Array& a) {
  return a.defined() ? RowArray(a, a.ndim() ? a.strides[a.ndim() - 1] : 1) : RowArray();
}

void channel_statistics(const Array& sums, const Array& running_mean, const Array& running_var, double count,
                        double eps, double momentum, Array& mean, Array& rstd, Array& new_mean, Array& new_var) {
  const int64_t n = mean.numel();
  use_device_of(mean);
  launch(make_statistics, blocks_for(n, kThreads), kThreads, 0, sums.data<double>(), n, count, eps, momentum,
         of_channels(running_mean), of_channels(running_var), of_channels(mean), of_channels(rstd),
         of_channels(new_mean), of_channels(new_var));
}

void channel_weight_gradients(const Array& products, const Array& rstd, Array& dweight, Array& dbias) {
  use_device_of(dweight);
  const int64_t n = rstd.numel();
  const Array r = numbers(rstd, n, DType::kFloat64);
  launch(sum_images<double>, blocks_for(n, kWarp), kThreads, 0, Layout{1, n, 1}, products.data<double>(),
         r.data<double>(), of_channels(dweight), of_channels(dbias));
}

Layout groups_of(const Array& x, const Array& mean) {
  HOLON_CHECK(x.ndim() >= 2 && mean.ndim() == 2 && mean.shape[0] == x.shape[0], "group_norm: statistics {} of {}",
              mean.shape, x.shape);
  const int64_t groups = mean.shape[1], channels = x.shape[1];
  HOLON_CHECK(groups > 0 && channels % groups == 0, "group_norm: {} channels in {} groups.", channels, groups);
  return {x.shape[0], channels, channels / groups};
}

// x [n, groups, channels of a group, ...].
Array in_groups(const Array& x, const Layout& l) {
  const int64_t groups = l.channels / l.per_group;
  if (x.is_contiguous() || x.ndim() == kMaxAxes) {
    const int64_t size = x.numel() / (l.images * groups);
    return contiguous(x).view({l.images, groups, size}, {groups * size, size, 1});
  }
  Dims shape = x.shape, strides = x.strides;
  shape[1] = l.per_group;
  shape.insert(1, groups);
  strides.insert(1, x.strides[1] * l.per_group);
  return x.view(shape, strides);
}

void group_norm(const Array& x, const Array& weight, const Array& bias, double eps, Array& y, Array& mean,
                Array& rstd) {
  if (x.numel() == 0) {
    fill(mean, 0);
    return fill(rstd, 1 / std::sqrt(eps));
  }
  use_device_of(y);
  with_compute(x, [&]<class C>() {
    const Layout layout = groups_of(x, mean);
    const int64_t n = layout.count(), groups = layout.channels / layout.per_group;
    HOLON_CHECK(mean.is_contiguous() && rstd.is_contiguous() && mean.dtype == DTypeOf<C>::value &&
                    rstd.dtype == mean.dtype,
                "group_norm: statistics {} {}", name(mean.dtype), mean.shape);
    const Array grouped = in_groups(x, layout), w = weights(weight, layout.channels),
                b = weights(bias, layout.channels);
    const Array* const in[] = {&grouped};
    const uint32_t axes = ((1u << grouped.ndim()) - 1) & ~3u;
    GroupStatistics<C> statistics{
        {}, mean.data<C>(), rstd.data<C>(), static_cast<double>(x.numel() / (layout.images * groups)), eps, false};
    run_reduction(statistics, in, axes, channel_strides(grouped, groups));
    statistics.refines = std::is_same_v<C, double>;
    if (statistics.refines) run_reduction(statistics, in, axes, channel_strides(grouped, groups));
    const Scratch room(static_cast<size_t>(4 * n) * sizeof(C));
    const Coefficients<C> k(room, n);
    launch(make_coefficients<C>, blocks_for(n, kThreads), kThreads, 0, layout, mean.data<C>(), rstd.data<C>(),
           Channels(w), Channels(b), k);
    run_scale<C, 2>({&x, &y}, layout, k);
  });
}

void group_norm_backward(const Array& dy, const Array& x, const Array& mean, const Array& rstd, const Array& weight,
                         Array& dx, Array& dweight, Array& dbias) {
  use_device_of(dx);
  if (x.numel() == 0) {
    fill(dweight, 0);
    return fill(dbias, 0);
  }
  with_compute(x, [&]<class C>() {
    const Layout layout = groups_of(x, mean);
    const int64_t n = layout.count(), groups = layout.channels / layout.per_group;
    const Array m = numbers(mean, layout.images * groups, DTypeOf<C>::value),
                r = numbers(rstd, layout.images * groups, DTypeOf<C>::value);
    const Array w = weights(weight, layout.channels);
    const Scratch room(static_cast<size_t>(4 * n) * sizeof(C)), sums(static_cast<size_t>(2 * n) * sizeof(double));
    const Coefficients<C> k(room, n);
    launch(spread_means<C>, blocks_for(n, kThreads), kThreads, 0, layout, m.data<C>(), k.mean);
    const Array* const in[] = {&dy, &x};
    run_reduction(Products<C>{{}, sums.data<double>(), n, k.mean}, in, ((1u << x.ndim()) - 1) & ~3u,
                  channel_strides(x, layout.channels));
    launch(make_slopes<C>, blocks_for(n, kThreads), kThreads, 0, layout, m.data<C>(), r.data<C>(), Channels(w),
           sums.data<double>(), static_cast<double>(x.numel() / (layout.images * groups)), k);
    launch(sum_images<C>, blocks_for(layout.channels, kWarp), kThreads, 0, layout, sums.data<double>(), r.data<C>(),
           of_channels(dweight), of_channels(dbias));
    run_scale<C, 3>({&x, &dx, &dy}, layout, k);
  });
}

HOLON_DEVICE_KERNEL(channel_moments, channel_moments);
HOLON_DEVICE_KERNEL(channel_products, channel_products);
HOLON_DEVICE_KERNEL(channel_normalize, channel_normalize);
HOLON_DEVICE_KERNEL(channel_normalize_backward, channel_normalize_backward);
HOLON_DEVICE_KERNEL(channel_statistics, channel_statistics);
HOLON_DEVICE_KERNEL(channel_weight_gradients, channel_weight_gradients);
HOLON_DEVICE_KERNEL(group_norm, group_norm);
HOLON_DEVICE_KERNEL(group_norm_backward, group_norm_backward);

}  // namespace
}  // namespace holon::kernels::cuda
