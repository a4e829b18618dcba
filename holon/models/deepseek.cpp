#include "holon/models/deepseek.h"

#include <cmath>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/models/loss.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/matmul.h"
#include "holon/ops/shape.h"

namespace holon::models {

namespace {
constexpr const char* kName = "DeepseekV3";
constexpr double kLatentEps = 1e-6;  // of the norms inside attention, whatever rms_norm_eps is

std::string layer_name(int64_t i) { return "model.layers." + std::to_string(i) + "."; }

}  // namespace

DeepseekConfig DeepseekConfig::from(const Config& c) {
  DeepseekConfig out;
  out.vocab_size = c.integer("vocab_size");
  out.hidden_size = c.integer("hidden_size");
  out.intermediate_size = c.integer("intermediate_size");
  out.num_hidden_layers = c.integer("num_hidden_layers");
  out.num_attention_heads = c.integer("num_attention_heads");
  out.max_position_embeddings = c.integer("max_position_embeddings", 4096);
  out.q_lora_rank = c.lists("q_lora_rank") ? c.integer("q_lora_rank", 0) : 1536;
  out.kv_lora_rank = c.integer("kv_lora_rank", 512);
  out.qk_nope_head_dim = c.integer("qk_nope_head_dim", 128);
  out.qk_rope_head_dim = c.integer("qk_rope_head_dim", 64);
  out.v_head_dim = c.integer("v_head_dim", 128);
  out.rms_norm_eps = c.number("rms_norm_eps", 1e-6);
  out.initializer_range = c.number("initializer_range", 0.02);
  out.attention_dropout = c.number("attention_dropout", 0);
  out.hidden_act = c.text("hidden_act", "silu");
  out.attention_bias = c.flag("attention_bias", false);
  out.rope_interleave = c.flag("rope_interleave", true);
  out.tie_word_embeddings = c.flag("tie_word_embeddings", false);
  check_positive(c,
                 {{"vocab_size", out.vocab_size},
                  {"hidden_size", out.hidden_size},
                  {"intermediate_size", out.intermediate_size},
                  {"num_hidden_layers", out.num_hidden_layers},
                  {"num_attention_heads", out.num_attention_heads},
                  {"max_position_embeddings", out.max_position_embeddings},
                  {"kv_lora_rank", out.kv_lora_rank},
                  {"qk_nope_head_dim", out.qk_nope_head_dim},
                  {"qk_rope_head_dim", out.qk_rope_head_dim},
                  {"v_head_dim", out.v_head_dim}});
  if (out.q_lora_rank < 0 || out.qk_rope_head_dim % 2)
    fail_value("models: {}: q_lora_rank is {} and qk_rope_head_dim {}; the first must not be negative, and the second "
               "must be even.",
               c.source(), out.q_lora_rank, out.qk_rope_head_dim);
  if (c.integer("num_key_value_heads", out.num_attention_heads) != out.num_attention_heads)
    fail_value("models: {}: num_key_value_heads differ from num_attention_heads; DeepseekV3 has keys for each head.",
               c.source());
  if (!(out.attention_dropout >= 0 && out.attention_dropout <= 1))
    fail_value("models: {}: attention_dropout is {}; a probability must be from 0 to 1.", c.source(),
               out.attention_dropout);
  out.rotary = RotaryConfig::from(c);
  out.moe = MoeConfig::from(c, out.num_hidden_layers);
  return out;
}

DeepseekAttention::DeepseekAttention(const DeepseekConfig& c, const Layout& l)
    : kv_a_proj_with_mqa(register_module("kv_a_proj_with_mqa",
                                         nn::Linear(c.hidden_size, c.kv_lora_rank + c.qk_rope_head_dim,
                                                    undivided(l, c.attention_bias)))),
      kv_a_layernorm(register_module("kv_a_layernorm", nn::RMSNorm({c.kv_lora_rank}, rms_norm_options(l, kLatentEps)))),
      kv_b_proj(register_module("kv_b_proj",
                                nn::Linear(c.kv_lora_rank, c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim),
                                           by_outputs(l, false)))),
      o_proj(register_module(
          "o_proj", nn::Linear(c.num_attention_heads * c.v_head_dim, c.hidden_size, by_inputs(l, c.attention_bias)))),
      config_(c),
      layout_(l) {
  check_divides(kName, "attention heads", c.num_attention_heads, l);
  const int64_t width = c.num_attention_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim);
  if (c.q_lora_rank == 0) {
    q_proj.emplace(c.hidden_size, width, by_outputs(l, false));
    register_module("q_proj", *q_proj);
    return;
  }
  q_a_proj.emplace(c.hidden_size, c.q_lora_rank, undivided(l, c.attention_bias));
  q_a_layernorm.emplace(Dims{c.q_lora_rank}, rms_norm_options(l, kLatentEps));
  q_b_proj.emplace(c.q_lora_rank, width, by_outputs(l, false));
  register_module("q_a_proj", *q_a_proj);
  register_module("q_a_layernorm", *q_a_layernorm);
  register_module("q_b_proj", *q_b_proj);
}

