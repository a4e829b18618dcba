// Row operations on blocks of attention scores; three builds of one body (attention_loops_body.h).
#pragma once

#include <cstdint>

namespace holon::kernels {

// Rows of scores are `kScoreStride` apart; loops run to it, so what is beyond the keys is written with zeros.
inline constexpr int64_t kScoreStride = 128;

struct AttentionLoops {
  // Of rows of scores, row r counts the first `visible + r * step` keys (cut to 0..keys), the others become -inf; then
  // s = exp(s - max) with the new maximum, and sum and the row of o (width e) are brought to it.
  void (*online_softmax)(float* s, int64_t rows, int64_t keys, int64_t visible, int64_t step, float* max, float* sum,
                         float* o, int64_t e);
  // s = exp(s - lse) for the same keys, 0 for the others.
  void (*probabilities)(float* s, int64_t rows, int64_t keys, int64_t visible, int64_t step, const float* lse);
  // dp = p * (dp - delta) * scale, for whole rows.
  void (*score_gradient)(const float* p, float* dp, int64_t rows, const float* delta, float scale);
};

const AttentionLoops& attention_loops();

namespace base {
AttentionLoops attention_loops();
}
namespace avx2 {
AttentionLoops attention_loops();
}
namespace avx512 {
AttentionLoops attention_loops();
}

}  // namespace holon::kernels
