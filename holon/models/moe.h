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
#include "holon/models/router_loss.h"
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
  // What the losses of the routers are multiplied by (router_loss.h): router_aux_loss_coef where output_router_logits
  // is true, and router_z_loss_coef.
  double balance_loss = 0, z_loss = 0;
  // capacity_factor: of the tokens of a row, an expert takes capacity_factor * tokens * experts_per_token / experts,
  // rounded up, and drops the others' share. First choices come before second ones, then earlier positions before later
  // ones (GShard), so that it does not depend on the layout. 0: no token is dropped.
  double capacity_factor = 0;
  // Of Mixtral, Qwen2-MoE, Qwen3-MoE or DeepSeek-V3; of another type, one without experts. Errors (ValueError): what
  // Config says; more experts for a token than there are; a negative factor; an auxiliary loss of DeepSeek's router.
  static MoeConfig from(const Config& config, int64_t n_layers);
};

// The sum of a token's experts, each a SwiGLU, weighted by the router. Each token is computed by its own experts only,
// and none is dropped unless there is a capacity. The ranks of ep exchange tokens: each gets those of which it has an
// expert, once, and returns what its experts give (expert_swiglu in holon/ops/experts.cpp).
class SparseMoe : public nn::Layer<SparseMoe> {
 public:
  // Errors (ValueError): the ranks of ep do not divide the experts.
  SparseMoe(const MoeConfig& config, int64_t hidden, const std::string& activation, const Layout& layout);
  // x [batch, length, hidden]. losses: takes what the router chooses; may be nullptr.
  Tensor forward(const Tensor& x, RouterLosses* losses = nullptr) const;
  // The names of its tensors, which begin with ours, in checkpoints, where each expert has its own. layer: what names
  // of the layer begin with there.
  std::vector<checkpoint::KeyRule> checkpoint_rules(const std::string& ours, const std::string& layer) const;
  nn::Linear gate;  // the router
  std::optional<SwiGlu> shared_expert;
  std::optional<nn::Linear> shared_expert_gate;
  nn::Buffer e_score_correction_bias;  // of DeepSeek's router
  nn::Parameter gate_proj, up_proj,
      down_proj;  // [experts, out, in]; uint8 [experts, out, groups, bytes] once quantised

 private:
  // The experts of each token [batch, length, k], and their weights.
  struct Routes {
    Tensor experts, weights;
  };
  Routes routes_of(const Tensor& x, RouterLosses* losses) const;
  Tensor quantized_experts(const Tensor& x, const Tensor& experts, const Tensor& weights) const;
  // The best experts [batch, length, k] by scores [batch, length, experts].
  Tensor chosen(Tensor scores) const;
  MoeConfig config_;
  Layout layout_;
};

}  // namespace holon::models
