#include "holon/models/vit.h"

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/models/loss.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/shape.h"

namespace holon::models {

namespace {

constexpr const char* kName = "ViT";

// A size that older files have as a list of two equal ones.
int64_t square(const Config& c, const char* key, int64_t otherwise) {
  if (!c.has(key)) return otherwise;
  if (!c.is_list(key)) return c.integer(key);
  const auto sizes = c.integers(key);
  if (sizes.size() != 2 || sizes[0] != sizes[1])
    fail_value("models: {}: {} is not square; ViT takes square images and patches here.", c.source(), key);
  return sizes[0];
}

}  // namespace

VitConfig VitConfig::from(const Config& c) {
  VitConfig out;
  out.hidden_size = c.integer("hidden_size");
  out.num_hidden_layers = c.integer("num_hidden_layers");
  out.num_attention_heads = c.integer("num_attention_heads");
  out.intermediate_size = c.integer("intermediate_size");
  out.image_size = square(c, "image_size", 224);
  out.patch_size = square(c, "patch_size", 16);
  out.num_channels = c.integer("num_channels", 3);
  out.num_labels = label_count(c);
  out.layer_norm_eps = c.number("layer_norm_eps", 1e-12);
  out.initializer_range = c.number("initializer_range", 0.02);
  out.hidden_dropout_prob = c.number("hidden_dropout_prob", 0);
  out.attention_probs_dropout_prob = c.number("attention_probs_dropout_prob", 0);
  out.hidden_act = c.text("hidden_act", "gelu");
  out.qkv_bias = c.flag("qkv_bias", true);
  check_positive(c,
                 {{"hidden_size", out.hidden_size},
                  {"num_hidden_layers", out.num_hidden_layers},
                  {"num_attention_heads", out.num_attention_heads},
                  {"intermediate_size", out.intermediate_size},
                  {"image_size", out.image_size},
                  {"patch_size", out.patch_size},
                  {"num_channels", out.num_channels}});
  if (out.hidden_size % out.num_attention_heads)
    fail_value("models: {}: num_attention_heads {} do not divide hidden_size {}.", c.source(), out.num_attention_heads,
               out.hidden_size);
  if (out.image_size < out.patch_size)
    fail_value("models: {}: patch_size {} is over image_size {}.", c.source(), out.patch_size, out.image_size);
  return out;
}

VitAttention::VitAttention(const VitConfig& c, const Layout& l)
    : query(register_module("query", nn::Linear(c.hidden_size, c.hidden_size, by_outputs(l, c.qkv_bias)))),
      key(register_module("key", nn::Linear(c.hidden_size, c.hidden_size, by_outputs(l, c.qkv_bias)))),
      value(register_module("value", nn::Linear(c.hidden_size, c.hidden_size, by_outputs(l, c.qkv_bias)))),
      dense(register_module("dense", nn::Linear(c.hidden_size, c.hidden_size, by_inputs(l, true)))),
      heads_(c.num_attention_heads),
      dropout_(c.attention_probs_dropout_prob),
      layout_(l) {
  check_divides(kName, "attention heads", heads_, l);
}

Tensor VitAttention::forward(const Tensor& x) const {
  const Tensor y = attend(split_heads(query(x), heads_), split_heads(key(x), heads_), split_heads(value(x), heads_), {},
                          {.dropout = is_training() ? dropout_ : 0});
  return added_up(dense(y), layout_);
}

VitBlock::VitBlock(const VitConfig& c, const Layout& l)
    : attention(register_module("attention", VitAttention(c, l))),
      up(register_module("up", nn::Linear(c.hidden_size, c.intermediate_size, by_outputs(l, true)))),
      down(register_module("down", nn::Linear(c.intermediate_size, c.hidden_size, by_inputs(l, true)))),
      layernorm_before(
          register_module("layernorm_before", nn::LayerNorm({c.hidden_size}, layer_norm_options(l, c.layer_norm_eps)))),
      layernorm_after(
          register_module("layernorm_after", nn::LayerNorm({c.hidden_size}, layer_norm_options(l, c.layer_norm_eps)))),
      dropout(register_module("dropout", nn::Dropout(c.hidden_dropout_prob))),
      act_(kName, c.hidden_act),
      layout_(l) {}

Tensor VitBlock::forward(const Tensor& input) const {
  const Tensor x = input + dropout(attention(layernorm_before(input)));
  return x + dropout(added_up(down(act_(up(layernorm_after(x)))), layout_));
}

VitEmbeddings::VitEmbeddings(const VitConfig& c, const Layout& l)
    : cls_token(register_parameter(
          "cls_token", zeros({1, 1, c.hidden_size}, {.placement = l.placement, .sbp = l.whole, .dtype = l.dtype}))),
      position_embeddings(register_parameter(
          "position_embeddings",
          zeros({1, (c.image_size / c.patch_size) * (c.image_size / c.patch_size) + 1, c.hidden_size},
                {.placement = l.placement, .sbp = l.whole, .dtype = l.dtype}))),
      projection(register_module(
          "projection",
          nn::Conv2d(c.num_channels, c.hidden_size, c.patch_size,
                     {.stride = {c.patch_size}, .placement = l.placement, .sbp = l.whole, .dtype = l.dtype}))),
      dropout(register_module("dropout", nn::Dropout(c.hidden_dropout_prob))) {}

Tensor VitEmbeddings::forward(const Tensor& pixels) const {
  const Tensor patches = flatten(projection(pixels), 2).transpose(1, 2);
  const Tensor first = expand(cls_token, {pixels.size(0), 1, cls_token.size(2)});
  return dropout(cat({first, patches}, 1) + position_embeddings);
}

Vit::Vit(const VitConfig& c, const std::vector<Layout>& layouts)
    : embeddings(register_module("embeddings", VitEmbeddings(c, layouts.front()))),
      norm(nn::LayerNorm({c.hidden_size}, layer_norm_options(layouts.back(), c.layer_norm_eps))),
      classifier(nn::Linear(c.hidden_size, c.num_labels, by_outputs(layouts.back(), true))),
      config_(c),
      layouts_(layouts) {
  check_stages(kName, c.num_hidden_layers, layouts);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i)
    blocks.push_back(VitBlock(c, at_index(layouts, stage_of(i, c.num_hidden_layers, layouts))));
  register_module("blocks", blocks);
  register_module("norm", norm);
  register_module("classifier", classifier);
  draw_parameters(*this, c.initializer_range);
}

