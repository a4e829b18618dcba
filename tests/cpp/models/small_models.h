// Small configurations, tokens and the comparison of models under several layouts.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "holon/comm/run_ranks.h"
#include "holon/dispatch/random_state.h"
#include "holon/models.h"
#include "holon/ops/values.h"

namespace holon::models {

inline constexpr const char* kLlama = R"({"model_type": "llama", "vocab_size": 23, "hidden_size": 16,
  "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "initializer_range": 0.3, "rope_theta": 100.0})";
inline constexpr const char* kGpt2 = R"({"model_type": "gpt2", "vocab_size": 23, "n_positions": 12, "n_embd": 16,
  "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "initializer_range": 0.3})";
inline constexpr const char* kBert = R"({"model_type": "bert", "vocab_size": 23, "hidden_size": 16,
  "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20, "max_position_embeddings": 12,
  "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.3})";
inline constexpr const char* kT5 = R"({"model_type": "t5", "vocab_size": 23, "d_model": 16, "d_kv": 4, "d_ff": 20,
  "num_layers": 1, "num_heads": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 9,
  "dropout_rate": 0.0})";
inline constexpr const char* kVit = R"({"model_type": "vit", "hidden_size": 16, "num_hidden_layers": 2,
  "num_attention_heads": 4, "intermediate_size": 20, "image_size": 8, "patch_size": 4, "num_labels": 5,
  "initializer_range": 0.3})";
inline constexpr const char* kResnet = R"({"model_type": "resnet", "embedding_size": 4, "hidden_sizes": [16, 24],
  "depths": [1, 1], "num_labels": 5})";
inline constexpr const char* kMixtral = R"({"model_type": "mixtral", "vocab_size": 23, "hidden_size": 16,
  "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 32, "initializer_range": 0.3, "num_local_experts": 4, "num_experts_per_tok": 2})";
inline constexpr const char* kQwen3Moe = R"({"model_type": "qwen3_moe", "vocab_size": 23, "hidden_size": 16,
  "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 32, "initializer_range": 0.3, "num_experts": 6, "num_experts_per_tok": 3,
  "moe_intermediate_size": 20, "mlp_only_layers": [1], "norm_topk_prob": true})";
inline constexpr const char* kDeepseek = R"({"model_type": "deepseek_v3", "vocab_size": 23, "hidden_size": 16,
  "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 32,
  "initializer_range": 0.3, "moe_intermediate_size": 8, "n_routed_experts": 8, "n_group": 4, "topk_group": 2,
  "num_experts_per_tok": 2, "first_k_dense_replace": 1, "q_lora_rank": 6, "kv_lora_rank": 10, "qk_rope_head_dim": 4,
  "qk_nope_head_dim": 6, "v_head_dim": 5})";

inline Config changed(const char* config, std::initializer_list<std::pair<const char*, checkpoint::Value>> changes) {
  Config c(config);
  for (auto& [key, value] : changes) c.set(key, value);
  return c;
}
// Of every kind of layer that has keys and values: learned positions; grouped queries; windows, of all layers and of
// some; norms of queries and keys; experts; short vectors. All have 32 positions.
inline std::vector<std::pair<std::string, Config>> causal_models() {
  return {
      {"gpt2", changed(kGpt2, {{"n_positions", 32}})},
      {"llama", Config(kLlama)},
      {"mistral", changed(kLlama, {{"model_type", "mistral"}, {"sliding_window", 3}})},
      {"qwen2",
       changed(
           kLlama,
           {{"model_type", "qwen2"}, {"use_sliding_window", true}, {"sliding_window", 4}, {"max_window_layers", 1}})},
      {"qwen3", changed(kLlama, {{"model_type", "qwen3"}, {"head_dim", 6}})},
      {"mixtral", Config(kMixtral)},
      {"deepseek", Config(kDeepseek)}};
}
// In evaluation mode, with the same parameters on every layout.
inline Model drawn(const Config& config, const Parallel& parallel = {}) {
  manual_seed(5);
  Model model = from_config(config, parallel);
  model.eval();
  return model;
}

// Rows of tokens below `end`, the same on all ranks.
inline Tensor tokens(int64_t batch, int64_t length, int64_t end) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < batch * length; ++i) ids.push_back((i * i + 3 * i + 1) % end);
  return tensor(ids, {batch, length});
}

using Values = std::vector<float>;
// Logits, and gradients of the loss by name, each whole.
struct Computed {
  Values logits;
  double loss = 0;
  std::map<std::string, Values> gradients;
};
// What a model is called with: three rows of nine tokens, or three images.
struct Sample {
  Tensor x, labels;
  Inputs inputs{};
};
inline Sample sample_of(const Config& config) {
  const std::string type = config.text("model_type");
  if (type == "vit" || type == "resnet") {
    std::vector<float> pixels;
    for (int64_t i = 0; i < 3 * 3 * 8 * 8; ++i) pixels.push_back(static_cast<float>(i * i % 17) / 8 - 1);
    return {tensor(pixels, {3, 3, 8, 8}), tensor(std::vector<int64_t>{4, 0, 2}, {3})};
  }
  const Tensor ids = tokens(3, 9, 23);
  if (type == "t5") return {ids, tokens(3, 7, 23), {.decoder_input_ids = tokens(3, 7, 23)}};
  return {ids, ids};
}

inline Computed compute(const Model& model, const Tensor& ids, const Tensor& labels, const Inputs& inputs = {}) {
  Computed out;
  Tensor loss = model.loss(ids, labels, inputs);
  loss.backward();
  out.loss = loss.item().as_double();
  out.logits = to_vector<float>(model(ids, inputs).detach());
  for (auto& [name, p] : model.named_parameters()) out.gradients[name] = to_vector<float>(p.grad());
  return out;
}

inline Computed compute(const Model& model) {
  const Sample sample = sample_of(model.config());
  return compute(model, sample.x, sample.labels, sample.inputs);
}

// A checkpoint with drawn parameters, and what it computes on one rank.
inline Computed save_one(const std::filesystem::path& folder, const char* config) {
  Computed out;
  comm::run_ranks(1, [&](int) {
    manual_seed(3);
    Model model = from_config(Config(config));
    model.eval();
    model.save_pretrained(folder);
    out = compute(model);
  });
  return out;
}

inline double largest(const Values& a) {
  double x = 0;
  for (float v : a) x = std::max<double>(x, std::abs(v));
  return x;
}
// The largest difference, relative to the largest number.
inline double difference(const Values& a, const Values& b, double scale = 0) {
  EXPECT_EQ(a.size(), b.size());
  double apart = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) apart = std::max<double>(apart, std::abs(a[i] - b[i]));
  return apart / std::max(largest(b), scale);
}

inline void expect_same(const Computed& found, const Computed& wanted, double most = 1e-5) {
  EXPECT_LT(difference(found.logits, wanted.logits), most);
  EXPECT_NEAR(found.loss, wanted.loss, most * std::abs(wanted.loss));
  ASSERT_EQ(found.gradients.size(), wanted.gradients.size());
  double scale = 0;
  for (auto& [name, g] : wanted.gradients) scale = std::max(scale, largest(g));
  for (auto& [name, g] : wanted.gradients) {
    // The gradient of a bias of keys is 0 without rotary embeddings: what is there is rounding.
    const bool zero = name.ends_with("attn.k.bias") || name.ends_with(".key.bias");
    EXPECT_LT(difference(found.gradients.at(name), g, zero ? scale : 0), most) << name;
  }
}

}  // namespace holon::models
