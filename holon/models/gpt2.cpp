#include "holon/models/gpt2.h"

#include <cmath>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/models/loss.h"
#include "holon/nn/quantize.h"
#include "holon/nn/weights.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/matmul.h"
#include "holon/ops/shape.h"

namespace holon::models {

namespace {
constexpr const char* kName = "GPT2";
}  // namespace

Gpt2Config Gpt2Config::from(const Config& c) {
  Gpt2Config out;
  out.vocab_size = c.integer("vocab_size");
  out.n_positions = c.integer("n_positions", 1024);
  out.n_embd = c.integer("n_embd");
  out.n_layer = c.integer("n_layer");
  out.n_head = c.integer("n_head");
  out.n_inner = c.integer("n_inner", 4 * out.n_embd);
  out.layer_norm_epsilon = c.number("layer_norm_epsilon", 1e-5);
  out.initializer_range = c.number("initializer_range", 0.02);
  out.resid_pdrop = c.number("resid_pdrop", 0.1);
  out.embd_pdrop = c.number("embd_pdrop", 0.1);
  out.attn_pdrop = c.number("attn_pdrop", 0.1);
  out.activation_function = c.text("activation_function", "gelu_new");
  out.scale_attn_weights = c.flag("scale_attn_weights", true);
  out.scale_attn_by_inverse_layer_idx = c.flag("scale_attn_by_inverse_layer_idx", false);
  out.tie_word_embeddings = c.flag("tie_word_embeddings", true);
  if (c.flag("add_cross_attention", false))
    fail_value("models: {}: add_cross_attention is true; GPT2 attends to its own tokens only.", c.source());
  check_positive(c,
                 {{"vocab_size", out.vocab_size},
                  {"n_positions", out.n_positions},
                  {"n_embd", out.n_embd},
                  {"n_layer", out.n_layer},
                  {"n_head", out.n_head},
                  {"n_inner", out.n_inner}});
  if (out.n_embd % out.n_head)
    fail_value("models: {}: n_head {} does not divide n_embd {}.", c.source(), out.n_head, out.n_embd);
  return out;
}

Conv1D::Conv1D(int64_t in, int64_t out, Divided divided, const Layout& l) : in_(in), divided_(divided), layout_(l) {
  const bool outputs = divided == Divided::kOutputs;
  weight = register_parameter("weight", nn::blank({in, out}, l.placement, l.tensor_parallel(outputs ? 1 : 0), l.dtype));
  bias = register_parameter(
      "bias",
      zeros({out}, {.placement = l.placement, .sbp = outputs ? l.tensor_parallel(0) : l.whole, .dtype = l.dtype}));
}

Tensor Conv1D::forward(const Tensor& x) const {
  const Tensor y = is_floating(weight.dtype()) ? linear(x, weight.transpose(0, 1), bias)
                                               : nn::quantized_product(x, weight, bias, in_);
  return divided_ == Divided::kInputs ? added_up(y, layout_) : y;
}

Gpt2Attention::Gpt2Attention(const Gpt2Config& c, int64_t layer, const Layout& l)
    : q(register_module("q", Conv1D(c.n_embd, c.n_embd, Conv1D::Divided::kOutputs, l))),
      k(register_module("k", Conv1D(c.n_embd, c.n_embd, Conv1D::Divided::kOutputs, l))),
      v(register_module("v", Conv1D(c.n_embd, c.n_embd, Conv1D::Divided::kOutputs, l))),
      c_proj(register_module("c_proj", Conv1D(c.n_embd, c.n_embd, Conv1D::Divided::kInputs, l))),
      heads_(c.n_head),
      scale_(1),
      dropout_(c.attn_pdrop) {
  check_divides(kName, "attention heads", heads_, l);
  if (c.scale_attn_weights) scale_ /= std::sqrt(static_cast<double>(c.n_embd / c.n_head));
  if (c.scale_attn_by_inverse_layer_idx) scale_ /= static_cast<double>(layer + 1);
}

Tensor Gpt2Attention::forward(const Tensor& x, const Sequence& s) const {
  return c_proj(attend(split_heads(q(x), heads_), split_heads(k(x), heads_), split_heads(v(x), heads_), s,
                       {.scale = scale_, .dropout = is_training() ? dropout_ : 0}));
}

Gpt2Mlp::Gpt2Mlp(const Gpt2Config& c, const Layout& l)
    : c_fc(register_module("c_fc", Conv1D(c.n_embd, c.n_inner, Conv1D::Divided::kOutputs, l))),
      c_proj(register_module("c_proj", Conv1D(c.n_inner, c.n_embd, Conv1D::Divided::kInputs, l))),
      act_(kName, c.activation_function) {}

Gpt2Block::Gpt2Block(const Gpt2Config& c, int64_t layer, const Layout& l)
    : ln_1(register_module("ln_1", nn::LayerNorm({c.n_embd}, layer_norm_options(l, c.layer_norm_epsilon)))),
      attn(register_module("attn", Gpt2Attention(c, layer, l))),
      ln_2(register_module("ln_2", nn::LayerNorm({c.n_embd}, layer_norm_options(l, c.layer_norm_epsilon)))),
      mlp(register_module("mlp", Gpt2Mlp(c, l))),
      dropout(register_module("dropout", nn::Dropout(c.resid_pdrop))) {}

Tensor Gpt2Block::forward(const Tensor& input, const Sequence& s) const {
  const Tensor x = input + dropout(attn(ln_1(input), s));
  return x + dropout(mlp(ln_2(x)));
}

Gpt2Decoder::Gpt2Decoder(const Gpt2Config& c, const std::vector<Layout>& layouts)
    : wte(register_module("wte", nn::Embedding(c.vocab_size, c.n_embd, vocabulary_options(layouts.front())))),
      wpe(register_module("wpe", nn::Embedding(c.n_positions, c.n_embd, table_options(layouts.front())))),
      drop(register_module("drop", nn::Dropout(c.embd_pdrop))),
      ln_f(nn::LayerNorm({c.n_embd}, layer_norm_options(layouts.back(), c.layer_norm_epsilon))),
      layouts_(layouts) {
  check_stages(kName, c.n_layer, layouts);
  for (int64_t i = 0; i < c.n_layer; ++i)
    h.push_back(Gpt2Block(c, i, at_index(layouts, stage_of(i, c.n_layer, layouts))));
  register_module("h", h);
  register_module("ln_f", ln_f);
}

Tensor Gpt2Decoder::forward(const Tensor& ids, const Inputs& in) const {
  const Layout& first = layouts_.front();
  Sequence s = sequence_of(ids.shape(), in, first, {});
  const Tensor tokens = added_up(wte(by_rows(ids, first, ids.size(0))), first);
  Tensor x = drop(tokens + wpe(s.positions));
  const auto n = static_cast<int64_t>(h.size());
  int64_t stage = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (const int64_t here = stage_of(i, n, layouts_); here != stage) {
      stage = here;
      x = to_stage(x, at_index(layouts_, here));
      s = sequence_of(ids.shape(), in, at_index(layouts_, here), {});
    }
    s.layer = i;
    x = at_index(h, i)(x, s);
  }
  if (in.cache) in.cache->advance(ids.size(1), ids.size(0));
  return ln_f(last_positions(x, in.logits_to_keep));
}

