// Sparse mixtures of experts: of many products, each token takes part in a few.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "holon/checkpoint/core/key_map.h"
#include "holon/models/config.h"
#include "holon/models/layers.h"
#include "holon/models/layout.h"
#include "holon/nn/module.h"

namespace holon::models {

// experts 0: there are none.
struct MoeConfig {
  int64_t experts = 0, experts_per_token = 2, intermediate_size = 0;
  int64_t shared_intermediate_size = 0;  // of an expert that all tokens have in addition; 0: there is none
  bool normalize = true;                 // the weights of a token's experts add up to 1
  bool shared_gate = true;               // the shared expert is weighted as well
  // DeepSeek's router: experts are chosen by the sigmoids of their scores and a bias of each, among the best groups of
  // them, and weighted by the sigmoids, times scale.
  bool sigmoid = false;
  int64_t groups = 1, groups_per_token = 1;
  double scale = 1;
  std::vector<bool> sparse_layers{};  // which layers have experts
  bool mixtral_names = false;         // of the tensors in checkpoints
  // Of Mixtral, Qwen2-MoE, Qwen3-MoE or DeepSeek-V3; of another type, one without experts. Errors (ValueError): what
  // Config says; more experts for a token than there are; an auxiliary loss.
  static MoeConfig from(const Config& config, int64_t n_layers);
};

// The sum of a token's experts, each a SwiGLU, weighted by the router. Each token is computed by its own experts only,
// and none is dropped. Tokens are gathered over the ranks of ep, and what their experts on these ranks give is added
// up.
class SparseMoe : public nn::Layer<SparseMoe> {
 public:
  // Errors (ValueError): the ranks of ep do not divide the experts.
  SparseMoe(const MoeConfig& config, int64_t hidden, const std::string& activation, const Layout& layout);
  // x [batch, length, hidden].
  Tensor forward(const Tensor& x) const;
  // The names of its tensors, which begin with ours, in checkpoints, where each expert has its own. layer: what names
  // of the layer begin with there.
  std::vector<checkpoint::KeyRule> checkpoint_rules(const std::string& ours, const std::string& layer) const;
  nn::Linear gate;  // the router
  std::optional<SwiGlu> shared_expert;
  std::optional<nn::Linear> shared_expert_gate;
  nn::Buffer e_score_correction_bias;           // of DeepSeek's router
  nn::Parameter gate_proj, up_proj, down_proj;  // [experts, out, in]

 private:
  // The experts of each token [batch, length, k], and their weights.
  struct Routes {
    Tensor experts, weights;
  };
  Routes routes_of(const Tensor& x) const;
  // The best experts [batch, length, k] by scores [batch, length, experts].
  Tensor chosen(Tensor scores) const;
  MoeConfig config_;
  Layout layout_;
};

}  // namespace holon::models
