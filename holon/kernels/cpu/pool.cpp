#include "holon/kernels/pool.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/pool_loops.h"
#include "holon/kernels/device.h"

namespace holon::kernels {

namespace {

constexpr int64_t kParallelElements = 1 << 15;

// One window along one axis, cut to the input.
struct Span {
  int64_t start;    // of its first place inside
  int first;        // which place of the window that is
  int count, step;  // places inside, and their distance
  int64_t divisor;  // what this axis contributes to the divisor of an average
};
using Spans = std::vector<Span>;

Spans spans(const Pool2d& p, int axis, int64_t size, int64_t out) {
  const int64_t k = p.kernel[axis], step = p.dilation[axis], before = p.padding[axis], after = p.padding[axis + 2];
  HOLON_CHECK(k >= 1 && step >= 1 && p.stride[axis] >= 1, "pooling with kernel {}, stride {}, dilation {}.", k,
              p.stride[axis], step);
  Spans list(to_size(out));
  for (int64_t o = 0; o < out; ++o) {
    const int64_t at = o * p.stride[axis] - before;
    const int64_t first = at < 0 ? (-at + step - 1) / step : 0;
    const int64_t end = std::min(k, size > at ? (size - at + step - 1) / step : 0);
    const int64_t count = std::max<int64_t>(end - first, 0);
    const int64_t divisor = p.divisor ? (axis == 0 ? p.divisor : 1)
        : p.count_include_pad         ? std::min(at + k, size + after) - at
                                      : count;
    at_index(list, o) = {at + first * step, static_cast<int>(first), static_cast<int>(count), static_cast<int>(step),
                         std::max<int64_t>(divisor, 1)};
  }
  return list;
}

Spans adaptive_spans(int64_t size, int64_t out) {
  Spans list(to_size(out));
  for (int64_t o = 0; o < out; ++o) {
    const int64_t start = o * size / out, end = ((o + 1) * size + out - 1) / out;
    at_index(list, o) = {start, 0, static_cast<int>(end - start), 1, end - start};
  }
  return list;
}

// Neighbouring windows that are alike, at equal distance.
struct Run {
  int64_t first, count, step;
};

std::vector<Run> runs(const Spans& list) {
  std::vector<Run> result;
  for (size_t i = 0; i < list.size(); ++i) {
    const Span& s = list[i];
    if (!result.empty()) {
      Run& r = result.back();
      const Span& before = list[i - 1];
      const int64_t step = s.start - before.start;
      if (s.first == before.first && s.count == before.count && s.divisor == before.divisor &&
          (r.count == 1 || step == r.step)) {
        r.step = step;
        ++r.count;
        continue;
      }
    }
    result.push_back({static_cast<int64_t>(i), 1, 0});
  }
  return result;
}

// Whether no place is in two windows, and whether every place is in one.
bool disjoint(const Spans& list) {
  for (size_t i = 0; i < list.size(); ++i)
    if (list[i].step != 1 || (i > 0 && list[i].start < list[i - 1].start + list[i - 1].count)) return false;
  return true;
}
bool covers(const Spans& list, int64_t size) {
  int64_t n = 0;
  for (const Span& s : list) n += s.count;
  return n == size;
}

struct Plan {
  Spans rows, cols;
  std::vector<Run> col_runs;
  int64_t n, c, h, w, oh, ow;
  int64_t kernel_cols;
};

Plan make_plan(const Array& x, const Array& out, const Pool2d* pool) {
  HOLON_CHECK(x.ndim() == 4 && out.ndim() == 4 && x.shape[0] == out.shape[0] && x.shape[1] == out.shape[1] &&
                  x.dtype == out.dtype,
              "pooling from {} {} to {} {}.", name(x.dtype), x.shape, name(out.dtype), out.shape);
  Plan p;
  p.n = x.shape[0], p.c = x.shape[1], p.h = x.shape[2], p.w = x.shape[3], p.oh = out.shape[2], p.ow = out.shape[3];
  if (out.numel() == 0) return p;  // of windows without an element there may be more than memory counts
  p.rows = pool ? spans(*pool, 0, p.h, p.oh) : adaptive_spans(p.h, p.oh);
  p.cols = pool ? spans(*pool, 1, p.w, p.ow) : adaptive_spans(p.w, p.ow);
  p.col_runs = runs(p.cols);
  p.kernel_cols = pool ? pool->kernel[1] : p.w;
  return p;
}

bool channels_adjacent(const Array& x) { return x.strides[1] == 1; }
bool columns_adjacent(const Array& x) { return x.strides[3] == 1 || x.shape[3] == 1; }

void fill_zero(Array& x) {
  if (x.numel() == 0) return;
  if (x.is_dense()) {
    std::memset(x.bytes(), 0, x.nbytes());
    return;
  }
  const size_t size = size_bytes(x.dtype);
  for (int64_t a = 0; a < x.shape[0]; ++a)
    for (int64_t b = 0; b < x.shape[1]; ++b)
      for (int64_t c = 0; c < x.shape[2]; ++c)
        for (int64_t d = 0; d < x.shape[3]; ++d)
          std::memset(x.bytes() +
                          static_cast<int64_t>(size) *
                              (a * x.strides[0] + b * x.strides[1] + c * x.strides[2] + d * x.strides[3]),
                      0, size);
}

// f(image, output row, WindowRun without its last strides, first output column), for channels-last arrays. `images`:
// threads share images out, not rows, since windows of different rows overlap.
template <class F>
void over_channels(const Plan& p, const Array& x, bool images, F&& f) {
  const bool parallel = x.numel() >= kParallelElements && !omp_in_parallel();
  auto row = [&](int64_t image, int64_t oh) {
    const Span& r = at_index(p.rows, oh);
    for (const Run& run : p.col_runs) {
      const Span& c = at_index(p.cols, run.first);
      WindowRun w;
      w.row_step = r.step * x.strides[2], w.col_step = c.step * x.strides[3];
      w.rows = r.count, w.cols = c.count;
      w.place = static_cast<int>(r.first * p.kernel_cols + c.first), w.places_per_row = static_cast<int>(p.kernel_cols);
      w.channels = p.c, w.count = run.count;
      w.x_step = run.step * x.strides[3];
      f(image, oh, w, run.first, x.strides[0] * image + x.strides[2] * r.start + x.strides[3] * c.start,
        r.divisor * c.divisor);
    }
  };
  if (images) {
#pragma omp parallel for if (parallel) schedule(static)
    for (int64_t image = 0; image < p.n; ++image)
      for (int64_t oh = 0; oh < p.oh; ++oh) row(image, oh);
  } else {
#pragma omp parallel for collapse(2) if (parallel) schedule(static)
    for (int64_t image = 0; image < p.n; ++image)
      for (int64_t oh = 0; oh < p.oh; ++oh) row(image, oh);
  }
}

int64_t place_of(const Array& x, int64_t image, int64_t oh, int64_t ow) {
  return x.strides[0] * image + x.strides[2] * oh + x.strides[3] * ow;
}

// f(image, channel), threads sharing the planes.
template <class F>
void over_planes(const Plan& p, F&& f) {
  const bool parallel = p.n * p.c * p.h * p.w >= kParallelElements && !omp_in_parallel();
#pragma omp parallel for collapse(2) if (parallel) schedule(static)
  for (int64_t image = 0; image < p.n; ++image)
    for (int64_t c = 0; c < p.c; ++c) f(image, c);
}

// 2 x 2 windows side by side, wholly inside.
bool quarters(const Plan& p, const Pool2d& pool) {
  for (int a = 0; a < 2; ++a)
    if (pool.kernel[a] != 2 || pool.stride[a] != 2 || pool.dilation[a] != 1 || pool.padding[a] != 0) return false;
  return p.oh * 2 <= p.h && p.ow * 2 <= p.w;
}

PlaneRun plane_run(const Plan& p, const Array& x, const Array& out, const Array* index) {
  return {p.oh, p.ow, x.strides[2], out.strides[2], index ? index->strides[2] : 0};
}

bool max_fast(const Plan& p, const Array& x, const Pool2d& pool, Array& out, Array* index) {
  if (x.dtype != DType::kFloat32 || p.kernel_cols * pool.kernel[0] > 256) return false;
  const PoolLoops& loops = pool_loops();
  uint8_t* places = index ? index->data<uint8_t>() : nullptr;
  if (channels_adjacent(x) && channels_adjacent(out) && (!index || channels_adjacent(*index)) && p.c > 1) {
    over_channels(p, x, false, [&](int64_t image, int64_t oh, WindowRun& w, int64_t ow, int64_t at, int64_t) {
      w.out_step = out.strides[3], w.index_step = index ? index->strides[3] : 0;
      loops.max_channels(w, x.data<float>() + at, out.data<float>() + place_of(out, image, oh, ow),
                         index ? places + place_of(*index, image, oh, ow) : nullptr);
    });
    return true;
  }
  if (quarters(p, pool) && columns_adjacent(x) && columns_adjacent(out) && (!index || columns_adjacent(*index))) {
    const PlaneRun run = plane_run(p, x, out, index);
    over_planes(p, [&](int64_t image, int64_t c) {
      loops.max_planes(run, x.data<float>() + x.strides[0] * image + x.strides[1] * c,
                       out.data<float>() + out.strides[0] * image + out.strides[1] * c,
                       index ? places + index->strides[0] * image + index->strides[1] * c : nullptr);
    });
    return true;
  }
  return false;
}

// Any type, any strides. put(offset in index, place in the window, place in the plane).
template <class T, class Put>
void max_plain(const Plan& p, const Array& x, Array& out, const Array* index, Put&& put) {
  using C = typename DTypeOf<T>::Compute;
  over_planes(p, [&](int64_t image, int64_t c) {
    const T* from = x.data<T>() + x.strides[0] * image + x.strides[1] * c;
    T* to = out.data<T>() + out.strides[0] * image + out.strides[1] * c;
    const int64_t index_at = index ? index->strides[0] * image + index->strides[1] * c : 0;
    for (int64_t oh = 0; oh < p.oh; ++oh)
      for (int64_t ow = 0; ow < p.ow; ++ow) {
        const Span &r = at_index(p.rows, oh), &s = at_index(p.cols, ow);
        int64_t best_h = r.start, best_w = s.start, place = r.first * p.kernel_cols + s.first;
        C best = static_cast<C>(from[r.start * x.strides[2] + s.start * x.strides[3]]);
        for (int i = 0; i < r.count; ++i)
          for (int j = 0; j < s.count; ++j) {
            const int64_t h = r.start + i * r.step, w = s.start + j * s.step;
            const C v = static_cast<C>(from[h * x.strides[2] + w * x.strides[3]]);
            if (v > best || v != v) {
              best = v, best_h = h, best_w = w;
              place = (r.first + i) * p.kernel_cols + s.first + j;
            }
          }
        to[oh * out.strides[2] + ow * out.strides[3]] = static_cast<T>(best);
        if (index) put(index_at + oh * index->strides[2] + ow * index->strides[3], place, best_h * p.w + best_w);
      }
  });
}

// The place in the plane of a place in the window.
int64_t in_plane(const Plan& p, const Pool2d& pool, int64_t oh, int64_t ow, int64_t place) {
  const int64_t h = oh * pool.stride[0] - pool.padding[0] + place / p.kernel_cols * pool.dilation[0];
  const int64_t w = ow * pool.stride[1] - pool.padding[1] + place % p.kernel_cols * pool.dilation[1];
  return h * p.w + w;
}

template <class T>
void max_backward_plain(const Plan& p, const Array& dy, const Array& index, const Pool2d& pool, Array& dx) {
  using C = typename DTypeOf<T>::Compute;
  fill_zero(dx);
  over_planes(p, [&](int64_t image, int64_t c) {
    const T* from = dy.data<T>() + dy.strides[0] * image + dy.strides[1] * c;
    T* to = dx.data<T>() + dx.strides[0] * image + dx.strides[1] * c;
    const int64_t index_at = index.strides[0] * image + index.strides[1] * c;
    for (int64_t oh = 0; oh < p.oh; ++oh)
      for (int64_t ow = 0; ow < p.ow; ++ow) {
        const int64_t at = index_at + oh * index.strides[2] + ow * index.strides[3];
        const int64_t place = index.dtype == DType::kInt64 ? index.data<int64_t>()[at]
                                                           : in_plane(p, pool, oh, ow, index.data<uint8_t>()[at]);
        if (place < 0 || place >= p.h * p.w) continue;  // an index that no forward pass wrote
        T& target = to[place / p.w * dx.strides[2] + place % p.w * dx.strides[3]];
        target = static_cast<T>(
            static_cast<C>(static_cast<C>(target) + static_cast<C>(from[oh * dy.strides[2] + ow * dy.strides[3]])));
      }
  });
}

bool max_backward_fast(const Plan& p, const Array& dy, const Array& index, const Pool2d& pool, Array& dx) {
  if (dx.dtype != DType::kFloat32 || index.dtype != DType::kUInt8) return false;
  const PoolLoops& loops = pool_loops();
  const bool set = disjoint(p.rows) && disjoint(p.cols), all = covers(p.rows, p.h) && covers(p.cols, p.w);
  if (channels_adjacent(dx) && channels_adjacent(dy) && channels_adjacent(index) && p.c > 1) {
    if (!set || !all) fill_zero(dx);
    over_channels(p, dx, !set, [&](int64_t image, int64_t oh, WindowRun& w, int64_t ow, int64_t at, int64_t) {
      w.out_step = dy.strides[3], w.index_step = index.strides[3];
      loops.max_channels_backward(w, dy.data<float>() + place_of(dy, image, oh, ow),
                                  index.data<uint8_t>() + place_of(index, image, oh, ow), dx.data<float>() + at, set);
    });
    return true;
  }
  if (quarters(p, pool) && columns_adjacent(dx) && columns_adjacent(dy) && columns_adjacent(index)) {
    if (!all) fill_zero(dx);
    const PlaneRun run = plane_run(p, dx, dy, &index);
    over_planes(p, [&](int64_t image, int64_t c) {
      loops.max_planes_backward(run, dy.data<float>() + dy.strides[0] * image + dy.strides[1] * c,
                                index.data<uint8_t>() + index.strides[0] * image + index.strides[1] * c,
                                dx.data<float>() + dx.strides[0] * image + dx.strides[1] * c);
    });
    return true;
  }
  return false;
}

template <class C, class T>
C sum_window(const T* from, const Span& r, const Span& s, int64_t row_stride, int64_t col_stride) {
  // Four sums, so that an addition need not wait for the one before.
  C part[4] = {};
  for (int i = 0; i < r.count; ++i) {
    const T* row = from + (r.start + i * r.step) * row_stride + s.start * col_stride;
    int j = 0;
    for (; j + 4 <= s.count; j += 4)
      for (int q = 0; q < 4; ++q) part[q] += static_cast<C>(row[(j + q) * s.step * col_stride]);
    for (; j < s.count; ++j) part[j & 3] += static_cast<C>(row[j * s.step * col_stride]);
  }
  return (part[0] + part[1]) + (part[2] + part[3]);
}

void average(const Plan& p, const Array& x, Array& out) {
  if (x.numel() == 0 || out.numel() == 0) {
    fill_zero(out);
    return;
  }
  if (x.dtype == DType::kFloat32 && channels_adjacent(x) && channels_adjacent(out) && p.c > 1) {
    over_channels(p, x, false, [&](int64_t image, int64_t oh, WindowRun& w, int64_t ow, int64_t at, int64_t divisor) {
      w.out_step = out.strides[3];
      pool_loops().sum_channels(w, 1 / static_cast<float>(divisor), x.data<float>() + at,
                                out.data<float>() + place_of(out, image, oh, ow));
    });
    return;
  }
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename DTypeOf<T>::Compute;
    if constexpr (std::is_floating_point_v<C>) {
      over_planes(p, [&](int64_t image, int64_t c) {
        const T* from = x.data<T>() + x.strides[0] * image + x.strides[1] * c;
        T* to = out.data<T>() + out.strides[0] * image + out.strides[1] * c;
        for (int64_t oh = 0; oh < p.oh; ++oh)
          for (int64_t ow = 0; ow < p.ow; ++ow) {
            const Span &r = at_index(p.rows, oh), &s = at_index(p.cols, ow);
            const C sum = sum_window<C>(from, r, s, x.strides[2], x.strides[3]);
            to[oh * out.strides[2] + ow * out.strides[3]] = static_cast<T>(sum / static_cast<C>(r.divisor * s.divisor));
          }
      });
    } else {
      fail_type("average pooling of {} is not defined; convert to float32 first.", name(x.dtype));
    }
  });
}

