// Llama and the models that are built as it is: Mistral (a sliding window), Qwen2 (biases of queries, keys and values),
// Qwen3 (norms of queries and keys), Mixtral, Qwen2-MoE and Qwen3-MoE (experts). RMSNorm, rotary embeddings, attention
// of grouped queries, SwiGLU.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "holon/models/attention.h"
#include "holon/models/layers.h"
#include "holon/models/model.h"
#include "holon/models/moe.h"
#include "holon/models/rotary.h"
#include "holon/nn/containers.h"

namespace holon::models {

// The names are those of config.json.
struct LlamaConfig {
  int64_t vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008, num_hidden_layers = 32;
  int64_t num_attention_heads = 32, num_key_value_heads = 32, head_dim = 128, max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6, initializer_range = 0.02, attention_dropout = 0;
  std::string hidden_act = "silu";
  bool qkv_bias = false, attention_bias = false, mlp_bias = false;  // attention_bias: of all four products
  bool qk_norm = false;
  bool tie_word_embeddings = false;
  RotaryConfig rotary{};
  MoeConfig moe{};
  std::vector<int64_t> windows{};  // of each layer: how many keys a query sees; 0, or none given: all

  // Errors (ValueError): what Config says; sizes that do not fit each other.
  static LlamaConfig from(const Config& config);
};

// Attention of grouped queries, causal, with rotary embeddings.
class LlamaAttention : public nn::Layer<LlamaAttention> {
 public:
  LlamaAttention(const LlamaConfig& config, const Layout& layout);
  // x [batch, length, hidden].
  Tensor forward(const Tensor& x, const Sequence& sequence) const;
  nn::Linear q_proj, k_proj, v_proj, o_proj;
  std::optional<nn::RMSNorm> q_norm, k_norm;

 private:
  int64_t heads_, shared_heads_;
  double dropout_;
  Layout layout_;
};

// One layer: attention, and a product or experts, each behind a norm and added to what went in.
class LlamaBlock : public nn::Layer<LlamaBlock> {
 public:
  // layer: its number.
  LlamaBlock(const LlamaConfig& config, int64_t layer, const Layout& layout);
  Tensor forward(const Tensor& x, const Sequence& sequence) const;
  LlamaAttention self_attn;
  std::optional<SwiGlu> mlp;     // either this
  std::optional<SparseMoe> moe;  // or experts
  nn::RMSNorm input_layernorm, post_attention_layernorm;
};

// Tokens to the hidden state behind the last norm.
class LlamaDecoder : public nn::Layer<LlamaDecoder> {
 public:
  LlamaDecoder(const LlamaConfig& config, const std::vector<Layout>& layouts);
  Tensor forward(const Tensor& ids, const Inputs& inputs) const;
  // The longest row.
  int64_t max_positions() const { return config_.max_position_embeddings; }
  nn::Embedding embed_tokens;
  nn::ModuleList<LlamaBlock> layers;
  nn::ModuleList<Rotary> rotary;  // of the stages
  nn::RMSNorm norm;

 private:
  LlamaConfig config_;
  std::vector<Layout> layouts_;
};

class Llama : public nn::Layer<Llama> {
 public:
  Llama(const LlamaConfig& config, const std::vector<Layout>& layouts);
  // Logits [batch, length, vocabulary] of ids [batch, length].
  Tensor forward(const Tensor& ids, const Inputs& inputs = {}) const;
  // As Model's.
  Tensor loss(const Tensor& ids, const Tensor& labels, const Inputs& inputs = {}) const;
  CausalSizes causal_sizes() const { return {model.embed_tokens.weight.size(0), model.max_positions()}; }
  const std::vector<Layout>& layouts() const { return layouts_; }
  std::vector<StagedModule> stages() const;
  CheckpointNames checkpoint_names() const;
  LlamaDecoder model;
  std::optional<nn::Linear> lm_head;  // none: the embedding's weight is the head's

 private:
  MoeConfig moe_;
  bool router_losses_ = false;  // loss() has those, too
  std::vector<Layout> layouts_;
};

}  // namespace holon::models
