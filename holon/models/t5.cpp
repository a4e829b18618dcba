#include "holon/models/t5.h"

#include <cmath>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/models/loss.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/index.h"
#include "holon/ops/matmul.h"
#include "holon/ops/shape.h"
#include "holon/ops/values.h"

namespace holon::models {

namespace {
constexpr const char* kName = "T5";
}  // namespace

T5Config T5Config::from(const Config& c) {
  T5Config out;
  out.vocab_size = c.integer("vocab_size");
  out.d_model = c.integer("d_model");
  out.d_kv = c.integer("d_kv");
  out.d_ff = c.integer("d_ff");
  out.num_layers = c.integer("num_layers");
  out.num_decoder_layers = c.integer("num_decoder_layers", out.num_layers);
  out.num_heads = c.integer("num_heads");
  out.relative_attention_num_buckets = c.integer("relative_attention_num_buckets", 32);
  out.relative_attention_max_distance = c.integer("relative_attention_max_distance", 128);
  out.pad_token_id = c.integer("pad_token_id", 0);
  out.decoder_start_token_id = c.integer("decoder_start_token_id", out.pad_token_id);
  out.layer_norm_epsilon = c.number("layer_norm_epsilon", 1e-6);
  out.initializer_factor = c.number("initializer_factor", 1);
  out.dropout_rate = c.number("dropout_rate", 0.1);
  const std::string form = c.text("feed_forward_proj", "relu");
  out.gated = form.starts_with("gated-");
  out.activation = form == "gated-gelu" ? "gelu_new" : out.gated ? form.substr(6) : form;
  out.tie_word_embeddings = c.flag("tie_word_embeddings", true);
  out.scale_decoder_outputs = c.flag("scale_decoder_outputs", out.tie_word_embeddings);
  check_positive(c,
                 {{"vocab_size", out.vocab_size},
                  {"d_model", out.d_model},
                  {"d_kv", out.d_kv},
                  {"d_ff", out.d_ff},
                  {"num_layers", out.num_layers},
                  {"num_decoder_layers", out.num_decoder_layers},
                  {"num_heads", out.num_heads}});
  if (out.relative_attention_num_buckets < 4 ||
      out.relative_attention_max_distance <= out.relative_attention_num_buckets / 2)
    fail_value("models: {}: relative_attention_num_buckets {} must be 4 or more, and half of them fewer than "
               "relative_attention_max_distance {}.",
               c.source(), out.relative_attention_num_buckets, out.relative_attention_max_distance);
  return out;
}

T5FeedForward::T5FeedForward(const T5Config& c, const Layout& l)
    : wi(register_module(c.gated ? "wi_0" : "wi", nn::Linear(c.d_model, c.d_ff, by_outputs(l, false)))),
      wo(nn::Linear(c.d_ff, c.d_model, by_inputs(l, false))),
      dropout(register_module("dropout", nn::Dropout(c.dropout_rate))),
      act_(kName, c.activation),
      layout_(l) {
  if (c.gated) {
    gate.emplace(c.d_model, c.d_ff, by_outputs(l, false));
    register_module("wi_1", *gate);
  }
  register_module("wo", wo);
}

Tensor T5FeedForward::forward(const Tensor& x) const {
  const Tensor hidden = act_(wi(x));
  return added_up(wo(dropout(gate ? hidden * (*gate)(x) : hidden)), layout_);
}

T5Block::T5Block(const T5Config& c, bool decoder, const Layout& l)
    : self_attention(register_module("self_attention", T5Attention(c, l))),
      self_norm(register_module("self_norm", nn::RMSNorm({c.d_model}, rms_norm_options(l, c.layer_norm_epsilon)))),
      feed_forward(register_module("feed_forward", T5FeedForward(c, l))),
      feed_forward_norm(
          register_module("feed_forward_norm", nn::RMSNorm({c.d_model}, rms_norm_options(l, c.layer_norm_epsilon)))),
      dropout(register_module("dropout", nn::Dropout(c.dropout_rate))) {
  if (!decoder) return;
  cross_attention.emplace(c, l);
  cross_norm.emplace(Dims{c.d_model}, rms_norm_options(l, c.layer_norm_epsilon));
  register_module("cross_attention", *cross_attention);
  register_module("cross_norm", *cross_norm);
}

Tensor T5Block::forward(const Tensor& input, const Sequence& s, const Tensor& bias, const Memory* memory) const {
  Tensor normed = self_norm(input);
  Tensor x = input + dropout(self_attention(normed, s, bias));
  if (memory) x = x + dropout(cross_attention->over(memory->states, (*cross_norm)(x), memory->sequence));
  return x + dropout(feed_forward(feed_forward_norm(x)));
}

T5Stack::T5Stack(const T5Config& c, bool decoder, int64_t first, const std::vector<Layout>& layouts)
    : relative_attention_bias([&] {
        const Layout& l = at_index(layouts, stage_of(first, c.num_layers + c.num_decoder_layers, layouts));
        nn::EmbeddingOptions options = table_options(l);
        options.sbp = l.tensor_parallel(1);  // by heads
        return nn::Embedding(c.relative_attention_num_buckets, c.num_heads, options);
      }()),
      final_layer_norm([&] {
        const int64_t last = first + (decoder ? c.num_decoder_layers : c.num_layers) - 1;
        const Layout& l = at_index(layouts, stage_of(last, c.num_layers + c.num_decoder_layers, layouts));
        return nn::RMSNorm({c.d_model}, rms_norm_options(l, c.layer_norm_epsilon));
      }()),
      dropout(nn::Dropout(c.dropout_rate)),
      config_(c),
      decoder_(decoder),
      first_(first),
      layouts_(layouts) {
  const int64_t n = decoder ? c.num_decoder_layers : c.num_layers;
  for (int64_t i = 0; i < n; ++i) blocks.push_back(T5Block(c, decoder, at_index(layouts, stage(i))));
  register_module("relative_attention_bias", relative_attention_bias);
  register_module("blocks", blocks);
  register_module("final_layer_norm", final_layer_norm);
  register_module("dropout", dropout);
}

int64_t T5Stack::stage(int64_t i) const {
  return stage_of(first_ + i, config_.num_layers + config_.num_decoder_layers, layouts_);
}

Tensor T5Stack::bias_of(int64_t length, int64_t before) const {
  const Layout& l = at_index(layouts_, stage(0));
  const auto buckets = relative_buckets(length, !decoder_, config_.relative_attention_num_buckets,
                                        config_.relative_attention_max_distance, before);
  const Tensor ids = tensor(buckets, {length - before, length}, {.placement = l.placement, .sbp = l.whole});
  return unsqueeze(permute(relative_attention_bias(ids), {2, 0, 1}), 0);  // [1, heads, queries, keys]
}

Tensor T5Stack::forward(const Tensor& embedded, const Inputs& in, const Tensor& memory, int64_t memory_length,
                        const Inputs& memory_inputs) const {
  const int64_t batch = embedded.size(0), length = embedded.size(1);
  const int64_t before = in.cache ? in.cache->length() : 0;
  Tensor x = dropout(embedded);
  const Tensor bias = bias_of(before + length, before);
  Tensor bias_here;
  Sequence s;
  T5Block::Memory over;
  const auto n = static_cast<int64_t>(blocks.size());
  for (int64_t i = 0; i < n; ++i) {
    const Layout& l = at_index(layouts_, stage(i));
    if (i == 0 || stage(i) != stage(i - 1)) {
      x = to_stage(x, l);
      s = sequence_of({batch, length}, in, l, {.causal = decoder_, .biased = true});
      bias_here = bias.placement() == l.placement ? bias : bias.to_global(l.placement, l.tensor_parallel(1));
      if (decoder_) {
        over = {memory.defined() ? to_stage(memory, l) : memory,
                sequence_of({batch, memory_length}, memory_inputs, l, {.causal = false, .biased = true})};
        over.sequence.cache = in.cache;
      }
    }
    s.layer = over.sequence.layer = i;
    x = at_index(blocks, i)(x, s, bias_here, decoder_ ? &over : nullptr);
  }
  if (in.cache) in.cache->advance(length, batch);
  return dropout(final_layer_norm(last_positions(x, in.logits_to_keep)));
}

T5::T5(const T5Config& c, const std::vector<Layout>& layouts)
    : shared(register_module("shared", nn::Embedding(c.vocab_size, c.d_model, vocabulary_options(layouts.front())))),
      encoder(register_module("encoder", T5Stack(c, false, 0, layouts))),
      decoder(register_module("decoder", T5Stack(c, true, c.num_layers, layouts))),
      config_(c),
      layouts_(layouts) {
  check_stages(kName, c.num_layers + c.num_decoder_layers, layouts);
  if (!c.tie_word_embeddings) {
    lm_head.emplace(c.d_model, c.vocab_size, by_outputs(layouts.back(), false));
    register_module("lm_head", *lm_head);
  }
  draw_parameters(*this, c.initializer_factor / std::sqrt(static_cast<double>(c.d_model)));
}

Tensor T5::embed(const Tensor& ids, const Layout& layout) const {
  const Layout& first = layouts_.front();
  return added_up(shared(by_rows(ids, first, ids.size(0))), layout);
}

Tensor T5::forward(const Tensor& ids, const Inputs& in) const {
  const int64_t vocabulary = shared.weight.size(0);
  check_ids(kName, "the tokens", ids, vocabulary);
  Inputs of_tokens = in;  // the cache and the logits are the decoder's
  of_tokens.cache = nullptr, of_tokens.logits_to_keep = 0;
  check_inputs(kName, of_tokens, ids, "attention_mask, decoder_input_ids, decoder_attention_mask");
  if (!in.decoder_input_ids.defined())
    fail_value("{}: decoder_input_ids are missing. Give them, or call loss() with labels, which are moved by one place "
               "to be them.",
               kName);
  check_ids(kName, "decoder_input_ids", in.decoder_input_ids, vocabulary);
  const Inputs of_decoder{
      .attention_mask = in.decoder_attention_mask, .cache = in.cache, .logits_to_keep = in.logits_to_keep};
  check_inputs(kName, of_decoder, in.decoder_input_ids, "attention_mask, cache");
  if (in.decoder_input_ids.size(0) != ids.size(0))
    fail_value("{}: {} rows of tokens and {} of decoder_input_ids. Give as many of both.", kName, ids.size(0),
               in.decoder_input_ids.size(0));
  const Inputs of_encoder{.attention_mask = in.attention_mask};
  Tensor memory;
  if (!in.cache || in.cache->length() == 0)
    memory = encoder(embed(ids, layouts_.front()), of_encoder, Tensor(), 0, Inputs());
  const Layout& begins = at_index(layouts_, decoder.stage(0));
  Tensor x = decoder(embed(in.decoder_input_ids, begins), of_decoder, memory, ids.size(1), of_encoder);
  if (config_.scale_decoder_outputs) x = x * (1 / std::sqrt(static_cast<double>(config_.d_model)));
  if (lm_head) return (*lm_head)(x);
  const Layout& last = layouts_.back();
  return linear(x, shared.weight.to_global(last.placement, last.tensor_parallel(0)));
}

Tensor T5::loss(const Tensor& ids, const Tensor& labels, const Inputs& in) const {
  Inputs with = in;
  if (!with.decoder_input_ids.defined()) {
    NoGradGuard guard;
    if (labels.ndim() != 2 || labels.size(1) == 0)
      fail_value("{}: labels have shape {}; it must be [batch, length].", kName, labels.shape());
    const Layout& first = layouts_.front();
    const Tensor here = by_rows(labels, first, labels.size(0)).to(int64);
    const Tensor start = full({labels.size(0), 1}, config_.decoder_start_token_id,
                              {.placement = first.placement, .sbp = here.nd_sbp(), .dtype = int64});
    const Tensor shifted = cat({start, slice(here, 1, 0, labels.size(1) - 1)}, 1);
    with.decoder_input_ids = masked_fill(shifted, eq(shifted, kIgnored), config_.pad_token_id);
  }
  return token_loss(kName, (*this)(ids, with), labels, layouts_.back());
}

std::vector<StagedModule> T5::stages() const {
  std::vector<StagedModule> parts{{shared, 0}};
  for (auto* stack : {&encoder, &decoder}) {
    const auto n = static_cast<int64_t>(stack->blocks.size());
    parts.emplace_back(stack->relative_attention_bias, static_cast<int>(stack->stage(0)));
    for (int64_t i = 0; i < n; ++i) parts.emplace_back(at_index(stack->blocks, i), static_cast<int>(stack->stage(i)));
    parts.emplace_back(stack->final_layer_norm, static_cast<int>(stack->stage(n - 1)));
  }
  if (lm_head) parts.emplace_back(*lm_head, static_cast<int>(layouts_.size()) - 1);
  return parts;
}

CheckpointNames T5::checkpoint_names() const {
  CheckpointNames names{.ignored = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight",
                                    "EncDecAttention.relative_attention_bias.weight"}};
  if (!lm_head) names.ignored.emplace_back("lm_head.weight");
  const nn::StateDict own = state_dict();
  auto rename = [&](const std::string& ours, const std::string& theirs) {
    for (auto& [name, t] : own)
      if (name.starts_with(ours)) names.rules.push_back({{name}, {theirs + name.substr(ours.size())}});
  };
  for (std::string stack : {"encoder.", "decoder."}) {
    const std::string last = stack == "encoder." ? "1." : "2.";
    rename(stack + "relative_attention_bias.", stack + "block.0.layer.0.SelfAttention.relative_attention_bias.");
    const size_t n = (stack == "encoder." ? encoder : decoder).blocks.size();
    for (size_t i = 0; i < n; ++i) {
      const std::string ours = stack + "blocks." + std::to_string(i) + ".",
                        theirs = stack + "block." + std::to_string(i) + ".layer.";
      rename(ours + "self_attention.", theirs + "0.SelfAttention.");
      rename(ours + "self_norm.", theirs + "0.layer_norm.");
      rename(ours + "cross_attention.", theirs + "1.EncDecAttention.");
      rename(ours + "cross_norm.", theirs + "1.layer_norm.");
      rename(ours + "feed_forward.", theirs + last + "DenseReluDense.");
      rename(ours + "feed_forward_norm.", theirs + last + "layer_norm.");
    }
  }
  return names;
}

}  // namespace holon::models