void average_backward(const Plan& p, const Array& dy, Array& dx) {
  const bool set = disjoint(p.rows) && disjoint(p.cols), all = covers(p.rows, p.h) && covers(p.cols, p.w);
  if (!set || !all || dy.numel() == 0) fill_zero(dx);
  if (dy.numel() == 0 || dx.numel() == 0) return;
  if (dx.dtype == DType::kFloat32 && channels_adjacent(dx) && channels_adjacent(dy) && p.c > 1) {
    over_channels(p, dx, !set, [&](int64_t image, int64_t oh, WindowRun& w, int64_t ow, int64_t at, int64_t divisor) {
      w.out_step = dy.strides[3];
      pool_loops().sum_channels_backward(w, 1 / static_cast<float>(divisor),
                                         dy.data<float>() + place_of(dy, image, oh, ow), dx.data<float>() + at, set);
    });
    return;
  }
  visit_dtype(dx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename DTypeOf<T>::Compute;
    if constexpr (std::is_floating_point_v<C>) {
      over_planes(p, [&](int64_t image, int64_t c) {
        const T* from = dy.data<T>() + dy.strides[0] * image + dy.strides[1] * c;
        T* to = dx.data<T>() + dx.strides[0] * image + dx.strides[1] * c;
        for (int64_t oh = 0; oh < p.oh; ++oh)
          for (int64_t ow = 0; ow < p.ow; ++ow) {
            const Span &r = at_index(p.rows, oh), &s = at_index(p.cols, ow);
            const C v =
                static_cast<C>(from[oh * dy.strides[2] + ow * dy.strides[3]]) / static_cast<C>(r.divisor * s.divisor);
            for (int i = 0; i < r.count; ++i)
              for (int j = 0; j < s.count; ++j) {
                T& target = to[(r.start + i * r.step) * dx.strides[2] + (s.start + j * s.step) * dx.strides[3]];
                target = set ? static_cast<T>(v) : static_cast<T>(static_cast<C>(target) + v);
              }
          }
      });
    } else {
      fail_type("average pooling of {} is not defined; convert to float32 first.", name(dx.dtype));
    }
  });
}

