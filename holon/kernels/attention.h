// Scaled dot-product attention without the matrix of scores: blocks of keys pass by, and each row of out is rescaled
// when its maximum grows. Blocks that causality, the window or the documents hide are left out. float32 by blocks of
// products, float16 and bfloat16 through it, float64 by plain loops.
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

struct Attention {
  bool causal = false;  // query i sees the keys j <= i, both by their logical numbers
  int64_t window = 0;   // and of those only j > i - window; 0: all
  // int64 [b or 1, length], by logical numbers: query i sees the keys j with documents[j] == documents[i].
  Array documents;
  double scale = 1;
  // bool: true lets a query see a key; floating: added to the scores. Each axis of [b, h, t, s] as large as there,
  // or 1.
  Array mask;
  // Probabilities are 0 with this probability, else divided by 1 - it. Drawn by logical index, the same in both passes.
  double dropout = 0;
  uint64_t seed = 0, counter = 0;
  // Where the local arrays are in the logical ones, and how large those are (used by dropout only).
  int64_t first_image = 0, first_head = 0, first_query = 0, first_key = 0;
  int64_t heads = 0, queries = 0, keys = 0;
};

// out[b, h, i, :] = softmax_j(scale * q[b, h, i] . k[b, h, j] + mask) @ v. q: [b, h, t, d]; k: [b, g, s, d]; v: [b, g,
// s, e] where g divides h: that many heads of q share one of k and v; out: [b, h, t, e]; lse, if not nullptr: [b, h,
// t], float32 (float64 for float64), gets the logarithm of each row's sum, which the backward pass needs. A query that
// sees no key: zeros and -inf.
void attention(const Array& q, const Array& k, const Array& v, const Attention& options, Array& out,
               Array* lse = nullptr);

// The gradients of q, k and v for out's gradient dout. Scores are computed again.
void attention_backward(const Array& dout, const Array& q, const Array& k, const Array& v, const Array& out,
                        const Array& lse, const Attention& options, Array& dq, Array& dk, Array& dv);

// Joins attention over some keys, out and lse, with that over others, more and more_lse, of the same queries: out and
// lse become those of all keys. Arrays as attention()'s, of float32 or float64.
void join_attention(const Array& more, const Array& more_lse, Array& out, Array& lse);

}  // namespace holon::kernels
