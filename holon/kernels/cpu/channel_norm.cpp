#include "holon/kernels/channel_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/rows.h"
#include "holon/kernels/cpu/table.h"
#include "holon/kernels/device.h"
#include "holon/kernels/half.h"

namespace holon::kernels {

namespace {

constexpr int64_t kGrainElements = 32768;
constexpr int64_t kMaxBlocks = 16;

DType compute_of(const Array& x) { return float_compute(x.dtype, "batch_norm"); }

// Strides with the channels next to each other.
Dims channels_innermost(const Dims& shape) {
  Dims strides = shape;
  int64_t step = shape[1];
  for (int a = shape.size() - 1; a >= 2; --a) {
    strides[a] = step;
    step *= shape[a];
  }
  strides[1] = 1;
  strides[0] = step;
  return strides;
}

bool has_strides(const Array& x, const Dims& wanted) {
  for (int a = 0; a < x.ndim(); ++a)
    if (x.shape[a] != 1 && x.strides[a] != wanted[a]) return false;
  return true;
}

// How the elements are stored: images of channels of `inner` adjacent elements, or, where inner is 1, rows of adjacent
// channels.
struct Layout {
  int64_t images, channels, inner;
  Dims strides;

  explicit Layout(const Array& x) {
    HOLON_CHECK(x.ndim() >= 2, "batch_norm: {} has no channels.", x.shape);
    images = x.shape[0];
    channels = x.shape[1];
    inner = 1;
    for (int a = 2; a < x.ndim(); ++a) inner *= x.shape[a];
    strides = contiguous_strides(x.shape);
    Dims last = channels_innermost(x.shape);
    if (inner > 1 && !has_strides(x, strides) && has_strides(x, last)) {
      strides = last;
      images *= inner;
      inner = 1;
    }
  }
};

// x in the compute type and the given strides: itself, or a copy.
Array laid_out(const Array& x, const Dims& strides, DType compute) {
  if (x.dtype == compute && has_strides(x, strides)) return x;
  Array y = Array::empty_strided(x.shape, strides, compute, x.device);
  copy(x, y);
  return y;
}

// One number of each channel (1 or 0 if there are none) in double, and in the compute type.
struct Numbers {
  std::vector<double> d;
  std::vector<float> f;
  Numbers(const Array& a, int64_t n, double otherwise) : d(to_size(n), otherwise) {
    if (!a.defined()) return;
    HOLON_CHECK(a.numel() == n, "batch_norm: {} numbers for {} channels.", a.numel(), n);
    Array w = Array::empty(a.shape, DType::kFloat64, a.device);
    copy(a, w);
    std::copy_n(w.data<double>(), n, d.begin());
  }
  explicit Numbers(int64_t n) : d(to_size(n), 0.0) {}
  double operator[](int64_t i) const { return at_index(d, i); }
  double& operator[](int64_t i) { return at_index(d, i); }
  const void* as(DType compute) {
    if (compute == DType::kFloat64) return d.data();
    f.assign(d.begin(), d.end());
    return f.data();
  }
};

std::byte* at(const Array& a, int64_t element) {
  return a.bytes() + element * static_cast<int64_t>(size_bytes(a.dtype));
}

const ChannelLoops& loops_of(DType compute) { return table().channels[compute == DType::kFloat64]; }

// Two sums for each channel. row(channel's first element, sums), columns(first element, rows, sums): blocks of rows do
// not depend on the number of threads, so neither do the sums.
template <class Row, class Columns>
void two_sums(const Layout& l, Array& out, Row&& row, Columns&& columns) {
  HOLON_CHECK(out.shape == (Dims{2, l.channels}) && out.dtype == DType::kFloat64 && out.is_contiguous(),
              "batch_norm: sums into {} {}", name(out.dtype), out.shape);
  double* sums = out.data<double>();
  const int64_t c = l.channels;
  std::fill_n(sums, 2 * c, 0.0);
  if (l.images * c * l.inner == 0) return;
  if (l.inner > 1) {
    parallel_for(c, std::max<int64_t>(1, kGrainElements / (l.images * l.inner)), [&](int64_t begin, int64_t end) {
      for (int64_t image = 0; image < l.images; ++image)
        for (int64_t k = begin; k < end; ++k) row((image * c + k) * l.inner, k, sums + k, sums + c + k);
    });
    return;
  }
  const int64_t blocks = std::clamp<int64_t>(l.images * c / kGrainElements, 1, kMaxBlocks);
  std::vector<double> part(to_size(blocks * 2 * c));
  parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = l.images * b / blocks, last = l.images * (b + 1) / blocks;
      columns(first * c, last - first, part.data() + b * 2 * c, part.data() + b * 2 * c + c);
    }
  });
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t k = 0; k < 2 * c; ++k) sums[k] += at_index(part, b * 2 * c + k);
}

