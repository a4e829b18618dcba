#include "holon/kernels/attention.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "holon/base/error.h"
#include "holon/kernels/cpu/attention_loops.h"
#include "holon/kernels/cpu/build_choice.h"

namespace holon::kernels {
namespace {

std::mt19937 rng(5);

enum class Layout { kRows, kHeadsInside, kStrided };

// [b, h, t, d]; kHeadsInside lies in memory as [b, t, h, d], as a projection leaves it.
Array make(const Dims& s, DType dtype, Layout layout) {
  if (layout == Layout::kRows) return Array::empty(s, dtype);
  if (layout == Layout::kHeadsInside) {
    Array x = Array::empty({s[0], s[2], s[1], s[3]}, dtype);
    return x.view(s, {x.strides[0], x.strides[2], x.strides[1], 1});
  }
  Array x = Array::empty({s[0], s[1], s[2], s[3] * 2}, dtype);
  return x.view(s, {x.strides[0], x.strides[1], x.strides[2], 2});
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

void fill(const Array& x) {
  std::normal_distribution<float> next(0, 1);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename DTypeOf<T>::Compute;
    each(x, [&](int64_t at) { x.data<T>()[at] = static_cast<T>(static_cast<C>(next(rng))); });
  });
}

void expect_near(const Array& found, const std::vector<double>& expected, double limit, const char* what) {
  std::vector<double> v = values(found);
  ASSERT_EQ(v.size(), expected.size());
  for (size_t i = 0; i < v.size(); ++i)
    ASSERT_NEAR(v[i], expected[i], limit * (1 + std::abs(expected[i]))) << what << " " << i;
}

void check(int64_t b, int64_t h, int64_t t, int64_t s, int64_t d, int64_t e, bool causal, DType dtype, Layout layout) {
  SCOPED_TRACE("t " + std::to_string(t) + " s " + std::to_string(s) + " d " + std::to_string(d) + " e " +
               std::to_string(e) + (causal ? " causal " : " ") + name(dtype) + " layout " +
               std::to_string(static_cast<int>(layout)));
  const Dims sq{b, h, t, d}, sk{b, h, s, d}, sv{b, h, s, e}, so{b, h, t, e};
  Array q = make(sq, dtype, layout), k = make(sk, dtype, layout), v = make(sv, dtype, layout),
        out = make(so, dtype, layout);
  Array dq = make(sq, dtype, layout), dk = make(sk, dtype, layout), dv = make(sv, dtype, layout),
        dout = make(so, dtype, layout);
  Array lse = Array::empty({b, h, t}, dtype == float64 ? float64 : float32);
  for (const Array* x : {&q, &k, &v, &out, &dq, &dk, &dv, &dout}) fill(*x);
  const double scale = 0.9 / std::sqrt(static_cast<double>(d));
  std::vector<double> vq = values(q), vk = values(k), vv = values(v), vdo = values(dout);
  std::vector<double> eo(vdo.size()), el, edq(vq.size()), edk(vk.size()), edv(vv.size());
  for (int64_t head = 0; head < b * h; ++head)
    for (int64_t i = 0; i < t; ++i) {
      const double* pq = &vq[static_cast<size_t>((head * t + i) * d)];
      const double* pdo = &vdo[static_cast<size_t>((head * t + i) * e)];
      const int64_t keys = causal ? std::min(s, i + 1) : s;
      std::vector<double> p(static_cast<size_t>(keys)), dp(p.size());
      double sum = 0, delta = 0;
      for (int64_t j = 0; j < keys; ++j) {
        double score = 0;
        for (int64_t c = 0; c < d; ++c) score += pq[c] * vk[static_cast<size_t>((head * s + j) * d + c)];
        sum += p[static_cast<size_t>(j)] = std::exp(score * scale);
      }
      el.push_back(std::log(sum));
      for (int64_t j = 0; j < keys; ++j) {
        const size_t z = static_cast<size_t>(j);
        p[z] /= sum;
        for (int64_t c = 0; c < e; ++c) {
          const size_t at = static_cast<size_t>((head * s + j) * e + c);
          eo[static_cast<size_t>((head * t + i) * e + c)] += p[z] * vv[at];
          edv[at] += p[z] * pdo[c];
          dp[z] += pdo[c] * vv[at];
        }
        delta += p[z] * dp[z];
      }
      for (int64_t j = 0; j < keys; ++j)
        for (int64_t c = 0; c < d; ++c) {
          const double ds = p[static_cast<size_t>(j)] * (dp[static_cast<size_t>(j)] - delta) * scale;
          edq[static_cast<size_t>((head * t + i) * d + c)] += ds * vk[static_cast<size_t>((head * s + j) * d + c)];
          edk[static_cast<size_t>((head * s + j) * d + c)] += ds * pq[c];
        }
    }
  const double limit = dtype == bfloat16 ? 3e-2 : dtype == float16 ? 4e-3 : dtype == float64 ? 1e-12 : 1e-5;
  attention(q, k, v, {.causal = causal, .scale = scale}, out);
  expect_near(out, eo, limit, "out");
  attention(q, k, v, {.causal = causal, .scale = scale}, out, &lse);
  expect_near(out, eo, limit, "out");
  expect_near(lse, el, limit, "lse");
  attention_backward(dout, q, k, v, out, lse, {.causal = causal, .scale = scale}, dq, dk, dv);
  expect_near(dq, edq, limit, "dq");
  expect_near(dk, edk, limit, "dk");
  expect_near(dv, edv, limit, "dv");
}

TEST(Attention, Sizes) {
  for (bool causal : {false, true})
    for (Layout layout : {Layout::kRows, Layout::kHeadsInside, Layout::kStrided}) {
      check(1, 1, 1, 1, 4, 4, causal, float32, layout);
      check(2, 3, 20, 20, 16, 16, causal, float32, layout);
      check(1, 2, 150, 150, 64, 64, causal, float32, layout);
      check(1, 1, 65, 257, 24, 40, causal, float32, layout);
      check(1, 1, 257, 65, 7, 5, causal, float32, layout);
      if (HasFatalFailure()) return;
    }
}

TEST(Attention, EveryDtype) {
  for (bool causal : {false, true})
    for (DType dtype : {float64, float16, bfloat16}) {
      check(2, 2, 33, 33, 16, 16, causal, dtype, Layout::kHeadsInside);
      check(1, 2, 70, 140, 8, 8, causal, dtype, Layout::kRows);
      if (HasFatalFailure()) return;
    }
}

TEST(Attention, ManyThreads) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(3);
  check(2, 5, 100, 100, 32, 32, true, float32, Layout::kHeadsInside);
  omp_set_num_threads(before);
}

