// DeepSeek-V3: attention whose keys and values are made of one short vector for each token, and a mixture of experts in
// most layers. The layers for the prediction of further tokens are not read.
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
struct DeepseekConfig {
  int64_t vocab_size = 129280, hidden_size = 7168, intermediate_size = 18432, num_hidden_layers = 61;
  int64_t num_attention_heads = 128, max_position_embeddings = 4096;
  int64_t q_lora_rank = 1536;  // 0: queries are made of the hidden state
  int64_t kv_lora_rank = 512, qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128;
  double rms_norm_eps = 1e-6, initializer_range = 0.02, attention_dropout = 0;
  std::string hidden_act = "silu";
  bool attention_bias = false, rope_interleave = true, tie_word_embeddings = false;
  RotaryConfig rotary{};
  MoeConfig moe{};

  // Errors (ValueError): what Config says; sizes that do not fit each other.
  static DeepseekConfig from(const Config& config);
};

// Multi-head latent attention. The ranks of tp divide what is made of the short vectors, which each rank has whole.
class DeepseekAttention : public nn::Layer<DeepseekAttention> {
 public:
  DeepseekAttention(const DeepseekConfig& config, const Layout& layout);
  // x [batch, length, hidden].
  Tensor forward(const Tensor& x, const Sequence& sequence) const;
  std::optional<nn::Linear> q_proj;              // either this
  std::optional<nn::Linear> q_a_proj, q_b_proj;  // or these two with a norm between them
  std::optional<nn::RMSNorm> q_a_layernorm;
  nn::Linear kv_a_proj_with_mqa;  // to the short vector, and the part of the key that is turned, of all heads
  nn::RMSNorm kv_a_layernorm;
  nn::Linear kv_b_proj, o_proj;

 private:
  DeepseekConfig config_;
  Layout layout_;
};

// One layer: attention, and a product or experts, each behind a norm and added to what went in.
class DeepseekBlock : public nn::Layer<DeepseekBlock> {
 public:
  // layer: its number.
  DeepseekBlock(const DeepseekConfig& config, int64_t layer, const Layout& layout);
  Tensor forward(const Tensor& x, const Sequence& sequence) const;
  DeepseekAttention self_attn;
  std::optional<SwiGlu> mlp;     // either this
  std::optional<SparseMoe> moe;  // or experts
  nn::RMSNorm input_layernorm, post_attention_layernorm;
};

// Tokens to the hidden state behind the last norm.
class DeepseekDecoder : public nn::Layer<DeepseekDecoder> {
 public:
  DeepseekDecoder(const DeepseekConfig& config, const std::vector<Layout>& layouts);
  Tensor forward(const Tensor& ids, const Inputs& inputs) const;
  nn::Embedding embed_tokens;
  nn::ModuleList<DeepseekBlock> layers;
  nn::ModuleList<Rotary> rotary;  // of the stages
  nn::RMSNorm norm;

 private:
  std::vector<Layout> layouts_;
};

class Deepseek : public nn::Layer<Deepseek> {
 public:
  Deepseek(const DeepseekConfig& config, const std::vector<Layout>& layouts);
  // Logits [batch, length, vocabulary] of ids [batch, length].
  Tensor forward(const Tensor& ids, const Inputs& inputs = {}) const;
  // As Model's.
  Tensor loss(const Tensor& ids, const Tensor& labels, const Inputs& inputs = {}) const;
  CausalSizes causal_sizes() const { return {config_.vocab_size, config_.max_position_embeddings}; }
  const std::vector<Layout>& layouts() const { return layouts_; }
  std::vector<StagedModule> stages() const;
  CheckpointNames checkpoint_names() const;
  DeepseekDecoder model;
  std::optional<nn::Linear> lm_head;  // none: the embedding's weight is the head's

 private:
  DeepseekConfig config_;
  std::vector<Layout> layouts_;
};

}  // namespace holon::models
