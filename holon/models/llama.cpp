#include "holon/models/llama.h"

#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/models/loss.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/matmul.h"
#include "holon/ops/shape.h"

namespace holon::models {

namespace {

constexpr const char* kName = "Llama";

// How many keys the queries of each layer see, 0 for all.
std::vector<int64_t> windows_of(const Config& c, const std::string& type, int64_t n_layers) {
  std::vector<int64_t> windows(to_size(n_layers), 0);
  if (type == "mistral" || type == "mixtral") {
    const int64_t otherwise = type == "mistral" ? 4096 : 0;
    const int64_t window = c.lists("sliding_window") ? c.integer("sliding_window", 0) : otherwise;
    std::fill(windows.begin(), windows.end(), window);
  }
  if (type.starts_with("qwen") && c.flag("use_sliding_window", false)) {
    const int64_t window = c.integer("sliding_window", 4096);
    const int64_t most = c.integer("max_window_layers", 28);
    // Which layers have the window where layer_types does not say it.
    auto by_default = [&](int64_t i) {
      if (type == "qwen3_moe") return true;
      return type == "qwen2_moe" ? i % 2 == 0 && i < most : i >= most;
    };
    std::vector<std::string> kinds;
    if (c.has("layer_types")) kinds = c.texts("layer_types");
    if (!kinds.empty() && kinds.size() != windows.size())
      fail_value("models: {}: layer_types has {} entries for {} layers.", c.source(), kinds.size(), n_layers);
    for (int64_t i = 0; i < n_layers; ++i) {
      const std::string kind =
          kinds.empty() ? (by_default(i) ? "sliding_attention" : "full_attention") : at_index(kinds, i);
      if (kind != "sliding_attention" && kind != "full_attention")
        fail_value("models: {}: layer {} is of type '{}'; it must be full_attention or sliding_attention.", c.source(),
                   i, kind);
      if (kind == "sliding_attention") at_index(windows, i) = window;
    }
  }
  for (int64_t window : windows)
    if (window < 0) fail_value("models: {}: sliding_window is {}; it must be 1 or more, or null.", c.source(), window);
  return windows;
}

void check_sizes(const LlamaConfig& out, const Config& c) {
  check_positive(c,
                 {{"vocab_size", out.vocab_size},
                  {"hidden_size", out.hidden_size},
                  {"intermediate_size", out.intermediate_size},
                  {"num_hidden_layers", out.num_hidden_layers},
                  {"num_attention_heads", out.num_attention_heads},
                  {"num_key_value_heads", out.num_key_value_heads},
                  {"head_dim", out.head_dim},
                  {"max_position_embeddings", out.max_position_embeddings}});
  if (out.num_attention_heads % out.num_key_value_heads)
    fail_value("models: {}: num_key_value_heads {} do not divide num_attention_heads {}.", c.source(),
               out.num_key_value_heads, out.num_attention_heads);
  if (out.head_dim % 2)
    fail_value("models: {}: head_dim {} is odd; rotary embeddings need pairs.", c.source(), out.head_dim);
  if (!(out.attention_dropout >= 0 && out.attention_dropout <= 1))
    fail_value("models: {}: attention_dropout is {}; a probability must be from 0 to 1.", c.source(),
               out.attention_dropout);
}

// Of keys and values. A head is whole on a rank: where the ranks cannot share them evenly, each has all.
nn::LinearOptions shared(const LlamaConfig& c, const Layout& l) {
  const bool bias = c.qkv_bias || c.attention_bias;
  return c.num_key_value_heads % l.parallel.tp == 0 ? by_outputs(l, bias) : undivided(l, bias);
}

}  // namespace

LlamaConfig LlamaConfig::from(const Config& c) {
  const std::string type = c.text("model_type", "llama");
  LlamaConfig out;
  out.vocab_size = c.integer("vocab_size");
  out.hidden_size = c.integer("hidden_size");
  out.intermediate_size = c.integer("intermediate_size");
  out.num_hidden_layers = c.integer("num_hidden_layers");
  out.num_attention_heads = c.integer("num_attention_heads");
  out.num_key_value_heads = c.integer("num_key_value_heads", out.num_attention_heads);
  out.head_dim =
      c.integer("head_dim", type == "qwen3" ? 128 : out.hidden_size / std::max<int64_t>(1, out.num_attention_heads));
  out.max_position_embeddings = c.integer("max_position_embeddings");
  out.rms_norm_eps = c.number("rms_norm_eps", 1e-6);
  out.initializer_range = c.number("initializer_range", 0.02);
  out.attention_dropout = c.number("attention_dropout", 0);
  out.hidden_act = c.text("hidden_act", "silu");
  out.attention_bias = !type.starts_with("qwen2") && c.flag("attention_bias", false);
  out.qkv_bias = type == "qwen2" || (type == "qwen2_moe" && c.flag("qkv_bias", true));
  out.mlp_bias = c.flag("mlp_bias", false);
  out.qk_norm = type == "qwen3" || type == "qwen3_moe";
  out.tie_word_embeddings = c.flag("tie_word_embeddings", false);
  check_sizes(out, c);
  out.rotary = RotaryConfig::from(c);
  out.moe = MoeConfig::from(c, out.num_hidden_layers);
  out.windows = windows_of(c, type, out.num_hidden_layers);
  return out;
}

LlamaAttention::LlamaAttention(const LlamaConfig& c, const Layout& l)
    : q_proj(register_module("q_proj",
                             nn::Linear(c.hidden_size, c.num_attention_heads * c.head_dim,
                                        by_outputs(l, c.qkv_bias || c.attention_bias)))),
      k_proj(register_module("k_proj", nn::Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, shared(c, l)))),
      v_proj(register_module("v_proj", nn::Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, shared(c, l)))),
      o_proj(register_module(
          "o_proj", nn::Linear(c.num_attention_heads * c.head_dim, c.hidden_size, by_inputs(l, c.attention_bias)))),
      heads_(c.num_attention_heads),
      shared_heads_(c.num_key_value_heads),
      dropout_(c.attention_dropout),
      layout_(l) {
  check_divides(kName, "attention heads", heads_, l);
  if (!c.qk_norm) return;
  q_norm.emplace(Dims{c.head_dim}, rms_norm_options(l, c.rms_norm_eps));
  k_norm.emplace(Dims{c.head_dim}, rms_norm_options(l, c.rms_norm_eps));
  register_module("q_norm", *q_norm);
  register_module("k_norm", *k_norm);
}