TEST(Attention, LargeScoresDoNotOverflow) {
  Array q = Array::empty({1, 1, 3, 1}, float32), k = Array::empty({1, 1, 200, 1}, float32),
        v = Array::empty({1, 1, 200, 1}, float32);
  Array out = Array::empty({1, 1, 3, 1}, float32), lse = Array::empty({1, 1, 3}, float32);
  for (int i = 0; i < 3; ++i) q.data<float>()[i] = 1000.0f * static_cast<float>(i - 1);
  for (int j = 0; j < 200; ++j) k.data<float>()[j] = static_cast<float>(j), v.data<float>()[j] = static_cast<float>(j);
  attention(q, k, v, {}, out, &lse);
  EXPECT_FLOAT_EQ(out.data<float>()[0], 0);
  EXPECT_FLOAT_EQ(out.data<float>()[1], 99.5f);
  EXPECT_FLOAT_EQ(out.data<float>()[2], 199);
  EXPECT_FLOAT_EQ(lse.data<float>()[2], 199000);
}

TEST(Attention, NoKeys) {
  Array q = Array::empty({1, 2, 3, 4}, float32), k = Array::empty({1, 2, 0, 4}, float32), v = k,
        out = Array::empty({1, 2, 3, 4}, float32);
  Array lse = Array::empty({1, 2, 3}, float32);
  fill(q), fill(out);
  attention(q, k, v, {}, out, &lse);
  for (double x : values(out)) EXPECT_EQ(x, 0);
  for (double x : values(lse)) EXPECT_EQ(x, -std::numeric_limits<double>::infinity());
  Array dq = Array::empty({1, 2, 3, 4}, float32), dk = k, dv = k;
  fill(dq);
  attention_backward(out, q, k, v, out, lse, {}, dq, dk, dv);
  for (double x : values(dq)) EXPECT_EQ(x, 0);
}

TEST(Attention, WrongInputsAreErrors) {
  Array q = Array::empty({1, 1, 3, 4}, float32), k = Array::empty({1, 1, 3, 5}, float32), out = q;
  EXPECT_THROW(attention(q, k, k, {}, out), Error);
  Array i = Array::empty({1, 1, 3, 4}, int32), o = i;
  EXPECT_THROW(attention(i, i, i, {}, o), Error);
}

// Each build's exponential against the library's.
TEST(AttentionLoops, Exponential) {
  std::vector<AttentionLoops> builds = {base::attention_loops()};
#ifdef HOLON_HAVE_X86_LEVELS
  if (instruction_level() >= 1) builds.push_back(avx2::attention_loops());
  if (instruction_level() >= 2) builds.push_back(avx512::attention_loops());
#endif
  for (const AttentionLoops& build : builds)
    for (int block = 0; block < 100; ++block) {
      std::vector<float> s(kScoreStride), x(kScoreStride);
      for (size_t j = 0; j < s.size(); ++j)
        x[j] = s[j] = -static_cast<float>(block * 128 + static_cast<int>(j)) * 0.007f;
      const float zero = 0;
      build.probabilities(s.data(), 1, 100, 100, 0, &zero);
      for (size_t j = 0; j < 100; ++j) {
        const double expected = std::exp(static_cast<double>(x[j]));
        ASSERT_NEAR(s[j], expected, expected * 3e-7 + 1.7e-38) << x[j];
      }
      for (size_t j = 100; j < s.size(); ++j) ASSERT_EQ(s[j], 0);
    }
}

}  // namespace
}  // namespace holon::kernels
