// GPT-2: learned positions, LayerNorm, attention of as many keys as queries, GELU.
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
struct Gpt2Config {
  int64_t vocab_size = 50257, n_positions = 1024, n_embd = 768, n_layer = 12, n_head = 12, n_inner = 4 * 768;
  double layer_norm_epsilon = 1e-5, initializer_range = 0.02;
  double resid_pdrop = 0.1, embd_pdrop = 0.1, attn_pdrop = 0.1;
  std::string activation_function = "gelu_new";
  bool scale_attn_weights = true, scale_attn_by_inverse_layer_idx = false;
  bool tie_word_embeddings = true;

  // Errors (ValueError): what Config says; sizes that do not fit each other.
  static Gpt2Config from(const Config& config);
};

// y = x weight + bias, with weight [in, out] as in GPT-2's checkpoints. Which of the two axes the ranks of tp divide:
// outputs are divided, or inputs are.
class Conv1D : public nn::Layer<Conv1D> {
 public:
  enum class Divided { kOutputs, kInputs };
  Conv1D(int64_t in, int64_t out, Divided divided, const Layout& layout);
  Tensor forward(const Tensor& x) const;
  nn::Parameter weight, bias;

 private:
  int64_t in_;
  Divided divided_;
  Layout layout_;
};

// Causal attention with as many heads of keys as of queries.
class Gpt2Attention : public nn::Layer<Gpt2Attention> {
 public:
  // layer: its number.
  Gpt2Attention(const Gpt2Config& config, int64_t layer, const Layout& layout);
  Tensor forward(const Tensor& x, const Sequence& sequence) const;
  Conv1D q, k, v, c_proj;  // q, k and v are one in checkpoints

 private:
  int64_t heads_;
  double scale_, dropout_;
};

// Two products with an activation between them.
class Gpt2Mlp : public nn::Layer<Gpt2Mlp> {
 public:
  Gpt2Mlp(const Gpt2Config& config, const Layout& layout);
  Tensor forward(const Tensor& x) const { return c_proj(act_(c_fc(x))); }
  Conv1D c_fc, c_proj;

 private:
  Activation act_;
};

// One layer: attention and a product, each behind a norm and added to what went in.
class Gpt2Block : public nn::Layer<Gpt2Block> {
 public:
  Gpt2Block(const Gpt2Config& config, int64_t layer, const Layout& layout);
  Tensor forward(const Tensor& x, const Sequence& sequence) const;
  nn::LayerNorm ln_1;
  Gpt2Attention attn;
  nn::LayerNorm ln_2;
  Gpt2Mlp mlp;
  nn::Dropout dropout;
};

// Tokens to the hidden state behind the last norm.
class Gpt2Decoder : public nn::Layer<Gpt2Decoder> {
 public:
  Gpt2Decoder(const Gpt2Config& config, const std::vector<Layout>& layouts);
  Tensor forward(const Tensor& ids, const Inputs& inputs) const;
  nn::Embedding wte, wpe;  // of tokens and of positions
  nn::Dropout drop;
  nn::ModuleList<Gpt2Block> h;
  nn::LayerNorm ln_f;

 private:
  std::vector<Layout> layouts_;
};

class Gpt2 : public nn::Layer<Gpt2> {
 public:
  Gpt2(const Gpt2Config& config, const std::vector<Layout>& layouts);
  // Logits [batch, length, vocabulary] of ids [batch, length].
  Tensor forward(const Tensor& ids, const Inputs& inputs = {}) const;
  // As Model's.
  Tensor loss(const Tensor& ids, const Tensor& labels, const Inputs& inputs = {}) const;
  CausalSizes causal_sizes() const { return {transformer.wte.weight.size(0), transformer.wpe.weight.size(0)}; }
  const std::vector<Layout>& layouts() const { return layouts_; }
  std::vector<StagedModule> stages() const;
  CheckpointNames checkpoint_names() const;
  Gpt2Decoder transformer;
  std::optional<nn::Linear> lm_head;  // none: the embedding's weight is the head's

 private:
  std::vector<Layout> layouts_;
};

}  // namespace holon::models
