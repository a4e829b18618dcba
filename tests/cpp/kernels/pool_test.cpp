#include "holon/kernels/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "holon/base/error.h"
#include "holon/kernels/cpu/build_choice.h"
#include "holon/kernels/cpu/pool_loops.h"

namespace holon::kernels {
namespace {

std::mt19937 rng(3);

enum class Layout { kPlanes, kChannelsLast, kStrided };
constexpr Layout kLayouts[] = {Layout::kPlanes, Layout::kChannelsLast, Layout::kStrided};

Array make(const Dims& s, DType dtype, Layout layout) {
  if (layout == Layout::kPlanes) return Array::empty(s, dtype);
  if (layout == Layout::kChannelsLast)
    return Array::empty_strided(s, {s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]}, dtype);
  Array x = Array::empty({s[0], s[1], s[2], 2 * s[3] + 1}, dtype);
  x.strides[3] = 2;
  x.shape = s;
  return x;
}

int64_t offset(const Array& x, int64_t n, int64_t c, int64_t h, int64_t w) {
  return n * x.strides[0] + c * x.strides[1] + h * x.strides[2] + w * x.strides[3];
}

// Values in row-major order.
template <class F>
void each(const Array& x, F&& f) {
  for (int64_t n = 0; n < x.shape[0]; ++n)
    for (int64_t c = 0; c < x.shape[1]; ++c)
      for (int64_t h = 0; h < x.shape[2]; ++h)
        for (int64_t w = 0; w < x.shape[3]; ++w) f(offset(x, n, c, h, w));
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

void set(const Array& x, double (*next)()) {
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename DTypeOf<T>::Compute;
    each(x, [&](int64_t at) { x.data<T>()[at] = static_cast<T>(static_cast<C>(next())); });
  });
}

// Small whole numbers: ties occur, and every type holds them.
double whole() { return std::uniform_int_distribution<int>(0, 20)(rng); }
double junk() { return 77; }

struct Case {
  Dims shape;
  Pool2d pool;
  bool ceil = false;
};

std::vector<Case> cases() {
  return {{{2, 3, 8, 8}, {{2, 2}, {2, 2}}},
          {{2, 32, 28, 28}, {{2, 2}, {2, 2}}},
          {{1, 5, 9, 7}, {{2, 2}, {2, 2}}},
          {{1, 5, 9, 7}, {{2, 2}, {2, 2}}, true},
          {{2, 17, 9, 11}, {{3, 3}, {2, 2}, {1, 1, 1, 1}}},
          {{2, 20, 9, 11}, {{3, 2}, {1, 2}, {1, 1, 0, 0}}},
          {{1, 4, 10, 10}, {{3, 3}, {2, 2}, {0, 0, 1, 1}}},
          {{1, 1, 33, 70}, {{2, 2}, {2, 2}}},
          {{3, 1, 6, 6}, {{5, 5}, {1, 1}, {2, 2, 2, 2}}},
          {{1, 16, 12, 12}, {{1, 1}, {2, 3}}}};
}

Array result_of(const Case& t, DType dtype, Layout layout) {
  Dims out = t.shape;
  for (int a = 0; a < 2; ++a)
    out[2 + a] = pool_out_size(t.shape[2 + a], t.pool.kernel[a], t.pool.stride[a], t.pool.padding[a],
                               t.pool.padding[2 + a], t.pool.dilation[a], t.ceil);
  return make(out, dtype, layout);
}

void check_max(const Case& t, DType dtype, Layout layout) {
  SCOPED_TRACE(t.shape.str() + " " + name(dtype) + " layout " + std::to_string(static_cast<int>(layout)));
  Array x = make(t.shape, dtype, layout), out = result_of(t, dtype, layout);
  Array narrow = result_of(t, DType::kUInt8, layout), wide = result_of(t, DType::kInt64, layout);
  Array dy = result_of(t, dtype, layout), dx = make(t.shape, dtype, layout);
  set(x, whole), set(dy, whole), set(out, junk), set(dx, junk);
  max_pool2d(x, t.pool, out, &wide);
  std::vector<double> vx = values(x), first = values(out), vi = values(wide), vdy = values(dy);
  set(out, junk);
  max_pool2d(x, t.pool, out, &narrow);
  ASSERT_EQ(values(out), first);
  set(out, junk);
  max_pool2d(x, t.pool, out);
  ASSERT_EQ(values(out), first);
  const int64_t h = t.shape[2], w = t.shape[3];
  std::vector<double> expected_dx(vx.size(), 0);
  size_t at = 0;
  for (int64_t plane = 0; plane < t.shape[0] * t.shape[1]; ++plane)
    for (int64_t oh = 0; oh < out.shape[2]; ++oh)
      for (int64_t ow = 0; ow < out.shape[3]; ++ow, ++at) {
        double best = -1;
        int64_t where = -1;
        for (int64_t i = 0; i < t.pool.kernel[0]; ++i)
          for (int64_t j = 0; j < t.pool.kernel[1]; ++j) {
            const int64_t y = oh * t.pool.stride[0] - t.pool.padding[0] + i * t.pool.dilation[0];
            const int64_t z = ow * t.pool.stride[1] - t.pool.padding[1] + j * t.pool.dilation[1];
            if (y < 0 || y >= h || z < 0 || z >= w) continue;
            const double v = vx[static_cast<size_t>(plane * h * w + y * w + z)];
            if (v > best) best = v, where = y * w + z;
          }
        ASSERT_EQ(first[at], best) << at;
        ASSERT_EQ(vi[at], static_cast<double>(where)) << at;
        expected_dx[static_cast<size_t>(plane * h * w + where)] += vdy[at];
      }
  // bool's sum is "or"; it has no gradients.
  if (dtype == DType::kBool) return;
  for (const Array* index : {&narrow, &wide}) {
    set(dx, junk);
    max_pool2d_backward(dy, *index, t.pool, dx);
    ASSERT_EQ(values(dx), expected_dx);
  }
}