void check_index(const Array& index, const Array& out, const Pool2d& pool) {
  HOLON_CHECK(index.shape == out.shape &&
                  (index.dtype == DType::kInt64 ||
                   (index.dtype == DType::kUInt8 && pool.kernel[0] * pool.kernel[1] <= 256)),
              "pooling: an index of {} {} does not fit the output {} and the window {} x {}.", name(index.dtype),
              index.shape, out.shape, pool.kernel[0], pool.kernel[1]);
}

}  // namespace

int64_t pool_out_size(int64_t size, int64_t kernel, int64_t stride, int64_t pad_before, int64_t pad_after,
                      int64_t dilation, bool ceil_mode) {
  const int64_t room = size + pad_before + pad_after - dilation * (kernel - 1) - 1;
  int64_t out = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  // The last window must begin inside the input or the padding before it.
  if (ceil_mode && (out - 1) * stride >= size + pad_before) --out;
  return out;
}

void max_pool2d(const Array& x, const Pool2d& pool, Array& out, Array* index) {
  HOLON_ON_DEVICE(out, max_pool2d, x, pool, out, index);
  Plan p = make_plan(x, out, &pool);
  if (index) check_index(*index, out, pool);
  if (out.numel() == 0) return;
  for (const Spans* list : {&p.rows, &p.cols})
    for (const Span& s : *list)
      HOLON_CHECK(s.count > 0, "max_pool2d: a window of {} x {} is wholly in the padding of {}.", pool.kernel[0],
                  pool.kernel[1], x.shape);
  const bool wide = index && index->dtype == DType::kInt64;
  Array places;
  if (wide && x.dtype == DType::kFloat32 && pool.kernel[0] * pool.kernel[1] <= 256 && out.is_dense())
    places = Array::empty_strided(out.shape, out.strides, DType::kUInt8);
  if (!wide || places.defined()) {
    if (max_fast(p, x, pool, out, wide ? &places : index)) {
      if (!wide) return;
      over_planes(p, [&](int64_t image, int64_t c) {
        const uint8_t* from = places.data<uint8_t>() + places.strides[0] * image + places.strides[1] * c;
        int64_t* to = index->data<int64_t>() + index->strides[0] * image + index->strides[1] * c;
        for (int64_t oh = 0; oh < p.oh; ++oh)
          for (int64_t ow = 0; ow < p.ow; ++ow)
            to[oh * index->strides[2] + ow * index->strides[3]] =
                in_plane(p, pool, oh, ow, from[oh * places.strides[2] + ow * places.strides[3]]);
      });
      return;
    }
  }
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    max_plain<T>(p, x, out, index, [&](int64_t at, int64_t place, int64_t plane) {
      if (wide)
        index->data<int64_t>()[at] = plane;
      else
        index->data<uint8_t>()[at] = static_cast<uint8_t>(place);
    });
  });
}

