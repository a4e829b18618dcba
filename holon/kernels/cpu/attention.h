// Scaled dot-product attention without the matrix of scores: blocks of keys pass by, and each row of out is rescaled
// when its maximum grows. float32 by blocks of products, float16 and bfloat16 through it, float64 by plain loops.
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

// out[b, h, i, :] = softmax_j(scale * q[b, h, i] . k[b, h, j]) @ v over all j, or j <= i if causal. q: [b, h, t, d]; k:
// [b, h, s, d]; v: [b, h, s, e]; out: [b, h, t, e]; lse, if not nullptr: [b, h, t], float32 (float64 for float64), gets
// the logarithm of each row's sum, which the backward pass needs. No key (s == 0): zeros and -inf.
void attention(const Array& q, const Array& k, const Array& v, bool causal, double scale, Array& out,
               Array* lse = nullptr);

// The gradients of q, k and v for out's gradient dout. Scores are computed again.
void attention_backward(const Array& dout, const Array& q, const Array& k, const Array& v, const Array& out,
                        const Array& lse, bool causal, double scale, Array& dq, Array& dk, Array& dv);

}  // namespace holon::kernels