Gpt2::Gpt2(const Gpt2Config& c, const std::vector<Layout>& layouts)
    : transformer(register_module("transformer", Gpt2Decoder(c, layouts))), layouts_(layouts) {
  if (!c.tie_word_embeddings) {
    lm_head.emplace(c.n_embd, c.vocab_size, by_outputs(layouts.back(), false));
    register_module("lm_head", *lm_head);
  }
  draw_parameters(*this, c.initializer_range);
}

Tensor Gpt2::forward(const Tensor& ids, const Inputs& in) const {
  const int64_t positions = transformer.wpe.weight.size(0);
  check_ids(kName, "the tokens", ids, transformer.wte.weight.size(0));
  check_inputs(kName, in, ids, "attention_mask, position_ids, document_ids, cache");
  check_length(kName, ids.size(1) + (in.cache ? in.cache->length() : 0), positions);
  if (in.position_ids.defined()) check_ids(kName, "position_ids", in.position_ids, positions);
  const Tensor x = transformer(ids, in);
  if (lm_head) return (*lm_head)(x);
  const Layout& last = layouts_.back();
  return linear(x, transformer.wte.weight.to_global(last.placement, last.tensor_parallel(0)));
}

Tensor Gpt2::loss(const Tensor& ids, const Tensor& labels, const Inputs& in) const {
  return next_token_loss(kName, (*this)(ids, in), labels, layouts_.back());
}

std::vector<StagedModule> Gpt2::stages() const {
  const int last = static_cast<int>(layouts_.size()) - 1;
  std::vector<StagedModule> parts{{transformer.wte, 0}, {transformer.wpe, 0}, {transformer.drop, 0}};
  const auto n = static_cast<int64_t>(transformer.h.size());
  for (int64_t i = 0; i < n; ++i)
    parts.emplace_back(at_index(transformer.h, i), static_cast<int>(stage_of(i, n, layouts_)));
  parts.emplace_back(transformer.ln_f, last);
  if (lm_head) parts.emplace_back(*lm_head, last);
  return parts;
}

CheckpointNames Gpt2::checkpoint_names() const {
  CheckpointNames names{.base = "transformer.", .ignored = {".attn.bias", ".attn.masked_bias"}};
  if (!lm_head) names.ignored.emplace_back("lm_head.weight");
  for (size_t i = 0; i < transformer.h.size(); ++i) {
    const std::string attn = "transformer.h." + std::to_string(i) + ".attn.";
    names.rules.push_back({{attn + "q.weight", attn + "k.weight", attn + "v.weight"},
                           {attn + "c_attn.weight"},
                           {.kind = checkpoint::KeyRule::kSplit, .axis = 1}});
    names.rules.push_back({{attn + "q.bias", attn + "k.bias", attn + "v.bias"},
                           {attn + "c_attn.bias"},
                           {.kind = checkpoint::KeyRule::kSplit}});
  }
  return names;
}

}  // namespace holon::models
