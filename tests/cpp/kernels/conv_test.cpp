#include "holon/kernels/conv.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "holon/base/error.h"

namespace holon::kernels {
namespace {

enum class Layout { kPlanes, kChannelsLast, kStrided };
constexpr Layout kLayouts[] = {Layout::kPlanes, Layout::kChannelsLast, Layout::kStrided};

Array make(const Dims& s, DType dtype, Layout layout) {
  if (layout == Layout::kPlanes || s.size() != 4) return Array::empty(s, dtype);
  if (layout == Layout::kChannelsLast) return Array::empty_strided(s, channels_last_strides(s), dtype);
  Array x = Array::empty({s[1], s[0], s[2], 2 * s[3] + 1}, dtype);
  return x.view(s, {x.strides[1], x.strides[0], x.strides[2], 2});
}

template <class F>
void each(const Array& x, F&& f) {
  Dims index = Dims::filled(x.ndim(), 0);
  for (int64_t i = 0; i < x.numel(); ++i) {
    int64_t at = 0;
    for (int a = 0; a < x.ndim(); ++a) at += index[a] * x.strides[a];
    f(at);
    for (int a = x.ndim() - 1; a >= 0 && ++index[a] == x.shape[a]; --a) index[a] = 0;
  }
}

std::vector<double> values(const Array& x) {
  std::vector<double> v;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename DTypeOf<T>::Compute;
    each(x, [&](int64_t at) { v.push_back(static_cast<double>(static_cast<C>(x.data<T>()[at]))); });
  });
  return v;
}

// Whole numbers, so that float16 and integers hold inputs exactly.
void fill(const Array& x, unsigned seed) {
  std::mt19937 rng(seed);
  std::uniform_int_distribution<int> pick(-3, 3);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename DTypeOf<T>::Compute;
    each(x, [&](int64_t at) { x.data<T>()[at] = static_cast<T>(static_cast<C>(pick(rng))); });
  });
}

struct Case {
  Dims x, w;
  Conv2d conv = {};
};

const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      {{2, 1, 9, 8}, {4, 1, 5, 5}, {{1, 1}, {2, 2, 2, 2}}},
      {{3, 8, 7, 6}, {16, 8, 3, 3}, {{1, 1}, {1, 1, 1, 1}}},
      {{2, 20, 6, 6}, {50, 20, 5, 5}},
      {{2, 6, 9, 11}, {10, 6, 3, 2}, {{2, 3}, {1, 0, 0, 1}}},
      {{1, 3, 8, 8}, {5, 3, 3, 3}, {{2, 2}, {0, 0, 1, 1}}},
      {{2, 5, 12, 10}, {7, 5, 3, 3}, {{1, 2}, {2, 3, 2, 1}, {2, 3}}},
      {{2, 8, 6, 6}, {12, 2, 3, 3}, {{1, 1}, {1, 1, 1, 1}, {1, 1}, 4}},
      {{2, 6, 7, 7}, {6, 1, 3, 3}, {{1, 1}, {1, 1, 1, 1}, {1, 1}, 6}},
      {{2, 32, 5, 5}, {16, 32, 1, 1}},
      {{2, 4, 1, 17}, {6, 4, 1, 5}, {{1, 2}, {0, 2, 0, 2}}},
      {{1, 1, 3, 3}, {1, 1, 3, 3}},
  };
  return list;
}

Dims out_shape(const Case& t) {
  Dims s{t.x[0], t.w[0], 0, 0};
  for (int i = 0; i < 2; ++i)
    s[2 + i] = conv_out_size(t.x[2 + i], t.w[2 + i], t.conv.stride[i], t.conv.padding[i], t.conv.padding[2 + i],
                             t.conv.dilation[i]);
  return s;
}

// f(place in x, place in w, place in out), row-major, for each product of the sum.
template <class F>
void over_terms(const Case& t, const Dims& out, F&& f) {
  const int64_t per_group = t.w[0] / t.conv.groups;
  for (int64_t n = 0; n < out[0]; ++n)
    for (int64_t o = 0; o < out[1]; ++o)
      for (int64_t y = 0; y < out[2]; ++y)
        for (int64_t z = 0; z < out[3]; ++z)
          for (int64_t c = 0; c < t.w[1]; ++c)
            for (int64_t i = 0; i < t.w[2]; ++i)
              for (int64_t j = 0; j < t.w[3]; ++j) {
                const int64_t h = y * t.conv.stride[0] - t.conv.padding[0] + i * t.conv.dilation[0];
                const int64_t w = z * t.conv.stride[1] - t.conv.padding[1] + j * t.conv.dilation[1];
                if (h < 0 || h >= t.x[2] || w < 0 || w >= t.x[3]) continue;
                const int64_t channel = o / per_group * t.w[1] + c;
                f(static_cast<size_t>(((n * t.x[1] + channel) * t.x[2] + h) * t.x[3] + w),
                  static_cast<size_t>(((o * t.w[1] + c) * t.w[2] + i) * t.w[3] + j),
                  static_cast<size_t>(((n * out[1] + o) * out[2] + y) * out[3] + z));
              }
}