Tensor LlamaAttention::forward(const Tensor& x, const Sequence& s) const {
  Tensor q = split_heads(q_proj(x), heads_), k = split_heads(k_proj(x), shared_heads_);
  const Tensor v = split_heads(v_proj(x), shared_heads_);
  if (q_norm) q = (*q_norm)(q), k = (*k_norm)(k);
  const Tensor y = attend(rotate(q, s.angles), rotate(k, s.angles), v, s, {.dropout = is_training() ? dropout_ : 0});
  return added_up(o_proj(y), layout_);
}

LlamaBlock::LlamaBlock(const LlamaConfig& c, int64_t layer, const Layout& l)
    : self_attn(register_module("self_attn", LlamaAttention(c, l))),
      input_layernorm(
          register_module("input_layernorm", nn::RMSNorm({c.hidden_size}, rms_norm_options(l, c.rms_norm_eps)))),
      post_attention_layernorm(register_module("post_attention_layernorm",
                                               nn::RMSNorm({c.hidden_size}, rms_norm_options(l, c.rms_norm_eps)))) {
  if (c.moe.experts > 0 && c.moe.sparse_layers[to_size(layer)]) {
    moe.emplace(c.moe, c.hidden_size, c.hidden_act, l);
    register_module("mlp", *moe);
  } else {
    mlp.emplace(c.hidden_size, c.intermediate_size, c.hidden_act, c.mlp_bias, l);
    register_module("mlp", *mlp);
  }
}

Tensor LlamaBlock::forward(const Tensor& input, const Sequence& s) const {
  const Tensor x = input + self_attn(input_layernorm(input), s);
  const Tensor normed = post_attention_layernorm(x);
  return x + (moe ? (*moe)(normed) : (*mlp)(normed));
}