// f(element, channel, rows) over rows of a channel, or over rows of all channels.
template <class F>
void over_rows(const Layout& l, F&& f) {
  if (l.inner > 1)
    parallel_for(l.images * l.channels, std::max<int64_t>(1, kGrainElements / l.inner),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) f(i * l.inner, i % l.channels, int64_t{1});
                 });
  else
    parallel_for(l.images, std::max<int64_t>(1, kGrainElements / std::max<int64_t>(l.channels, 1)),
                 [&](int64_t begin, int64_t end) { f(begin * l.channels, int64_t{0}, end - begin); });
}

// Runs f on out, or on a block in the compute type and strides that is then copied to it.
template <class F>
void into(Array& out, const Dims& strides, DType compute, F&& f) {
  if (out.dtype == compute && has_strides(out, strides)) return f(out);
  Array y = Array::empty_strided(out.shape, strides, compute, out.device);
  f(y);
  copy(y, out);
}

}  // namespace

void channel_moments(const Array& x, Array& out) {
  HOLON_ON_DEVICE(out, channel_moments, x, out);
  const DType compute = compute_of(x);
  const Layout l(x);
  const Array in = laid_out(x, l.strides, compute);
  const ChannelLoops& loops = loops_of(compute);
  two_sums(
      l, out, [&](int64_t e, int64_t, double* s, double* q) { loops.row_moments(at(in, e), l.inner, s, q); },
      [&](int64_t e, int64_t rows, double* s, double* q) {
        loops.column_moments(at(in, e), l.channels, rows, l.channels, s, q);
      });
}

void channel_products(const Array& dy, const Array& x, const Array& mean, Array& out) {
  HOLON_ON_DEVICE(out, channel_products, dy, x, mean, out);
  const DType compute = compute_of(x);
  const Layout l(x);
  const Array in = laid_out(x, l.strides, compute), g = laid_out(dy, l.strides, compute);
  const Numbers m(mean, l.channels, 0);
  const ChannelLoops& loops = loops_of(compute);
  two_sums(
      l, out,
      [&](int64_t e, int64_t k, double* s, double* q) { loops.row_products(at(g, e), at(in, e), l.inner, m[k], s, q); },
      [&](int64_t e, int64_t rows, double* s, double* q) {
        loops.column_products(at(g, e), at(in, e), l.channels, rows, l.channels, m.d.data(), s, q);
      });
}

void channel_normalize(const Array& x, const Array& mean, const Array& rstd, const Array& weight, const Array& bias,
                       Array& y) {
  HOLON_ON_DEVICE(y, channel_normalize, x, mean, rstd, weight, bias, y);
  const DType compute = compute_of(x);
  const Layout l(x);
  if (x.numel() == 0) return;
  const Array in = laid_out(x, l.strides, compute);
  Numbers m(mean, l.channels, 0), k(rstd, l.channels, 1), b(bias, l.channels, 0);
  const Numbers w(weight, l.channels, 1);
  for (int64_t c = 0; c < l.channels; ++c) k[c] *= w[c];
  const ChannelLoops& loops = loops_of(compute);
  const void *pm = m.as(compute), *pk = k.as(compute), *pb = b.as(compute);
  into(y, l.strides, compute, [&](Array& out) {
    over_rows(l, [&](int64_t e, int64_t c, int64_t rows) {
      if (l.inner > 1)
        loops.row_scale(at(in, e), at(out, e), l.inner, m[c], k[c], b[c]);
      else
        loops.column_scale(at(in, e), at(out, e), l.channels, rows, l.channels, pm, pk, pb);
    });
  });
}

