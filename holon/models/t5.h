// T5: an encoder and a decoder whose attention knows positions by a learned bias of each distance.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "holon/models/attention.h"
#include "holon/models/layers.h"
#include "holon/models/model.h"
#include "holon/nn/containers.h"
#include "holon/nn/dropout.h"

namespace holon::models {

// The names are those of config.json.
struct T5Config {
  int64_t vocab_size = 32128, d_model = 512, d_kv = 64, d_ff = 2048, num_layers = 6, num_decoder_layers = 6,
          num_heads = 8;
  int64_t relative_attention_num_buckets = 32, relative_attention_max_distance = 128;
  int64_t pad_token_id = 0, decoder_start_token_id = 0;
  double layer_norm_epsilon = 1e-6, initializer_factor = 1, dropout_rate = 0.1;
  std::string activation = "relu";
  bool gated = false;                 // feed_forward_proj is "gated-..."
  bool tie_word_embeddings = true;    // the head has the embedding's weight
  bool scale_decoder_outputs = true;  // by 1 / sqrt(d_model)

  // Errors (ValueError): what Config says; sizes that do not fit each other.
  static T5Config from(const Config& config);
};

// Attention without a scale, of a stack's tokens over themselves or over the encoder's result.
class T5Attention : public nn::Layer<T5Attention> {
 public:
  T5Attention(const T5Config& config, const Layout& layout);
  // Of x over itself, [batch, length, d_model], with a bias of the scores.
  Tensor forward(const Tensor& x, const Sequence& sequence, const Tensor& bias) const;
  // Of x over the encoder's result [batch, length, d_model], whose keys and values the sequence's cache has once they
  // were computed.
  Tensor over(const Tensor& states, const Tensor& x, const Sequence& sequence) const;
  nn::Linear q, k, v, o;

 private:
  AttendOptions options(const Tensor& bias) const;
  int64_t heads_;
  double dropout_;
  Layout layout_;
};

// Two products with an activation between them, or three with a gate.
class T5FeedForward : public nn::Layer<T5FeedForward> {
 public:
  T5FeedForward(const T5Config& config, const Layout& layout);
  Tensor forward(const Tensor& x) const;
  nn::Linear wi;
  std::optional<nn::Linear> gate;  // what wi's activation is multiplied by
  nn::Linear wo;
  nn::Dropout dropout;

 private:
  Activation act_;
  Layout layout_;
};

// Of the encoder, or, with attention over the encoder's result, of the decoder.
class T5Block : public nn::Layer<T5Block> {
 public:
  T5Block(const T5Config& config, bool decoder, const Layout& layout);
  // What a decoder's block attends to besides its own tokens.
  struct Memory {
    Tensor states;  // [batch, length, d_model]; undefined if the cache has what is made of it
    Sequence sequence;
  };
  Tensor forward(const Tensor& x, const Sequence& sequence, const Tensor& bias, const Memory* memory) const;
  T5Attention self_attention;
  nn::RMSNorm self_norm;
  std::optional<T5Attention> cross_attention;
  std::optional<nn::RMSNorm> cross_norm;
  T5FeedForward feed_forward;
  nn::RMSNorm feed_forward_norm;
  nn::Dropout dropout;
};

// The blocks of the encoder or the decoder, their bias of distances, and the norm behind them.
class T5Stack : public nn::Layer<T5Stack> {
 public:
  // first: the number of this stack's first block among all blocks of the model.
  T5Stack(const T5Config& config, bool decoder, int64_t first, const std::vector<Layout>& layouts);
  // x [batch, length, d_model], embedded tokens. memory: of the decoder, the encoder's result of so many tokens;
  // undefined if the cache has what is made of it.
  Tensor forward(const Tensor& x, const Inputs& inputs, const Tensor& memory, int64_t memory_length,
                 const Inputs& memory_inputs) const;
  // Of the block i of this stack.
  int64_t stage(int64_t i) const;
  nn::Embedding relative_attention_bias;  // [buckets, heads]
  nn::ModuleList<T5Block> blocks;
  nn::RMSNorm final_layer_norm;
  nn::Dropout dropout;

 private:
  // Of the queries from `before` on.
  Tensor bias_of(int64_t length, int64_t before) const;
  T5Config config_;
  bool decoder_;
  int64_t first_;
  std::vector<Layout> layouts_;
};

class T5 : public nn::Layer<T5> {
 public:
  T5(const T5Config& config, const std::vector<Layout>& layouts);
  // Logits [batch, decoder's length, vocabulary] of ids [batch, length] and decoder_input_ids. A cache is the
  // decoder's; the encoder is computed in the first call with it. Errors (ValueError): no decoder_input_ids.
  Tensor forward(const Tensor& ids, const Inputs& inputs) const;
  // As Model's. decoder_input_ids are the labels, moved by one place, unless they are given.
  Tensor loss(const Tensor& ids, const Tensor& labels, const Inputs& inputs = {}) const;
  CausalSizes causal_sizes() const { return {shared.weight.size(0), kNoLimit, config_.decoder_start_token_id}; }
  const std::vector<Layout>& layouts() const { return layouts_; }
  std::vector<StagedModule> stages() const;
  CheckpointNames checkpoint_names() const;
  nn::Embedding shared;
  T5Stack encoder, decoder;
  std::optional<nn::Linear> lm_head;  // none: the embedding's weight is the head's

 private:
  Tensor embed(const Tensor& ids, const Layout& layout) const;
  T5Config config_;
  std::vector<Layout> layouts_;
};

// The bucket of each distance: [length - before, length] of the queries from `before` on and all keys, row by row.
std::vector<int64_t> relative_buckets(int64_t length, bool both_directions, int64_t buckets, int64_t max_distance,
                                      int64_t before = 0);

}  // namespace holon::models
