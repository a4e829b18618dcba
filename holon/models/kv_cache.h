// Keys and values of the tokens that a model has seen, so that the next call computes those of the new ones only.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "holon/tensor/tensor.h"

namespace holon::models {

// What a captured step of one token for each row has on a stage in place of the cache's numbers, which are other ones
// in each step.
struct StepTensors {
  Placement placement{};
  Tensor place{};      // int64 [1]: where keys and values of the token are written
  Tensor positions{};  // int64 [rows or 1, 1]: of the token
  Tensor seen{};       // bool [rows, 1, 1, capacity]: false for padding; undefined without any
};

// Of each layer keys and values [batch, heads, capacity, width], global tensors that are divided as the layer's: rows
// among the ranks of dp, heads among those of tp, on the ranks of its stage. All rows have the same length: shorter
// prompts have padding before them, which the attention mask hides.
//
// A call of a model with Inputs::cache appends its tokens. It is for inference, within NoGradGuard. One that fails
// leaves the cache as it was.
//
// Memory grows by pages of kPage tokens of each row; what is there is copied then, which is a small part of what
// attention reads in the steps that fill a page.
class KvCache {
 public:
  // max_length: the tokens that a row will have at most, beyond which no memory is reserved; 0: not known.
  static constexpr int64_t kPage = 128;
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
  // Bytes of all layers on this rank, with what has memory only.
  int64_t bytes() const;
  // Memory for so many tokens of each row in all layers, at least.
  void reserve(int64_t length);

  // Of layers: writes key and value [batch, heads, new tokens, width] behind those of the layer, and returns all of its
  // keys and values [batch, heads, length + new tokens, width], views that are good until the next call. Each rank
  // writes its own part. While a step is captured: all places of the memory, in which the graph writes one token at
  // StepTensors' place. Errors: gradients are recorded, or a graph is captured without a step (RuntimeError); another
  // number of rows, other heads, widths or dtypes than before (ValueError).
  std::pair<Tensor, Tensor> append(int64_t layer, const Tensor& key, const Tensor& value);
  // Of models, behind their last layer: these tokens are part of each row now, unless a step is captured.
  void advance(int64_t new_tokens, int64_t rows);

  // Of encoder-decoders' layers: the keys and values of the encoder's result, which the first call keeps; undefined in
  // that call.
  std::pair<Tensor, Tensor> source(int64_t layer) const;
  void keep_source(int64_t layer, const Tensor& key, const Tensor& value);

  // A step is captured from now on, until none is given. The captured graph is good while capacity() and the number of
  // rows stay.
  void set_step(std::vector<StepTensors> stages) { step_ = std::move(stages); }
  // That of a stage; nullptr: no step is captured.
  const StepTensors* step_on(const Placement& stage) const;

  // Row i becomes what row rows[i] was; there may be more or fewer than before. Collective where rows are divided.
  // Errors (IndexError): a row that is not there.
  void select_rows(const std::vector<int64_t>& rows);

 private:
  struct Layer {
    Tensor key, value;
  };
  std::pair<Tensor, Tensor> append_captured(int64_t layer, const Tensor& key, const Tensor& value) const;
  void write(Tensor& held, const Tensor& x) const;
  void grow(Tensor& held, const Tensor& like, int64_t capacity) const;
  Tensor seen(const Tensor& held, int64_t length) const;
  int64_t max_length_, length_ = 0, rows_ = 0;
  std::vector<Layer> layers_, sources_;
  std::vector<StepTensors> step_;
};

}  // namespace holon::models