Tensor DeepseekAttention::forward(const Tensor& x, const Sequence& s) const {
  const int64_t heads = config_.num_attention_heads, plain = config_.qk_nope_head_dim,
                turned = config_.qk_rope_head_dim;
  auto turn = [&](const Tensor& t) { return rotate(t, s.angles, config_.rope_interleave); };
  const Tensor q = split_heads(q_proj ? (*q_proj)(x) : (*q_b_proj)((*q_a_layernorm)((*q_a_proj)(x))), heads);
  const Tensor query = cat({slice(q, -1, 0, plain), turn(slice(q, -1, plain))}, -1);
  const Tensor latent = kv_a_proj_with_mqa(x);
  const Tensor kv = split_heads(kv_b_proj(kv_a_layernorm(slice(latent, -1, 0, config_.kv_lora_rank))), heads);
  // One for all heads.
  const Tensor position = turn(split_heads(slice(latent, -1, config_.kv_lora_rank), 1));
  const Tensor key = cat({slice(kv, -1, 0, plain), expand(position, {x.size(0), heads, x.size(1), turned})}, -1);
  const double scale = config_.rotary.score_factor / std::sqrt(static_cast<double>(plain + turned));
  const Tensor y = attend(query, key, slice(kv, -1, plain), s,
                          {.scale = scale, .dropout = is_training() ? config_.attention_dropout : 0});
  return added_up(o_proj(y), layout_);
}

DeepseekBlock::DeepseekBlock(const DeepseekConfig& c, int64_t layer, const Layout& l)
    : self_attn(register_module("self_attn", DeepseekAttention(c, l))),
      input_layernorm(
          register_module("input_layernorm", nn::RMSNorm({c.hidden_size}, rms_norm_options(l, c.rms_norm_eps)))),
      post_attention_layernorm(register_module("post_attention_layernorm",
                                               nn::RMSNorm({c.hidden_size}, rms_norm_options(l, c.rms_norm_eps)))) {
  if (c.moe.sparse_layers[to_size(layer)]) {
    moe.emplace(c.moe, c.hidden_size, c.hidden_act, l);
    register_module("mlp", *moe);
  } else {
    mlp.emplace(c.hidden_size, c.intermediate_size, c.hidden_act, false, l);
    register_module("mlp", *mlp);
  }
}

Tensor DeepseekBlock::forward(const Tensor& input, const Sequence& s) const {
  const Tensor x = input + self_attn(input_layernorm(input), s);
  const Tensor normed = post_attention_layernorm(x);
  return x + (moe ? (*moe)(normed) : (*mlp)(normed));
}