void channel_normalize_backward(const Array& dy, const Array& x, const Array& mean, const Array& rstd,
                                const Array& weight, const Array& products, double count, Array& dx) {
  HOLON_ON_DEVICE(dx, channel_normalize_backward, dy, x, mean, rstd, weight, products, count, dx);
  const DType compute = compute_of(x);
  const Layout l(x);
  if (x.numel() == 0) return;
  const Array in = laid_out(x, l.strides, compute), g = laid_out(dy, l.strides, compute);
  const int64_t n = l.channels;
  Numbers m(mean, n, 0), k(rstd, n, 1), b(n), s(n);
  const Numbers w(weight, n, 1);
  for (int64_t c = 0; c < n; ++c) {
    const double r = k[c];
    k[c] = r * w[c];
    if (count == 0) continue;
    b[c] = k[c] * products.data<double>()[c] / count;
    s[c] = k[c] * r * r * products.data<double>()[n + c] / count;
  }
  const ChannelLoops& loops = loops_of(compute);
  const void *pm = m.as(compute), *pk = k.as(compute), *pb = b.as(compute), *ps = s.as(compute);
  into(dx, l.strides, compute, [&](Array& out) {
    over_rows(l, [&](int64_t e, int64_t c, int64_t rows) {
      if (l.inner > 1)
        loops.row_scale_backward(at(g, e), at(in, e), at(out, e), l.inner, m[c], k[c], b[c], s[c]);
      else
        loops.column_scale_backward(at(g, e), at(in, e), at(out, e), n, rows, n, pm, pk, pb, ps);
    });
  });
}

void channel_statistics(const Array& sums, const Array& running_mean, const Array& running_var, double count,
                        double eps, double momentum, Array& mean, Array& rstd, Array& new_mean, Array& new_var) {
  HOLON_ON_DEVICE(mean, channel_statistics, sums, running_mean, running_var, count, eps, momentum, mean, rstd, new_mean,
                  new_var);
  const int64_t n = mean.numel();
  Array out[4];
  for (Array& a : out) a = Array::empty({n}, DType::kFloat64);
  const Numbers old[] = {Numbers(running_mean, n, 0), Numbers(running_var, n, 0)};
  const double* s = sums.data<double>();
  for (int64_t k = 0; k < n; ++k) {
    const double m = s[k] / count;
    double var = std::max(0.0, s[n + k] / count - m * m);
    if (std::isnan(m)) var = m;
    const double fresh[] = {m, var * count / (count - 1)};
    out[0].data<double>()[k] = m;
    out[1].data<double>()[k] = 1 / std::sqrt(var + eps);
    for (int i = 0; i < 2; ++i)
      out[2 + i].data<double>()[k] =
          (i ? running_var : running_mean).defined() ? (1 - momentum) * old[i][k] + momentum * fresh[i] : fresh[i];
  }
  Array* const to[] = {&mean, &rstd, &new_mean, &new_var};
  for (int i = 0; i < 4; ++i) copy(out[i], *to[i]);
}

void channel_weight_gradients(const Array& products, const Array& rstd, Array& dweight, Array& dbias) {
  HOLON_ON_DEVICE(dweight, channel_weight_gradients, products, rstd, dweight, dbias);
  const int64_t n = rstd.numel();
  const Numbers r(rstd, n, 1);
  Array dw = Array::empty({n}, DType::kFloat64);
  for (int64_t k = 0; k < n; ++k) dw.data<double>()[k] = products.data<double>()[n + k] * r[k];
  copy(dw, dweight);
  copy(products.view({n}, {1}), dbias);
}

namespace {

// Channels of images as rows, whatever the strides.
struct Groups {
  int64_t images, channels, inner, groups, per_group;
  Groups(const Array& x, const Array& mean) {
    HOLON_CHECK(x.ndim() >= 2 && mean.ndim() == 2 && mean.shape[0] == x.shape[0], "group_norm: statistics {} of {}",
                mean.shape, x.shape);
    images = x.shape[0], channels = x.shape[1], inner = 1, groups = mean.shape[1];
    for (int a = 2; a < x.ndim(); ++a) inner *= x.shape[a];
    HOLON_CHECK(groups > 0 ? channels % groups == 0 : channels == 0, "group_norm: {} channels in {} groups.", channels,
                groups);
    per_group = groups ? channels / groups : 0;
  }
};

void put(Array& a, int64_t i, double v) {
  if (a.dtype == DType::kFloat64)
    a.data<double>()[i] = v;
  else
    a.data<float>()[i] = static_cast<float>(v);
}
double get(const Array& a, int64_t i) {
  return a.dtype == DType::kFloat64 ? a.data<double>()[i] : static_cast<double>(a.data<float>()[i]);
}

}  // namespace

