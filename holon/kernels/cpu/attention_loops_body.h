// The body of attention's row operations, compiled once per instruction set.
#include "holon/kernels/cpu/attention_loops.h"
#include "holon/kernels/cpu/vectors.h"

namespace holon::kernels::HOLON_ISA {
namespace {

typedef Vec<float> F;
typedef int32_t I __attribute__((vector_size(kVectorBytes)));
constexpr int kW = Simd<float>::kWidth;

// e^x for x <= 0, about one unit in the last place; 0 below -87.
HOLON_INLINE F exp_of(F x) {
  const F low = same(-87.0f);
  const I tiny = x < low;
  x = tiny ? low : x;
  // The nearest whole number of powers of two, by adding what leaves no room for a fraction.
  const F shifted = x * 1.44269504f + 12582912.0f;
  const F n = shifted - 12582912.0f;
  const F r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  F p = r * 1.38888889e-3f + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  const I scaled = (I)p + (((I)shifted - 0x4b400000) << 23);
  return tiny ? F{} : (F)scaled;
}

HOLON_INLINE float largest(F v) {
  return fold_lanes<float>(
      v, [](auto p, auto q) __attribute__((always_inline)) { return p > q ? p : q; });
}
HOLON_INLINE float total(F v) {
  return fold_lanes<float>(
      v, [](auto p, auto q) __attribute__((always_inline)) { return p + q; });
}

HOLON_INLINE int64_t count_of(int64_t keys, int64_t visible) {
  return visible < 0 ? 0 : visible < keys ? visible : keys;
}

constexpr float kNone = -__builtin_inff();

void online_softmax(float* s, int64_t rows, int64_t keys, int64_t visible, int64_t step, float* max, float* sum,
                    float* o, int64_t e) {
  for (int64_t r = 0; r < rows; ++r, s += kScoreStride, o += e, visible += step) {
    const int64_t n = count_of(keys, visible), end = (n + kW - 1) / kW * kW;
    for (int64_t j = n; j < end; ++j) s[j] = kNone;
    F top = same(max[r]);
    for (int64_t j = 0; j < end; j += kW) {
      const F v = load(s + j);
      top = v > top ? v : top;
    }
    const float now = largest(top), base = now == kNone ? 0.0f : now;
    F sums = {};
    for (int64_t j = 0; j < end; j += kW) {
      const F p = exp_of(load(s + j) - base);
      store(s + j, p);
      sums += p;
    }
    for (int64_t j = end; j < kScoreStride; j += kW) store(s + j, F{});
    if (now != max[r]) {
      const float factor = exp_of(same(max[r] - base))[0];
      sum[r] *= factor;
      int64_t j = 0;
      for (; j + kW <= e; j += kW) store(o + j, load(o + j) * factor);
      for (; j < e; ++j) o[j] *= factor;
      max[r] = now;
    }
    sum[r] += total(sums);
  }
}

void probabilities(float* s, int64_t rows, int64_t keys, int64_t visible, int64_t step, const float* lse) {
  for (int64_t r = 0; r < rows; ++r, s += kScoreStride, visible += step) {
    const int64_t n = count_of(keys, visible), end = (n + kW - 1) / kW * kW;
    for (int64_t j = n; j < end; ++j) s[j] = kNone;
    const float base = lse[r] == kNone ? 0.0f : lse[r];
    for (int64_t j = 0; j < end; j += kW) store(s + j, exp_of(load(s + j) - base));
    for (int64_t j = end; j < kScoreStride; j += kW) store(s + j, F{});
  }
}

void score_gradient(const float* p, float* dp, int64_t rows, const float* delta, float scale) {
  for (int64_t r = 0; r < rows; ++r, p += kScoreStride, dp += kScoreStride) {
    const float d = delta[r];  // dp might be the same memory, for all that the compiler knows
    for (int64_t j = 0; j < kScoreStride; j += kW) store(dp + j, load(p + j) * (load(dp + j) - d) * scale);
  }
}

}  // namespace

AttentionLoops attention_loops() { return {online_softmax, probabilities, score_gradient}; }

}  // namespace holon::kernels::HOLON_ISA