LlamaDecoder::LlamaDecoder(const LlamaConfig& c, const std::vector<Layout>& layouts)
    : embed_tokens(register_module("embed_tokens",
                                   nn::Embedding(c.vocab_size, c.hidden_size, vocabulary_options(layouts.front())))),
      norm(nn::RMSNorm({c.hidden_size}, rms_norm_options(layouts.back(), c.rms_norm_eps))),
      config_(c),
      layouts_(layouts) {
  check_stages(kName, c.num_hidden_layers, layouts, true);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i)
    layers.push_back(LlamaBlock(c, i, at_index(layouts, stage_of(i, c.num_hidden_layers, layouts))));
  for (auto& layout : layouts) rotary.push_back(Rotary(c.rotary, c.head_dim, layout));
  register_module("layers", layers);
  register_module("rotary", rotary);
  register_module("norm", norm);
}

Tensor LlamaDecoder::forward(const Tensor& ids, const Inputs& in) const {
  const Layout& first = layouts_.front();
  Tensor x = added_up(embed_tokens(by_rows(ids, first, ids.size(0))), first);
  int64_t stage = -1;
  std::vector<std::pair<int64_t, Sequence>> by_window;  // of this stage
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const int64_t here = stage_of(i, config_.num_hidden_layers, layouts_);
    const Layout& layout = at_index(layouts_, here);
    if (here != stage) by_window.clear(), x = to_stage(x, layout), stage = here;
    const int64_t window = config_.windows.empty() ? 0 : at_index(config_.windows, i);
    auto known = std::find_if(by_window.begin(), by_window.end(), [&](auto& e) { return e.first == window; });
    if (known == by_window.end()) {
      Sequence s = sequence_of(ids.shape(), in, layout, {.window = window});
      s.angles = by_window.empty() ? at_index(rotary, here)(s.positions) : by_window.front().second.angles;
      by_window.emplace_back(window, std::move(s));
      known = std::prev(by_window.end());
    }
    known->second.layer = i;
    x = at_index(layers, i)(x, known->second);
  }
  if (in.cache) in.cache->advance(ids.size(1), ids.size(0));
  return norm(last_positions(x, in.logits_to_keep));
}

Llama::Llama(const LlamaConfig& c, const std::vector<Layout>& layouts)
    : model(register_module("model", LlamaDecoder(c, layouts))), layouts_(layouts) {
  if (!c.tie_word_embeddings) {
    lm_head.emplace(c.hidden_size, c.vocab_size, by_outputs(layouts.back(), false));
    register_module("lm_head", *lm_head);
  }
  draw_parameters(*this, c.initializer_range);
}

Tensor Llama::forward(const Tensor& ids, const Inputs& in) const {
  check_ids(kName, "the tokens", ids, model.embed_tokens.weight.size(0));
  check_inputs(kName, in, ids, "attention_mask, position_ids, document_ids, cache");
  check_length(kName, ids.size(1) + (in.cache ? in.cache->length() : 0), model.max_positions());
  const Tensor x = model(ids, in);
  if (lm_head) return (*lm_head)(x);
  const Layout& last = layouts_.back();
  return linear(x, model.embed_tokens.weight.to_global(last.placement, last.tensor_parallel(0)));
}

Tensor Llama::loss(const Tensor& ids, const Tensor& labels, const Inputs& in) const {
  return next_token_loss(kName, (*this)(ids, in), labels, layouts_.back());
}

std::vector<StagedModule> Llama::stages() const {
  const int last = static_cast<int>(layouts_.size()) - 1;
  std::vector<StagedModule> parts{{model.embed_tokens, 0}};
  const auto n = static_cast<int64_t>(model.layers.size());
  for (int64_t i = 0; i < n; ++i)
    parts.emplace_back(at_index(model.layers, i), static_cast<int>(stage_of(i, n, layouts_)));
  parts.emplace_back(model.norm, last);
  if (lm_head) parts.emplace_back(*lm_head, last);
  return parts;
}

CheckpointNames Llama::checkpoint_names() const {
  // Older files have the frequencies of each layer, and some those of a head that is tied.
  CheckpointNames names{.base = "model.", .ignored = {"rotary_emb.inv_freq"}};
  if (!lm_head) names.ignored.emplace_back("lm_head.weight");
  for (size_t i = 0; i < model.layers.size(); ++i)
    if (auto& moe = model.layers[i].moe) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      for (auto& rule : moe->checkpoint_rules(layer + "mlp.", layer)) names.rules.push_back(rule);
    }
  return names;
}

}  // namespace holon::models
