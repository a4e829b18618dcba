// Tables of rows that integers name.
#pragma once

#include <optional>

#include "holon/nn/module.h"

namespace holon::nn {

// A table [rows, width]: the row of each index. sbp S(0) splits the vocabulary.
struct EmbeddingOptions {
  std::optional<int64_t> padding_idx{};  // a row that starts as zeros and gets no gradient
  Placement placement{};
  NdSbp sbp{};
  DType dtype = float32;
};
class Embedding : public Layer<Embedding> {
 public:
  // Errors: a padding_idx that is not a row.
  Embedding(int64_t rows, int64_t width, const EmbeddingOptions& options = {});
  Tensor forward(const Tensor& indices) const;
  Parameter weight;

 private:
  std::optional<int64_t> padding_idx_;
};

}  // namespace holon::nn