Tensor Vit::forward(const Tensor& pixels, const Inputs& in) const {
  check_pixels(kName, pixels, config_.num_channels, config_.image_size);
  check_no_inputs(kName, in);
  Tensor x = embeddings(by_rows(pixels, layouts_.front(), pixels.size(0)).to(layouts_.front().dtype));
  const auto n = static_cast<int64_t>(blocks.size());
  for (int64_t i = 0; i < n; ++i) x = at_index(blocks, i)(to_stage(x, at_index(layouts_, stage_of(i, n, layouts_))));
  return classifier(flatten(slice(norm(x), 1, 0, 1), 1));
}

Tensor Vit::loss(const Tensor& pixels, const Tensor& labels, const Inputs& in) const {
  return class_loss(kName, (*this)(pixels, in), labels, layouts_.back());
}

std::vector<StagedModule> Vit::stages() const {
  const int last = static_cast<int>(layouts_.size()) - 1;
  std::vector<StagedModule> parts{{embeddings, 0}};
  const auto n = static_cast<int64_t>(blocks.size());
  for (int64_t i = 0; i < n; ++i) parts.emplace_back(at_index(blocks, i), static_cast<int>(stage_of(i, n, layouts_)));
  parts.emplace_back(norm, last);
  parts.emplace_back(classifier, last);
  return parts;
}

CheckpointNames Vit::checkpoint_names() const {
  CheckpointNames names{.base = "vit.", .ignored = {"pooler.dense.weight", "pooler.dense.bias"}};
  auto rename = [&](const std::string& ours, const std::string& theirs) {
    for (auto& [name, t] : state_dict())
      if (name.starts_with(ours)) names.rules.push_back({{name}, {theirs + name.substr(ours.size())}});
  };
  rename("embeddings.cls_token", "vit.embeddings.cls_token");
  rename("embeddings.position_embeddings", "vit.embeddings.position_embeddings");
  rename("embeddings.projection.", "vit.embeddings.patch_embeddings.projection.");
  rename("norm.", "vit.layernorm.");
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string ours = "blocks." + std::to_string(i) + ".",
                      theirs = "vit.encoder.layer." + std::to_string(i) + ".";
    for (std::string part : {"query.", "key.", "value."})
      rename(ours + "attention." + part, theirs + "attention.attention." + part);
    rename(ours + "attention.dense.", theirs + "attention.output.dense.");
    rename(ours + "up.", theirs + "intermediate.dense.");
    rename(ours + "down.", theirs + "output.dense.");
    rename(ours + "layernorm", theirs + "layernorm");
  }
  return names;
}

}  // namespace holon::models
