#include "holon/models/bert.h"

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/models/loss.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/matmul.h"

namespace holon::models {

namespace {
constexpr const char* kName = "Bert";
}  // namespace

BertConfig BertConfig::from(const Config& c) {
  BertConfig out;
  out.vocab_size = c.integer("vocab_size");
  out.hidden_size = c.integer("hidden_size");
  out.num_hidden_layers = c.integer("num_hidden_layers");
  out.num_attention_heads = c.integer("num_attention_heads");
  out.intermediate_size = c.integer("intermediate_size");
  out.max_position_embeddings = c.integer("max_position_embeddings", 512);
  out.type_vocab_size = c.integer("type_vocab_size", 2);
  if (c.lists("pad_token_id"))
    out.pad_token_id = c.has("pad_token_id") ? std::optional(c.integer("pad_token_id")) : std::nullopt;
  out.layer_norm_eps = c.number("layer_norm_eps", 1e-12);
  out.initializer_range = c.number("initializer_range", 0.02);
  out.hidden_dropout_prob = c.number("hidden_dropout_prob", 0.1);
  out.attention_probs_dropout_prob = c.number("attention_probs_dropout_prob", 0.1);
  out.hidden_act = c.text("hidden_act", "gelu");
  if (c.flag("is_decoder", false) || c.flag("add_cross_attention", false))
    fail_value("models: {}: is_decoder or add_cross_attention is true; Bert is an encoder here.", c.source());
  if (!c.flag("tie_word_embeddings", true))
    fail_value("models: {}: tie_word_embeddings is false; the head of Bert has the weight of its embedding here.",
               c.source());
  check_positive(c,
                 {{"vocab_size", out.vocab_size},
                  {"hidden_size", out.hidden_size},
                  {"num_hidden_layers", out.num_hidden_layers},
                  {"num_attention_heads", out.num_attention_heads},
                  {"intermediate_size", out.intermediate_size},
                  {"max_position_embeddings", out.max_position_embeddings},
                  {"type_vocab_size", out.type_vocab_size}});
  if (out.hidden_size % out.num_attention_heads)
    fail_value("models: {}: num_attention_heads {} do not divide hidden_size {}.", c.source(), out.num_attention_heads,
               out.hidden_size);
  return out;
}

BertSelfAttention::BertSelfAttention(const BertConfig& c, const Layout& l)
    : query(register_module("query", nn::Linear(c.hidden_size, c.hidden_size, by_outputs(l, true)))),
      key(register_module("key", nn::Linear(c.hidden_size, c.hidden_size, by_outputs(l, true)))),
      value(register_module("value", nn::Linear(c.hidden_size, c.hidden_size, by_outputs(l, true)))),
      heads_(c.num_attention_heads),
      dropout_(c.attention_probs_dropout_prob) {
  check_divides(kName, "attention heads", heads_, l);
}

Tensor BertSelfAttention::forward(const Tensor& x, const Sequence& s) const {
  return attend(split_heads(query(x), heads_), split_heads(key(x), heads_), split_heads(value(x), heads_), s,
                {.dropout = is_training() ? dropout_ : 0});
}

BertOutput::BertOutput(int64_t inputs, const BertConfig& c, const Layout& l)
    : dense(register_module("dense", nn::Linear(inputs, c.hidden_size, by_inputs(l, true)))),
      norm(register_module("LayerNorm", nn::LayerNorm({c.hidden_size}, layer_norm_options(l, c.layer_norm_eps)))),
      dropout(register_module("dropout", nn::Dropout(c.hidden_dropout_prob))),
      layout_(l) {}

Tensor BertOutput::forward(const Tensor& x, const Tensor& residual) const {
  return norm(dropout(added_up(dense(x), layout_)) + residual);
}

BertAttention::BertAttention(const BertConfig& c, const Layout& l)
    : self(register_module("self", BertSelfAttention(c, l))),
      output(register_module("output", BertOutput(c.hidden_size, c, l))) {}

BertIntermediate::BertIntermediate(const BertConfig& c, const Layout& l)
    : dense(register_module("dense", nn::Linear(c.hidden_size, c.intermediate_size, by_outputs(l, true)))),
      act_(kName, c.hidden_act) {}

BertBlock::BertBlock(const BertConfig& c, const Layout& l)
    : attention(register_module("attention", BertAttention(c, l))),
      intermediate(register_module("intermediate", BertIntermediate(c, l))),
      output(register_module("output", BertOutput(c.intermediate_size, c, l))) {}

Tensor BertBlock::forward(const Tensor& input, const Sequence& s) const {
  const Tensor x = attention(input, s);
  return output(intermediate(x), x);
}

BertEmbeddings::BertEmbeddings(const BertConfig& c, const Layout& l)
    : word_embeddings([&] {
        nn::EmbeddingOptions options = vocabulary_options(l);
        options.padding_idx = c.pad_token_id;
        return nn::Embedding(c.vocab_size, c.hidden_size, options);
      }()),
      position_embeddings(nn::Embedding(c.max_position_embeddings, c.hidden_size, table_options(l))),
      token_type_embeddings(nn::Embedding(c.type_vocab_size, c.hidden_size, table_options(l))),
      norm(nn::LayerNorm({c.hidden_size}, layer_norm_options(l, c.layer_norm_eps))),
      dropout(nn::Dropout(c.hidden_dropout_prob)),
      layout_(l) {
  register_module("word_embeddings", word_embeddings);
  register_module("position_embeddings", position_embeddings);
  register_module("token_type_embeddings", token_type_embeddings);
  register_module("LayerNorm", norm);
  register_module("dropout", dropout);
}

Tensor BertEmbeddings::forward(const Tensor& ids, const Tensor& types, const Tensor& positions) const {
  const Tensor words = added_up(word_embeddings(ids), layout_);
  const Tensor type = types.defined()
      ? types
      : zeros({1, ids.size(1)}, {.placement = layout_.placement, .sbp = layout_.whole, .dtype = int64});
  return dropout(norm(words + token_type_embeddings(type) + position_embeddings(positions)));
}

BertEncoder::BertEncoder(const BertConfig& c, const std::vector<Layout>& layouts)
    : embeddings(register_module("embeddings", BertEmbeddings(c, layouts.front()))), layouts_(layouts) {
  check_stages(kName, c.num_hidden_layers, layouts);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i)
    blocks.push_back(BertBlock(c, at_index(layouts, stage_of(i, c.num_hidden_layers, layouts))));
  register_module("layer", blocks);
}