void max_pool2d_backward(const Array& dy, const Array& index, const Pool2d& pool, Array& dx) {
  HOLON_ON_DEVICE(dx, max_pool2d_backward, dy, index, pool, dx);
  Plan p = make_plan(dx, dy, &pool);
  check_index(index, dy, pool);
  if (dy.numel() == 0 || dx.numel() == 0) {
    fill_zero(dx);
    return;
  }
  if (max_backward_fast(p, dy, index, pool, dx)) return;
  // A gradient in another order than the places (behind a flatten) is brought to their order, which is the fast
  // one.
  if (dy.dtype == DType::kFloat32 && index.is_dense() && dy.strides != index.strides) {
    Array like = Array::empty_strided(dy.shape, index.strides, dy.dtype, dy.device);
    copy(dy, like);
    if (max_backward_fast(make_plan(dx, like, &pool), like, index, pool, dx)) return;
  }
  visit_dtype(dx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    max_backward_plain<T>(p, dy, index, pool, dx);
  });
}

void max_pool2d_gather(const Array& x, const Array& index, const Pool2d& pool, Array& out) {
  HOLON_ON_DEVICE(out, max_pool2d_gather, x, index, pool, out);
  Plan p = make_plan(x, out, &pool);
  check_index(index, out, pool);
  if (out.numel() == 0) return;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    over_planes(p, [&](int64_t image, int64_t c) {
      const T* from = x.data<T>() + x.strides[0] * image + x.strides[1] * c;
      T* to = out.data<T>() + out.strides[0] * image + out.strides[1] * c;
      const int64_t index_at = index.strides[0] * image + index.strides[1] * c;
      for (int64_t oh = 0; oh < p.oh; ++oh)
        for (int64_t ow = 0; ow < p.ow; ++ow) {
          const int64_t at = index_at + oh * index.strides[2] + ow * index.strides[3];
          const int64_t place = index.dtype == DType::kInt64 ? index.data<int64_t>()[at]
                                                             : in_plane(p, pool, oh, ow, index.data<uint8_t>()[at]);
          const bool there = place >= 0 && place < p.h * p.w;  // else an index that no forward pass wrote
          to[oh * out.strides[2] + ow * out.strides[3]] =
              there ? from[place / p.w * x.strides[2] + place % p.w * x.strides[3]] : T(0);
        }
    });
  });
}

