// Keys and values of the tokens that a model has seen, so that the next call computes those of the new ones only.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "holon/tensor/tensor.h"

namespace holon::models {

// Of each layer keys and values [batch, heads, capacity, width], global tensors that are divided as the layer's: rows
// among the ranks of dp, heads among those of tp, on the ranks of its stage. All rows have the same length: shorter
// prompts have padding before them, which the attention mask hides.
//
// A call of a model with Inputs::cache appends its tokens. It is for inference, within NoGradGuard. One that fails
// leaves the cache as it was.
class KvCache {
 public:
  // max_length: the tokens that a row will have at most, beyond which no memory is reserved; 0: not known.
  explicit KvCache(int64_t max_length = 0) : max_length_(max_length) {}
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;
  KvCache(KvCache&&) = default;
  KvCache& operator=(KvCache&&) = default;

  // Tokens of each row; 0 before the first call. Rows: 0 before the first call.
  int64_t length() const { return length_; }
  int64_t rows() const { return rows_; }
  // Tokens of each row that there is memory for in layer 0.
  int64_t capacity() const;

  // Of layers: writes key and value [batch, heads, new tokens, width] behind those of the layer, and returns all of its
  // keys and values [batch, heads, length + new tokens, width], views that are good until the next call. Each rank
  // writes its own part. Errors: gradients are recorded, or a graph is captured (RuntimeError); another number of rows,
  // other heads, widths or dtypes than before (ValueError).
  std::pair<Tensor, Tensor> append(int64_t layer, const Tensor& key, const Tensor& value);
  // Of models, behind their last layer: these tokens are part of each row now.
  void advance(int64_t new_tokens, int64_t rows);

  // Of encoder-decoders' layers: the keys and values of the encoder's result, which the first call keeps; undefined in
  // that call.
  std::pair<Tensor, Tensor> source(int64_t layer) const;
  void keep_source(int64_t layer, const Tensor& key, const Tensor& value);

  // Row i becomes what row rows[i] was; there may be more or fewer than before. Collective where rows are divided.
  // Errors (IndexError): a row that is not there.
  void select_rows(const std::vector<int64_t>& rows);

 private:
  struct Layer {
    Tensor key, value;
  };
  void write(Tensor& held, const Tensor& x) const;
  Tensor seen(const Tensor& held, int64_t length) const;
  int64_t max_length_, length_ = 0, rows_ = 0;
  std::vector<Layer> layers_, sources_;
};

}  // namespace holon::models