void group_norm(const Array& x, const Array& weight, const Array& bias, double eps, Array& y, Array& mean,
                Array& rstd) {
  HOLON_ON_DEVICE(y, group_norm, x, weight, bias, eps, y, mean, rstd);
  const DType compute = compute_of(x);
  const Groups n(x, mean);
  HOLON_CHECK(rstd.shape == mean.shape && mean.dtype == compute && rstd.dtype == compute && mean.is_contiguous() &&
                  rstd.is_contiguous(),
              "group_norm: statistics {} and {}", mean.shape, rstd.shape);
  if (x.numel() == 0) {
    for (int64_t i = 0; i < mean.numel(); ++i) put(mean, i, 0), put(rstd, i, 1 / std::sqrt(eps));
    return;
  }
  const Dims strides = contiguous_strides(x.shape);
  const Array in = laid_out(x, strides, compute);
  const Numbers w(weight, n.channels, 1), b(bias, n.channels, 0);
  const ChannelLoops& loops = loops_of(compute);
  const int64_t size = n.per_group * n.inner;
  into(y, strides, compute, [&](Array& out) {
    parallel_for(n.images * n.groups, std::max<int64_t>(1, kGrainElements / size), [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        double s = 0, q = 0;
        loops.row_moments(at(in, g * size), size, &s, &q);
        const double m = s / static_cast<double>(size);
        if (compute == DType::kFloat64) {  // squares in double lose digits that these inputs have
          s = q = 0;
          loops.row_products(at(in, g * size), at(in, g * size), size, m, &s, &q);
          q -= m * (s - m * static_cast<double>(size));
        } else {
          q -= m * s;
        }
        const double r = 1 / std::sqrt(std::max(0.0, q / static_cast<double>(size)) + eps);
        put(mean, g, m);
        put(rstd, g, r);
        for (int64_t k = 0; k < n.per_group; ++k) {
          const int64_t c = g % n.groups * n.per_group + k, e = g * size + k * n.inner;
          loops.row_scale(at(in, e), at(out, e), n.inner, m, r * w[c], b[c]);
        }
      }
    });
  });
}

void group_norm_backward(const Array& dy, const Array& x, const Array& mean, const Array& rstd, const Array& weight,
                         Array& dx, Array& dweight, Array& dbias) {
  HOLON_ON_DEVICE(dx, group_norm_backward, dy, x, mean, rstd, weight, dx, dweight, dbias);
  const DType compute = compute_of(x);
  const Groups n(x, mean);
  const Dims strides = contiguous_strides(x.shape);
  const Array in = laid_out(x, strides, compute), gradient = laid_out(dy, strides, compute);
  const Numbers w(weight, n.channels, 1);
  const ChannelLoops& loops = loops_of(compute);
  // Of each channel of each image, so that threads write apart.
  std::vector<double> sums(to_size(2 * n.images * n.channels));
  double *sum = sums.data(), *product = sum + n.images * n.channels;
  const int64_t size = n.per_group * n.inner;
  if (x.numel() > 0)
    into(dx, strides, compute, [&](Array& out) {
      parallel_for(n.images * n.groups, std::max<int64_t>(1, kGrainElements / size), [&](int64_t begin, int64_t end) {
        for (int64_t g = begin; g < end; ++g) {
          const double m = get(mean, g), r = get(rstd, g);
          double s = 0, q = 0;
          for (int64_t k = 0; k < n.per_group; ++k) {
            const int64_t row = g * n.per_group + k, c = row % n.channels, e = row * n.inner;
            loops.row_products(at(gradient, e), at(in, e), n.inner, m, sum + row, product + row);
            product[row] *= r;
            s += w[c] * sum[row];
            q += w[c] * product[row];
          }
          const double shift = r * s / static_cast<double>(size), slope = r * r * q / static_cast<double>(size);
          for (int64_t k = 0; k < n.per_group; ++k) {
            const int64_t row = g * n.per_group + k, c = row % n.channels, e = row * n.inner;
            loops.row_scale_backward(at(gradient, e), at(in, e), at(out, e), n.inner, m, r * w[c], shift, slope);
          }
        }
      });
    });
  for (int which = 0; which < 2; ++which) {
    Array& d = which ? dbias : dweight;
    const double* from = which ? sum : product;
    Array total = Array::empty(d.shape, DType::kFloat64, d.device);
    for (int64_t c = 0; c < n.channels; ++c) {
      double t = 0;
      for (int64_t image = 0; image < n.images; ++image) t += from[image * n.channels + c];
      total.data<double>()[c] = t;
    }
    copy(total, d);
  }
}

}  // namespace holon::kernels