void avg_pool2d(const Array& x, const Pool2d& pool, Array& out) {
  HOLON_ON_DEVICE(out, avg_pool2d, x, pool, out);
  HOLON_CHECK(pool.dilation[0] == 1 && pool.dilation[1] == 1, "avg_pool2d has no dilation.");
  average(make_plan(x, out, &pool), x, out);
}

void avg_pool2d_backward(const Array& dy, const Pool2d& pool, Array& dx) {
  HOLON_ON_DEVICE(dx, avg_pool2d_backward, dy, pool, dx);
  HOLON_CHECK(pool.dilation[0] == 1 && pool.dilation[1] == 1, "avg_pool2d has no dilation.");
  average_backward(make_plan(dx, dy, &pool), dy, dx);
}

void adaptive_avg_pool2d(const Array& x, Array& out) {
  HOLON_ON_DEVICE(out, adaptive_avg_pool2d, x, out);
  average(make_plan(x, out, nullptr), x, out);
}

void adaptive_avg_pool2d_backward(const Array& dy, Array& dx) {
  HOLON_ON_DEVICE(dx, adaptive_avg_pool2d_backward, dy, dx);
  average_backward(make_plan(dx, dy, nullptr), dy, dx);
}

void adaptive_max_pool2d(const Array& x, Array& out, Array& index) {
  HOLON_ON_DEVICE(out, adaptive_max_pool2d, x, out, index);
  const Plan p = make_plan(x, out, nullptr);
  HOLON_CHECK(index.shape == out.shape && index.dtype == DType::kInt64, "adaptive_max_pool2d: an index of {} {}.",
              name(index.dtype), index.shape);
  if (out.numel() == 0) return;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    max_plain<T>(p, x, out, &index, [&](int64_t at, int64_t, int64_t plane) { index.data<int64_t>()[at] = plane; });
  });
}

}  // namespace holon::kernels