TEST(MaxPool, EveryLayout) {
  for (const Case& t : cases())
    for (DType dtype : {float32, float64, float16, bfloat16, int32, uint8})
      for (Layout layout : kLayouts) {
        check_max(t, dtype, layout);
        if (HasFatalFailure()) return;
      }
}

TEST(MaxPool, Dilation) {
  for (Layout layout : kLayouts) {
    check_max({{2, 18, 12, 13}, {{3, 2}, {2, 1}, {1, 1, 1, 1}, {2, 3}}}, float32, layout);
  }
}

TEST(MaxPool, NanWins) {
  for (Layout layout : kLayouts)
    for (int64_t c : {1, 20}) {
      Array x = make({1, c, 4, 40}, float32, layout), out = make({1, c, 2, 20}, float32, layout);
      set(x, whole);
      x.data<float>()[offset(x, 0, 0, 1, 2)] = std::numeric_limits<float>::quiet_NaN();
      x.data<float>()[offset(x, 0, 0, 2, 4)] = std::numeric_limits<float>::quiet_NaN();
      max_pool2d(x, {{2, 2}, {2, 2}}, out);
      EXPECT_TRUE(std::isnan(out.data<float>()[offset(out, 0, 0, 0, 1)]));
      EXPECT_TRUE(std::isnan(out.data<float>()[offset(out, 0, 0, 1, 2)]));
      EXPECT_FALSE(std::isnan(out.data<float>()[offset(out, 0, 0, 0, 0)]));
    }
}

TEST(MaxPool, AWindowInThePaddingIsAnError) {
  Array x = Array::empty({1, 1, 2, 2}, float32), out = Array::empty({1, 1, 3, 3}, float32);
  EXPECT_THROW(max_pool2d(x, {{2, 2}, {2, 2}, {2, 2, 2, 2}}, out), Error);
}

double tolerance(DType dtype) { return dtype == DType::kBFloat16 ? 0.2 : dtype == DType::kFloat16 ? 0.02 : 1e-5; }

void check_average(const Case& t, DType dtype, Layout layout, bool adaptive = false, const Dims& size = {}) {
  SCOPED_TRACE(t.shape.str() + " " + name(dtype) + " layout " + std::to_string(static_cast<int>(layout)));
  Array x = make(t.shape, dtype, layout), dx = make(t.shape, dtype, layout);
  Array out = adaptive ? make(size, dtype, layout) : result_of(t, dtype, layout), dy = make(out.shape, dtype, layout);
  set(x, whole), set(dy, whole), set(out, junk), set(dx, junk);
  if (adaptive) {
    adaptive_avg_pool2d(x, out);
    adaptive_avg_pool2d_backward(dy, dx);
  } else {
    avg_pool2d(x, t.pool, out);
    avg_pool2d_backward(dy, t.pool, dx);
  }
  std::vector<double> vx = values(x), vout = values(out), vdy = values(dy), vdx = values(dx), expected(vx.size(), 0);
  const int64_t h = t.shape[2], w = t.shape[3], oh_all = out.shape[2], ow_all = out.shape[3];
  size_t at = 0;
  for (int64_t plane = 0; plane < t.shape[0] * t.shape[1]; ++plane)
    for (int64_t oh = 0; oh < oh_all; ++oh)
      for (int64_t ow = 0; ow < ow_all; ++ow, ++at) {
        int64_t h0 = oh * t.pool.stride[0] - t.pool.padding[0], w0 = ow * t.pool.stride[1] - t.pool.padding[1];
        int64_t h1 = std::min(h0 + t.pool.kernel[0], h + t.pool.padding[2]),
                w1 = std::min(w0 + t.pool.kernel[1], w + t.pool.padding[3]);
        if (adaptive) {
          h0 = oh * h / oh_all, w0 = ow * w / ow_all;
          h1 = ((oh + 1) * h + oh_all - 1) / oh_all, w1 = ((ow + 1) * w + ow_all - 1) / ow_all;
        }
        const double all = static_cast<double>((h1 - h0) * (w1 - w0));
        h0 = std::max<int64_t>(h0, 0), w0 = std::max<int64_t>(w0, 0), h1 = std::min(h1, h), w1 = std::min(w1, w);
        const double divisor = t.pool.count_include_pad ? all : static_cast<double>((h1 - h0) * (w1 - w0));
        double sum = 0;
        for (int64_t y = h0; y < h1; ++y)
          for (int64_t z = w0; z < w1; ++z) {
            sum += vx[static_cast<size_t>(plane * h * w + y * w + z)];
            expected[static_cast<size_t>(plane * h * w + y * w + z)] += vdy[at] / divisor;
          }
        ASSERT_NEAR(vout[at], sum / divisor, tolerance(dtype)) << at;
      }
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(vdx[i], expected[i], tolerance(dtype) * 2) << i;
}

