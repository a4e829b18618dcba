#include "holon/models/moe.h"

#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/nn/weights.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/index.h"
#include "holon/ops/matmul.h"
#include "holon/ops/norm.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/sort.h"

namespace holon::models {

MoeConfig MoeConfig::from(const Config& c, int64_t n_layers) {
  const std::string type = c.text("model_type", "");
  MoeConfig out;
  if (type != "mixtral" && type != "qwen2_moe" && type != "qwen3_moe") return out;
  out.experts = c.has("num_experts") ? c.integer("num_experts") : c.integer("num_local_experts");
  out.experts_per_token = c.integer("num_experts_per_tok");
  if (out.experts < 1 || out.experts_per_token < 1 || out.experts_per_token > out.experts)
    fail_value("models: {}: num_experts_per_tok is {} of {} experts; it must be from 1 to their number.", c.source(),
               out.experts_per_token, out.experts);
  if (c.flag("output_router_logits", false))
    fail_value("models: {}: output_router_logits is true; the loss of the router's balance is not supported.",
               c.source());
  if (c.number("router_jitter_noise", 0) != 0)
    fail_value("models: {}: router_jitter_noise is not 0; noise of the router is not supported.", c.source());
  out.sparse_layers.assign(to_size(n_layers), true);
  if (type == "mixtral") {
    out.intermediate_size = c.integer("intermediate_size");
    out.mixtral_names = true;
    return out;
  }
  out.intermediate_size = c.integer("moe_intermediate_size");
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
    : gate(register_module("gate", nn::Linear(hidden, c.experts, undivided(l, false)))),
      config_(c),
      act_("SparseMoe", activation),
      layout_(l) {
  if (c.experts % l.parallel.ep)
    fail_value("SparseMoe: ep {} does not divide the {} experts. Choose an ep that does.", l.parallel.ep, c.experts);
  auto weight = [&](int64_t out, int64_t in, int divided) {
    return nn::blank({c.experts, out, in}, l.placement, l.expert_tensor_parallel(divided), l.dtype);
  };
  gate_proj = register_parameter("gate_proj", weight(c.intermediate_size, hidden, 1));
  up_proj = register_parameter("up_proj", weight(c.intermediate_size, hidden, 1));
  down_proj = register_parameter("down_proj", weight(hidden, c.intermediate_size, 2));
  if (c.shared_intermediate_size == 0) return;
  shared_expert.emplace(hidden, c.shared_intermediate_size, activation, false, l);
  shared_expert_gate.emplace(hidden, 1, undivided(l, false));
  register_module("shared_expert", *shared_expert);
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
  return rules;
}

Tensor SparseMoe::weights_of(const Tensor& x) const {
  const Tensor shares = softmax(gate(x).to(float32), -1);
  Tensor chosen;
  {
    NoGradGuard guard;
    const Tensor indices = topk(shares, config_.experts_per_token, -1).indices;
    chosen = sum(one_hot(indices, config_.experts), {-2}).to(float32);
  }
  Tensor weights = shares * chosen;
  if (config_.normalize) weights = weights / sum(weights, {-1}, true);
  return weights.to(x.dtype());
}

Tensor SparseMoe::forward(const Tensor& input) const {
  const int64_t batch = input.size(0), length = input.size(1), n = config_.experts;
  Tensor weights = weights_of(input), x = input;
  if (layout_.parallel.ep > 1) {
    // The rows of all ranks of ep: each has other experts for them.
    const NdSbp gathered = layout_.rows.with(1, sbp::broadcast());
    x = x.to_global(layout_.placement, gathered);
    weights = weights.to_global(layout_.placement, gathered);
  }
  x = unsqueeze(x, 0);
  auto product = [](const Tensor& t, const Tensor& w) { return matmul(t, unsqueeze(w, 1).transpose(2, 3)); };
  const Tensor each = permute(weights, {2, 0, 1}).reshape({n, batch, length, 1});
  const Tensor hidden = act_(product(x, gate_proj)) * product(x, up_proj) * each;
  const Tensor y = added_up(sum(product(hidden, down_proj), {0}), layout_);
  return shared_expert ? y + sigmoid((*shared_expert_gate)(input)) * (*shared_expert)(input) : y;
}

}  // namespace holon::models