void expect_near(const Array& found, const std::vector<double>& expected, const char* what) {
  const double relative = found.dtype == DType::kBFloat16 ? 5e-3 : found.dtype == DType::kFloat16 ? 6e-4 : 1e-6;
  std::vector<double> v = values(found);
  ASSERT_EQ(v.size(), expected.size());
  for (size_t i = 0; i < v.size(); ++i)
    ASSERT_NEAR(v[i], expected[i], relative * (1 + std::abs(expected[i]))) << what << " element " << i;
}

void check(const Case& t, DType dtype, Layout lx, Layout ly, bool plain) {
  SCOPED_TRACE(t.x.str() + t.w.str() + name(dtype) + " layouts " + std::to_string(static_cast<int>(lx)) +
               std::to_string(static_cast<int>(ly)) + (plain ? " plain" : ""));
  const Dims shape = out_shape(t);
  Array x = make(t.x, dtype, lx), w = make(t.w, dtype, Layout::kPlanes), b = Array::empty({t.w[0]}, dtype);
  Array out = make(shape, dtype, ly), dy = make(shape, dtype, ly), dx = make(t.x, dtype, lx);
  Array dw = make(t.w, dtype, ly == Layout::kStrided ? ly : Layout::kPlanes), db = Array::empty({t.w[0]}, dtype);
  fill(x, 1), fill(w, 2), fill(b, 3), fill(dy, 4), fill(dx, 5), fill(dw, 6), fill(out, 7), fill(db, 8);
  std::vector<double> vx = values(x), vw = values(w), vb = values(b), vdy = values(dy);
  std::vector<double> eo(vdy.size(), 0), edx(vx.size(), 0), edw(vw.size(), 0), edb(vb.size(), 0);
  over_terms(t, shape, [&](size_t i, size_t j, size_t k) {
    eo[k] += vx[i] * vw[j];
    edx[i] += vdy[k] * vw[j];
    edw[j] += vdy[k] * vx[i];
  });
  const size_t plane = static_cast<size_t>(shape[2] * shape[3]);
  for (size_t k = 0; k < vdy.size(); ++k) edb[k / plane % static_cast<size_t>(shape[1])] += vdy[k];

  (plain ? conv2d_plain : conv2d)(x, w, nullptr, t.conv, out);
  expect_near(out, eo, "forward");
  for (size_t k = 0; k < eo.size(); ++k) eo[k] += vb[k / plane % static_cast<size_t>(shape[1])];
  (plain ? conv2d_plain : conv2d)(x, w, &b, t.conv, out);
  expect_near(out, eo, "forward with bias");
  (plain ? conv2d_backward_data_plain : conv2d_backward_data)(dy, w, t.conv, dx);
  expect_near(dx, edx, "gradient of x");
  (plain ? conv2d_backward_weights_plain : conv2d_backward_weights)(dy, x, t.conv, dw, nullptr);
  expect_near(dw, edw, "gradient of w");
  fill(dw, 9);
  (plain ? conv2d_backward_weights_plain : conv2d_backward_weights)(dy, x, t.conv, dw, &db);
  expect_near(dw, edw, "gradient of w");
  expect_near(db, edb, "gradient of the bias");
}

TEST(Conv2d, EveryLayout) {
  for (const Case& t : cases())
    for (Layout lx : kLayouts)
      for (Layout ly : kLayouts)
        for (bool plain : {false, true}) {
          check(t, float32, lx, ly, plain);
          if (HasFatalFailure()) return;
        }
}

TEST(Conv2d, EveryDtype) {
  for (const Case& t : cases())
    for (DType dtype : {float64, float16, bfloat16, int32, int64})
      for (Layout layout : kLayouts) {
        check(t, dtype, layout, layout, false);
        if (HasFatalFailure()) return;
      }
}

