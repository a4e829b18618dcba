// Gradients of attention as ops on the matrix of scores, which have gradients themselves: what backward() computes
// while it is recorded (create_graph), in place of the kernels.
#pragma once

#include <array>
#include <cstdint>

#include "holon/tensor/tensor.h"

namespace holon::ops {

struct AttentionScores {
  bool is_causal = false;
  int64_t window = 0;  // with is_causal: so many keys at most; 0: all
  double scale = 1, dropout_p = 0;
  int64_t seed = 0, counter = 0;  // of the draw, if dropout_p is not 0
};

// Of query, key and value [b, h, t, d], where heads of query may share one of key and value. mask and documents: as
// attention_flash takes them, or undefined. Holds the scores.
std::array<Tensor, 3> attention_gradients(const Tensor& dy, const Tensor& query, const Tensor& key, const Tensor& value,
                                          const Tensor& mask, const Tensor& documents, const AttentionScores& of);

}  // namespace holon::ops