DeepseekDecoder::DeepseekDecoder(const DeepseekConfig& c, const std::vector<Layout>& layouts)
    : embed_tokens(register_module("embed_tokens",
                                   nn::Embedding(c.vocab_size, c.hidden_size, vocabulary_options(layouts.front())))),
      norm(nn::RMSNorm({c.hidden_size}, rms_norm_options(layouts.back(), c.rms_norm_eps))),
      layouts_(layouts) {
  check_stages(kName, c.num_hidden_layers, layouts, true);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i)
    layers.push_back(DeepseekBlock(c, i, at_index(layouts, stage_of(i, c.num_hidden_layers, layouts))));
  for (auto& layout : layouts) rotary.push_back(Rotary(c.rotary, c.qk_rope_head_dim, layout));
  register_module("layers", layers);
  register_module("rotary", rotary);
  register_module("norm", norm);
}

Tensor DeepseekDecoder::forward(const Tensor& ids, const Inputs& in) const {
  const Layout& first = layouts_.front();
  Tensor x = added_up(embed_tokens(by_rows(ids, first, ids.size(0))), first);
  const auto n = static_cast<int64_t>(layers.size());
  Sequence s;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t stage = stage_of(i, n, layouts_);
    if (i == 0 || stage != stage_of(i - 1, n, layouts_)) {
      x = to_stage(x, at_index(layouts_, stage));
      s = sequence_of(ids.shape(), in, at_index(layouts_, stage), {});
      s.angles = at_index(rotary, stage)(s.positions);
    }
    s.layer = i;
    x = at_index(layers, i)(x, s);
  }
  if (in.cache) in.cache->advance(ids.size(1), ids.size(0));
  return norm(last_positions(x, in.logits_to_keep));
}

Deepseek::Deepseek(const DeepseekConfig& c, const std::vector<Layout>& layouts)
    : model(register_module("model", DeepseekDecoder(c, layouts))), config_(c), layouts_(layouts) {
  if (!c.tie_word_embeddings) {
    lm_head.emplace(c.hidden_size, c.vocab_size, by_outputs(layouts.back(), false));
    register_module("lm_head", *lm_head);
  }
  draw_parameters(*this, c.initializer_range);
}

Tensor Deepseek::forward(const Tensor& ids, const Inputs& in) const {
  check_ids(kName, "the tokens", ids, config_.vocab_size);
  check_inputs(kName, in, ids, "attention_mask, position_ids, document_ids, cache");
  check_length(kName, ids.size(1) + (in.cache ? in.cache->length() : 0), config_.max_position_embeddings);
  const Tensor x = model(ids, in);
  if (lm_head) return (*lm_head)(x);
  const Layout& last = layouts_.back();
  return linear(x, model.embed_tokens.weight.to_global(last.placement, last.tensor_parallel(0)));
}

Tensor Deepseek::loss(const Tensor& ids, const Tensor& labels, const Inputs& in) const {
  return next_token_loss(kName, (*this)(ids, in), labels, layouts_.back());
}

std::vector<StagedModule> Deepseek::stages() const {
  const int last = static_cast<int>(layouts_.size()) - 1;
  std::vector<StagedModule> parts{{model.embed_tokens, 0}};
  const auto n = static_cast<int64_t>(model.layers.size());
  for (int64_t i = 0; i < n; ++i)
    parts.emplace_back(at_index(model.layers, i), static_cast<int>(stage_of(i, n, layouts_)));
  parts.emplace_back(model.norm, last);
  if (lm_head) parts.emplace_back(*lm_head, last);
  return parts;
}

CheckpointNames Deepseek::checkpoint_names() const {
  // The layers behind the last one predict further tokens.
  CheckpointNames names{.base = "model.",
                        .ignored = {"rotary_emb.inv_freq", layer_name(config_.num_hidden_layers) + "*"}};
  if (!lm_head) names.ignored.emplace_back("lm_head.weight");
  for (size_t i = 0; i < model.layers.size(); ++i)
    if (auto& moe = model.layers[i].moe) {
      const std::string layer = layer_name(static_cast<int64_t>(i));
      for (auto& rule : moe->checkpoint_rules(layer + "mlp.", layer)) names.rules.push_back(rule);
    }
  return names;
}

}  // namespace holon::models