TEST(Conv2d, ManyThreadsAndManyCallers) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(3);
  for (const Case& t : cases())
    for (DType dtype : {float32, bfloat16}) check(t, dtype, Layout::kChannelsLast, Layout::kChannelsLast, false);
  omp_set_num_threads(before);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([] {
      for (const Case& t : cases())
        for (DType dtype : {float32, bfloat16}) check(t, dtype, Layout::kPlanes, Layout::kChannelsLast, false);
    });
  for (std::thread& t : threads) t.join();
}

// Every other pixel of few channels, which oneDNN writes past its block for, and odd sizes of the same.
TEST(Conv2d, PixelsThatAreLeftOut) {
  for (const Case& t :
       {Case{{32, 4, 128, 128}, {8, 4, 1, 1}, {{2, 2}}}, Case{{8, 12, 64, 64}, {16, 12, 1, 1}, {{2, 2}}},
        Case{{2, 4, 7, 10}, {6, 2, 1, 1}, {{3, 2}, {0, 0, 0, 0}, {2, 1}, 2}}})
    for (Layout layout : {Layout::kPlanes, Layout::kChannelsLast})
      for (DType dtype : {float32, bfloat16}) {
        check(t, dtype, layout, layout, false);
        if (HasFatalFailure()) return;
      }
}

// Sizes at which bfloat16 is computed by tiles.
TEST(Conv2d, WholeBlocksOfChannels) {
  for (const Case& t :
       {Case{{2, 64, 14, 14}, {64, 64, 3, 3}, {{1, 1}, {1, 1, 1, 1}}},
        Case{{2, 64, 14, 14}, {128, 64, 3, 3}, {{2, 2}, {1, 1, 1, 1}}}, Case{{2, 128, 14, 14}, {64, 128, 1, 1}},
        Case{{2, 96, 15, 13}, {80, 96, 1, 1}, {{2, 2}}}, Case{{2, 3, 30, 30}, {64, 3, 7, 7}, {{2, 2}, {3, 3, 3, 3}}}})
    for (Layout layout : {Layout::kPlanes, Layout::kChannelsLast})
      for (DType dtype : {float32, bfloat16}) {
        check(t, dtype, layout, layout, false);
        if (HasFatalFailure()) return;
      }
}

// More shapes than the cache of primitives holds.
TEST(Conv2d, ManyShapes) {
  for (int64_t w = 1; w < 150; ++w) {
    Array x = Array::empty({1, 2, 1, w}, float32), k = Array::empty({2, 2, 1, 1}, float32),
          out = Array::empty({1, 2, 1, w}, float32);
    fill(x, 1);
    for (int i = 0; i < 4; ++i) k.data<float>()[i] = i % 3 == 0 ? 1.0f : 0.0f;
    conv2d(x, k, nullptr, {}, out);
    ASSERT_EQ(values(out), values(x)) << w;
  }
}

TEST(Conv2d, Empty) {
  Array w = Array::empty({3, 2, 3, 3}, float32), dw = Array::empty({3, 2, 3, 3}, float32),
        db = Array::empty({3}, float32);
  fill(dw, 1), fill(db, 1);
  Array x = Array::empty({0, 2, 5, 5}, float32), out = Array::empty({0, 3, 3, 3}, float32);
  conv2d(x, w, nullptr, {}, out);
  conv2d_backward_data(out, w, {}, x);
  conv2d_backward_weights(out, x, {}, dw, &db);
  for (double v : values(dw)) EXPECT_EQ(v, 0);
  for (double v : values(db)) EXPECT_EQ(v, 0);
  Array small = Array::empty({1, 2, 2, 2}, float32), none = Array::empty({1, 3, 0, 0}, float32);
  fill(small, 1);
  conv2d(small, w, nullptr, {}, none);
  conv2d_backward_data(none, w, {}, small);
  for (double v : values(small)) EXPECT_EQ(v, 0);
}

TEST(Conv2d, ShapesThatDoNotFitAreAnError) {
  Array x = Array::empty({1, 2, 5, 5}, float32), w = Array::empty({3, 2, 3, 3}, float32),
        out = Array::empty({1, 3, 4, 3}, float32);
  EXPECT_THROW(conv2d(x, w, nullptr, {}, out), Error);
  Array other = Array::empty({3, 1, 3, 3}, float32), fits = Array::empty({1, 3, 3, 3}, float32);
  EXPECT_THROW(conv2d(x, other, nullptr, {}, fits), Error);
}

}  // namespace
}  // namespace holon::kernels
