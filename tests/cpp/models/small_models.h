// Small configurations, tokens and the comparison of models under several layouts.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "holon/dispatch/random_state.h"
#include "holon/models.h"
#include "holon/ops/values.h"

namespace holon::models {

inline constexpr const char* kLlama = R"({"model_type": "llama", "vocab_size": 23, "hidden_size": 16,
  "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "initializer_range": 0.3, "rope_theta": 100.0})";
inline constexpr const char* kGpt2 = R"({"model_type": "gpt2", "vocab_size": 23, "n_positions": 12, "n_embd": 16,
  "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "initializer_range": 0.3})";

inline Config changed(const char* config, std::initializer_list<std::pair<const char*, checkpoint::Value>> changes) {
  Config c(config);
  for (auto& [key, value] : changes) c.set(key, value);
  return c;
}
// Of every kind of layer that has keys and values: learned positions; grouped queries; windows, of all layers and of
// some; norms of queries and keys; experts. All have 32 positions.
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
      {"mixtral", changed(kLlama, {{"model_type", "mixtral"}, {"num_local_experts", 4}, {"num_experts_per_tok", 2}})}};
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
inline Computed compute(const Model& model, const Tensor& ids, const Tensor& labels, const Inputs& inputs = {}) {
  Computed out;
  Tensor loss = model.loss(ids, labels, inputs);
  loss.backward();
  out.loss = loss.item().as_double();
  out.logits = to_vector<float>(model(ids, inputs).detach());
  for (auto& [name, p] : model.named_parameters()) out.gradients[name] = to_vector<float>(p.grad());
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

inline void expect_same(const Computed& found, const Computed& wanted) {
  EXPECT_LT(difference(found.logits, wanted.logits), 1e-5);
  EXPECT_NEAR(found.loss, wanted.loss, 1e-5 * std::abs(wanted.loss));
  ASSERT_EQ(found.gradients.size(), wanted.gradients.size());
  double scale = 0;
  for (auto& [name, g] : wanted.gradients) scale = std::max(scale, largest(g));
  for (auto& [name, g] : wanted.gradients) {
    // The gradient of a bias of keys is 0 without rotary embeddings: what is there is rounding.
    const bool zero = name.ends_with("attn.k.bias");
    EXPECT_LT(difference(found.gradients.at(name), g, zero ? scale : 0), 1e-5) << name;
  }
}

}  // namespace holon::models