Tensor BertEncoder::forward(const Tensor& ids, const Inputs& in) const {
  const SequenceOptions options{.causal = false};
  const Layout& first = layouts_.front();
  Sequence s = sequence_of(ids.shape(), in, first, options);
  auto here = [&](const Tensor& t) { return t.defined() ? by_rows(t, first, ids.size(0)) : t; };
  Tensor x = embeddings(here(ids), here(in.token_type_ids), s.positions);
  const auto n = static_cast<int64_t>(blocks.size());
  int64_t stage = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (const int64_t next = stage_of(i, n, layouts_); next != stage) {
      stage = next;
      x = to_stage(x, at_index(layouts_, stage));
      s = sequence_of(ids.shape(), in, at_index(layouts_, stage), options);
    }
    x = at_index(blocks, i)(x, s);
  }
  return x;
}

BertHeadTransform::BertHeadTransform(const BertConfig& c, const Layout& l)
    : dense(register_module("dense", nn::Linear(c.hidden_size, c.hidden_size, undivided(l, true)))),
      norm(register_module("LayerNorm", nn::LayerNorm({c.hidden_size}, layer_norm_options(l, c.layer_norm_eps)))),
      act_(kName, c.hidden_act) {}

Bert::Bert(const BertConfig& c, const std::vector<Layout>& layouts)
    : bert(register_module("bert", BertEncoder(c, layouts))),
      transform(register_module("transform", BertHeadTransform(c, layouts.back()))),
      bias(register_parameter("bias",
                              zeros({c.vocab_size},
                                    {.placement = layouts.back().placement,
                                     .sbp = layouts.back().tensor_parallel(0),
                                     .dtype = layouts.back().dtype}))),
      layouts_(layouts) {
  draw_parameters(*this, c.initializer_range);
}

Tensor Bert::forward(const Tensor& ids, const Inputs& in) const {
  const BertEmbeddings& tables = bert.embeddings;
  check_ids(kName, "the tokens", ids, tables.word_embeddings.weight.size(0));
  check_inputs(kName, in, ids, "attention_mask, position_ids, document_ids, token_type_ids");
  check_length(kName, ids.size(1), tables.position_embeddings.weight.size(0));
  if (in.position_ids.defined())
    check_ids(kName, "position_ids", in.position_ids, tables.position_embeddings.weight.size(0));
  if (in.token_type_ids.defined())
    check_ids(kName, "token_type_ids", in.token_type_ids, tables.token_type_embeddings.weight.size(0));
  const Layout& last = layouts_.back();
  const Tensor weight = tables.word_embeddings.weight.to_global(last.placement, last.tensor_parallel(0));
  return linear(transform(bert(ids, in)), weight, bias);
}

Tensor Bert::loss(const Tensor& ids, const Tensor& labels, const Inputs& in) const {
  return token_loss(kName, (*this)(ids, in), labels, layouts_.back());
}

std::vector<StagedModule> Bert::stages() const {
  std::vector<StagedModule> parts{{bert.embeddings, 0}};
  const auto n = static_cast<int64_t>(bert.blocks.size());
  for (int64_t i = 0; i < n; ++i)
    parts.emplace_back(at_index(bert.blocks, i), static_cast<int>(stage_of(i, n, layouts_)));
  parts.emplace_back(transform, static_cast<int>(layouts_.size()) - 1);
  return parts;
}

CheckpointNames Bert::checkpoint_names() const {
  CheckpointNames names{.base = "bert.",
                        .ignored = {"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias",
                                    "cls.seq_relationship.weight", "cls.seq_relationship.bias",
                                    "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"},
                        .older = {{".LayerNorm.weight", ".LayerNorm.gamma"}, {".LayerNorm.bias", ".LayerNorm.beta"}}};
  for (auto& [name, t] : state_dict()) {
    if (name == "bias")
      names.rules.push_back({{name}, {"cls.predictions.bias"}});
    else if (name.starts_with("transform."))
      names.rules.push_back({{name}, {"cls.predictions." + name}});
    else if (name.starts_with("bert.layer."))
      names.rules.push_back({{name}, {"bert.encoder." + name.substr(5)}});
  }
  return names;
}

}  // namespace holon::models
