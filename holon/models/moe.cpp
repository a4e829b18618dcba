#include "holon/models/moe.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/internal_ops/experts.h"
#include "holon/kernels/quantized.h"
#include "holon/nn/weights.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/index.h"
#include "holon/ops/matmul.h"
#include "holon/ops/norm.h"
#include "holon/ops/rearrange.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/sort.h"

namespace holon::models {

namespace {

void check_groups(const MoeConfig& m, const Config& c) {
  const bool whole = m.groups >= 1 && m.experts % m.groups == 0 && m.experts / m.groups >= 2;
  if (!whole || m.groups_per_token < 1 || m.groups_per_token > m.groups ||
      m.experts_per_token > m.groups_per_token * (m.experts / m.groups))
    fail_value("models: {}: {} experts in n_group {} groups, of which a token has topk_group {} and {} experts. Groups "
               "are equal and of 2 experts or more, and those of a token hold its experts.",
               c.source(), m.experts, m.groups, m.groups_per_token, m.experts_per_token);
}

}  // namespace

MoeConfig MoeConfig::from(const Config& c, int64_t n_layers) {
  const std::string type = c.text("model_type", "");
  MoeConfig out;
  const bool deepseek = type == "deepseek_v3";
  if (type != "mixtral" && type != "qwen2_moe" && type != "qwen3_moe" && !deepseek) return out;
  const char* names[] = {"n_routed_experts", "num_experts", "num_local_experts"};
  out.experts = c.integer(c.has(names[0]) ? names[0] : c.has(names[1]) ? names[1] : names[2]);
  out.experts_per_token = c.integer("num_experts_per_tok");
  if (out.experts < 1 || out.experts_per_token < 1 || out.experts_per_token > out.experts)
    fail_value("models: {}: num_experts_per_tok is {} of {} experts; it must be from 1 to their number.", c.source(),
               out.experts_per_token, out.experts);
  const bool balanced = c.flag("output_router_logits", false);
  out.balance_loss = balanced ? c.number("router_aux_loss_coef", 0.001) : 0;
  out.z_loss = c.number("router_z_loss_coef", 0);
  if (deepseek && (balanced || out.z_loss != 0))
    fail_value("models: {}: {}; losses are there for routers that are a softmax, and DeepseekV3's is balanced by "
               "e_score_correction_bias.",
               c.source(), balanced ? "output_router_logits is true" : "router_z_loss_coef is not 0");
  out.capacity_factor = c.number("capacity_factor", 0);
  for (auto [name, value] : {std::pair{"router_aux_loss_coef", out.balance_loss},
                             {"router_z_loss_coef", out.z_loss},
                             {"capacity_factor", out.capacity_factor}})
    if (!(value >= 0 && value < std::numeric_limits<double>::infinity()))
      fail_value("models: {}: {} is {}; it must be a number from 0 on.", c.source(), name, value);
  if (c.number("router_jitter_noise", 0) != 0)
    fail_value("models: {}: router_jitter_noise is not 0; noise of the router is not supported.", c.source());
  out.sparse_layers.assign(to_size(n_layers), true);
  if (type == "mixtral") {
    out.intermediate_size = c.integer("intermediate_size");
    out.mixtral_names = true;
    return out;
  }
  out.intermediate_size = c.integer("moe_intermediate_size");
  if (deepseek) {
    out.sigmoid = true;
    out.shared_gate = false;
    out.shared_intermediate_size = out.intermediate_size * c.integer("n_shared_experts", 1);
    out.normalize = c.flag("norm_topk_prob", true);
    out.scale = c.number("routed_scaling_factor", 2.5);
    out.groups = c.integer("n_group", 8);
    out.groups_per_token = c.integer("topk_group", 4);
    check_groups(out, c);
    const int64_t dense = c.integer("first_k_dense_replace", 3);
    for (int64_t i = 0; i < n_layers; ++i) out.sparse_layers[to_size(i)] = i >= dense;
    return out;
  }
  if (type == "qwen2_moe") out.shared_intermediate_size = c.integer("shared_expert_intermediate_size");
  out.normalize = c.flag("norm_topk_prob", false);
  const int64_t step = c.integer("decoder_sparse_step", 1);
  if (step < 1) fail_value("models: {}: decoder_sparse_step is {}; it must be 1 or more.", c.source(), step);
  std::vector<int64_t> dense;
  if (c.has("mlp_only_layers")) dense = c.integers("mlp_only_layers");
  for (int64_t i = 0; i < n_layers; ++i)
    out.sparse_layers[to_size(i)] = (i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end();
  return out;
}

SparseMoe::SparseMoe(const MoeConfig& c, int64_t hidden, const std::string& activation, const Layout& l)
    : gate(register_module("gate", nn::Linear(hidden, c.experts, undivided(l, false)))), config_(c), layout_(l) {
  if (activation != "silu" && activation != "swish")
    fail_value("SparseMoe: the activation of experts is '{}'; it must be silu.", activation);
  if (c.experts % l.parallel.ep)
    fail_value("SparseMoe: ep {} does not divide the {} experts. Choose an ep that does.", l.parallel.ep, c.experts);
  auto weight = [&](int64_t out, int64_t in, int divided) {
    return nn::blank({c.experts, out, in}, l.placement, l.expert_tensor_parallel(divided), l.dtype);
  };
  gate_proj = register_parameter("gate_proj", weight(c.intermediate_size, hidden, 1));
  up_proj = register_parameter("up_proj", weight(c.intermediate_size, hidden, 1));
  down_proj = register_parameter("down_proj", weight(hidden, c.intermediate_size, 2));
  if (c.sigmoid)
    e_score_correction_bias =
        register_buffer("e_score_correction_bias", zeros({c.experts}, {.placement = l.placement, .sbp = l.whole}));
  if (c.shared_intermediate_size == 0) return;
  shared_expert.emplace(hidden, c.shared_intermediate_size, activation, false, l);
  register_module("shared_expert", *shared_expert);
  if (!c.shared_gate) return;
  shared_expert_gate.emplace(hidden, 1, undivided(l, false));
  register_module("shared_expert_gate", *shared_expert_gate);
}

std::vector<checkpoint::KeyRule> SparseMoe::checkpoint_rules(const std::string& ours, const std::string& layer) const {
  const bool mixtral = config_.mixtral_names;
  const std::string theirs = layer + (mixtral ? "block_sparse_moe." : "mlp.");
  std::vector<checkpoint::KeyRule> rules{{{ours + "gate.weight"}, {theirs + "gate.weight"}}};
  for (auto [name, old] : {std::pair{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}})
    rules.push_back({{ours + name},
                     {theirs + "experts.{e}." + (mixtral ? old : name) + ".weight"},
                     {.kind = checkpoint::KeyRule::kStack}});
  if (config_.sigmoid) {
    rules.push_back({{ours + "e_score_correction_bias"}, {theirs + "gate.e_score_correction_bias"}});
    for (std::string name : {"gate_proj", "up_proj", "down_proj"})
      rules.push_back({{ours + "shared_expert." + name + ".weight"}, {theirs + "shared_experts." + name + ".weight"}});
  }
  return rules;
}

Tensor SparseMoe::chosen(Tensor scores) const {
  NoGradGuard guard;
  if (config_.sigmoid) {
    scores = scores + e_score_correction_bias;
    const int64_t b = scores.size(0), t = scores.size(1), each = config_.experts / config_.groups;
    const Tensor of_groups = sum(topk(scores.reshape({b, t, config_.groups, each}), 2, -1).values, {-1});
    const Tensor best = topk(of_groups, config_.groups_per_token, -1).indices;
    const Tensor kept = repeat_interleave(sum(one_hot(best, config_.groups), {-2}), each, 2);
    scores = masked_fill(scores, eq(kept, 0), -std::numeric_limits<double>::infinity());
  }
  return topk(scores, config_.experts_per_token, -1).indices;
}

SparseMoe::Routes SparseMoe::routes_of(const Tensor& x, RouterLosses* losses) const {
  const Tensor logits = config_.sigmoid ? linear(x.to(float32), gate.weight.to(float32)) : gate(x).to(float32);
  const Tensor scores = config_.sigmoid ? sigmoid(logits) : softmax(logits, -1);
  Tensor experts = chosen(scores);
  if (losses) losses->add(logits, experts, layout_);
  Tensor weights = gather(scores, -1, experts);
  if (config_.normalize) weights = weights / (sum(weights, {-1}, true) + (config_.sigmoid ? 1e-20 : 0.0));
  if (config_.scale != 1) weights = weights * config_.scale;
  if (config_.capacity_factor > 0) {
    const double even =
        static_cast<double>(x.size(1) * config_.experts_per_token) / static_cast<double>(config_.experts);
    const double most = std::min(std::ceil(config_.capacity_factor * even), static_cast<double>(x.size(1)));
    experts = expert_capacity(experts, config_.experts, static_cast<int64_t>(most));
  }
  return {experts, weights.to(x.dtype())};
}

Tensor SparseMoe::quantized_experts(const Tensor& x, const Tensor& experts, const Tensor& weights) const {
  const auto format = kernels::format_of_blocks(x.size(-1) / gate_proj.size(2), gate_proj.size(3));
  return quantized_expert_swiglu(x, experts, weights, gate_proj, up_proj, down_proj, name(format));
}

Tensor SparseMoe::forward(const Tensor& x, RouterLosses* losses) const {
  auto [experts, weights] = routes_of(x, losses);
  const Tensor mixed =
      added_up(is_floating(gate_proj.dtype()) ? expert_swiglu(x, experts, weights, gate_proj, up_proj, down_proj)
                                              : quantized_experts(x, experts, weights),
               layout_);
  if (!shared_expert) return mixed;
  const Tensor shared = (*shared_expert)(x);
  return mixed + (shared_expert_gate ? sigmoid((*shared_expert_gate)(x)) * shared : shared);
}

}  // namespace holon::models