TEST(AveragePool, EveryLayout) {
  for (Case t : cases())
    for (bool include : {true, false})
      for (DType dtype : {float32, float64, float16, bfloat16})
        for (Layout layout : kLayouts) {
          t.pool.count_include_pad = include;
          check_average(t, dtype, layout);
          if (HasFatalFailure()) return;
        }
}

TEST(AveragePool, Adaptive) {
  for (const Dims& size : {Dims{2, 19, 1, 1}, Dims{2, 19, 3, 4}, Dims{2, 19, 7, 10}, Dims{2, 19, 9, 12}})
    for (DType dtype : {float32, float64, float16})
      for (Layout layout : kLayouts) {
        check_average({{2, 19, 7, 10}, {}}, dtype, layout, true, size);
        if (HasFatalFailure()) return;
      }
}

TEST(AveragePool, IntegersAreAnError) {
  Array x = Array::empty({1, 1, 4, 4}, int32), out = Array::empty({1, 1, 2, 2}, int32);
  EXPECT_THROW(avg_pool2d(x, {{2, 2}, {2, 2}}, out), Error);
}

TEST(Pool, OutSizes) {
  EXPECT_EQ(pool_out_size(28, 2, 2, 0, 0, 1, false), 14);
  EXPECT_EQ(pool_out_size(7, 2, 2, 0, 0, 1, false), 3);
  EXPECT_EQ(pool_out_size(7, 2, 2, 0, 0, 1, true), 4);
  // A last window that would begin in the padding after the input is dropped.
  EXPECT_EQ(pool_out_size(4, 2, 3, 0, 1, 1, true), 2);
  EXPECT_EQ(pool_out_size(3, 1, 3, 0, 1, 1, true), 1);
}

// The builds for other instruction sets that this machine can run give the same results.
TEST(PoolLoops, EveryBuild) {
  std::vector<PoolLoops> builds = {pool_loops()};
#ifdef HOLON_HAVE_X86_LEVELS
  if (instruction_level() >= 1) builds.push_back(avx2::pool_loops());
  if (instruction_level() >= 2) builds.push_back(avx512::pool_loops());
#endif
  for (int64_t channels : {1, 3, 4, 7, 8, 15, 16, 17, 40}) {
    std::vector<float> x(static_cast<size_t>(channels * 16 * 4)), dy(x.size());
    for (float& v : x) v = static_cast<float>(whole());
    for (float& v : dy) v = static_cast<float>(whole());
    // Channels-last: 4 rows of 8 places, four windows of 2 x 2 with step 2.
    const WindowRun w = {8 * channels, channels, 2, 2, 0, 2, channels, 4, 2 * channels, channels, channels};
    // Planes: 2 rows of `channels` outputs.
    const PlaneRun r = {2, channels, 2 * channels, channels, channels};
    auto all = [&](const PoolLoops& loops) {
      std::vector<float> out(x.size()), mean(x.size()), dx(x.size(), 1), add(x.size(), 1), plane(x.size()),
          dplane(x.size());
      std::vector<uint8_t> index(x.size()), plane_index(x.size());
      loops.max_channels(w, x.data(), out.data(), index.data());
      loops.max_channels_backward(w, dy.data(), index.data(), dx.data(), true);
      loops.max_channels_backward(w, dy.data(), index.data(), add.data(), false);
      loops.sum_channels(w, 0.25f, x.data(), mean.data());
      loops.sum_channels_backward(w, 0.25f, dy.data(), add.data(), false);
      loops.max_planes(r, x.data(), plane.data(), plane_index.data());
      loops.max_planes_backward(r, dy.data(), plane_index.data(), dplane.data());
      for (auto* more : {&mean, &dx, &add, &plane, &dplane}) out.insert(out.end(), more->begin(), more->end());
      out.insert(out.end(), index.begin(), index.end());
      out.insert(out.end(), plane_index.begin(), plane_index.end());
      return out;
    };
    const std::vector<float> expected = all(base::pool_loops());
    for (const PoolLoops& build : builds) EXPECT_EQ(all(build), expected) << channels;
  }
}

}  // namespace
}  // namespace holon::kernels
