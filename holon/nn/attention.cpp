#include "holon/nn/attention.h"

#include <functional>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/nn/init.h"
#include "holon/nn/weights.h"
#include "holon/ops/activation.h"
#include "holon/ops/multi_head.h"
#include "holon/ops/random.h"
#include "holon/ops/shape.h"

namespace holon::nn {

namespace {

// The layout of a submodule: its names begin with the submodule's.
LayoutByName below(const LayoutByName& layout, const std::string& name) {
  if (!layout) return {};
  return [layout, name](const std::string& inner, const Tensor& t) { return layout(name + "." + inner, t); };
}

NdSbp sbp_of(const LayoutByName& layout, const Placement& placement, const char* name) {
  if (!placement) return {};
  if (layout) return layout(name, Tensor());
  std::vector<Sbp> list(to_size(placement.hierarchy().size()), sbp::broadcast());
  return NdSbp(list);
}

template <class Options>
LinearOptions linear_options(const Options& o, const std::string& name) {
  LayoutByName layout = below(o.layout, name);
  return {.bias = o.bias,
          .placement = o.placement,
          .sbp = sbp_of(layout, o.placement, "weight"),
          .bias_sbp = o.bias ? sbp_of(layout, o.placement, "bias") : NdSbp(),
          .dtype = o.dtype};
}

LayerNormOptions norm_options(const TransformerLayerOptions& o, const std::string& name) {
  return {.eps = o.layer_norm_eps,
          .bias = o.bias,
          .placement = o.placement,
          .sbp = sbp_of(below(o.layout, name), o.placement, "weight"),
          .dtype = o.dtype};
}

MultiheadAttentionOptions attention_options(const TransformerLayerOptions& o, const std::string& name) {
  return {.dropout = o.dropout,
          .bias = o.bias,
          .batch_first = o.batch_first,
          .packed = o.packed,
          .placement = o.placement,
          .layout = below(o.layout, name),
          .dtype = o.dtype};
}

std::function<Tensor(const Tensor&)> activation_of(const TransformerLayerOptions& o) {
  if (o.activation) return o.activation;
  return [](const Tensor& x) { return relu(x); };
}

// x and a block of it, with a norm before the block or behind the sum.
template <class Block>
Tensor added(const Tensor& x, const LayerNorm& norm, const Dropout& dropout, bool norm_first, Block block) {
  return norm_first ? x + dropout(block(norm(x))) : norm(x + dropout(block(x)));
}

}  // namespace

MultiheadAttention::MultiheadAttention(int64_t e, int64_t heads, const MultiheadAttentionOptions& o)
    : out_proj(e, e, linear_options(o, "out_proj")), heads_(heads), dropout_(o.dropout), batch_first_(o.batch_first) {
  if (heads < 1 || e % heads) fail_value("MultiheadAttention: embed_dim {} is not divisible by {} heads.", e, heads);
  int64_t widths[] = {e, o.kdim.value_or(e), o.vdim.value_or(e)};
  bool alike = widths[1] == e && widths[2] == e;
  if (o.packed.value_or(alike) && !alike)
    fail_value("MultiheadAttention: a packed weight needs kdim and vdim equal to embed_dim {}; found {} and {}.", e,
               widths[1], widths[2]);
  auto make = [&](const char* name, const Dims& shape) -> Parameter& {
    Parameter& t = register_parameter(name, blank(shape, o.placement, sbp_of(o.layout, o.placement, name), o.dtype));
    if (shape.size() == 2)
      init::xavier_uniform_(t);
    else
      init::constant_(t, 0);
    return t;
  };
  if (o.packed.value_or(alike)) {
    in_proj_weight = make("in_proj_weight", {3 * e, e});
  } else {
    q_proj_weight = make("q_proj_weight", {e, widths[0]});
    k_proj_weight = make("k_proj_weight", {e, widths[1]});
    v_proj_weight = make("v_proj_weight", {e, widths[2]});
  }
  if (o.bias) {
    in_proj_bias = make("in_proj_bias", {3 * e});
    init::constant_(out_proj.bias, 0);
  }
  register_module("out_proj", out_proj);
}

std::vector<Tensor> MultiheadAttention::run(Tensor query, Tensor key, Tensor value, const AttentionArguments& a,
                                            bool need_weights) const {
  int n = query.ndim();
  if ((n != 2 && n != 3) || key.ndim() != n || value.ndim() != n)
    fail_value(
        "MultiheadAttention: query, key and value must all have 3 axes, or all 2 for one sample; found {}, {}, {}.",
        query.shape(), key.shape(), value.shape());
  bool one = n == 2, same = query.is_same(key) && key.is_same(value);
  auto batch_first = [&](const Tensor& x) { return one ? unsqueeze(x, 0) : batch_first_ ? x : x.transpose(0, 1); };
  query = batch_first(query);
  key = same ? query : batch_first(key);
  value = same ? query : batch_first(value);
  Tensor padding = one && a.key_padding_mask.defined() ? unsqueeze(a.key_padding_mask, 0) : a.key_padding_mask;
  auto results = multi_head_attention(query, key, value, heads_, out_proj.weight, out_proj.bias, in_proj_weight,
                                      q_proj_weight, k_proj_weight, v_proj_weight, in_proj_bias, a.attn_mask, padding,
                                      {.dropout_p = is_training() ? dropout_ : 0,
                                       .is_causal = a.is_causal,
                                       .need_weights = need_weights,
                                       .average_attn_weights = a.average_weights});
  if (one)
    for (auto& r : results) r = squeeze(r, Dims{0});
  else if (!batch_first_)
    results[0] = results[0].transpose(0, 1);
  return results;
}

Tensor MultiheadAttention::forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const AttentionArguments& a) const {
  return run(query, key, value, a, false)[0];
}

std::pair<Tensor, Tensor> MultiheadAttention::with_weights(const Tensor& query, const Tensor& key, const Tensor& value,
                                                           const AttentionArguments& a) const {
  auto results = run(query, key, value, a, true);
  return {results[0], results[1]};
}

TransformerEncoderLayer::TransformerEncoderLayer(int64_t d_model, int64_t heads, const TransformerLayerOptions& o)
    : self_attn(register_module("self_attn", MultiheadAttention(d_model, heads, attention_options(o, "self_attn")))),
      linear1(register_module("linear1", Linear(d_model, o.dim_feedforward, linear_options(o, "linear1")))),
      linear2(register_module("linear2", Linear(o.dim_feedforward, d_model, linear_options(o, "linear2")))),
      norm1(register_module("norm1", LayerNorm({d_model}, norm_options(o, "norm1")))),
      norm2(register_module("norm2", LayerNorm({d_model}, norm_options(o, "norm2")))),
      dropout_(register_module("dropout", Dropout(o.dropout))),
      activation_(activation_of(o)),
      norm_first_(o.norm_first) {}

Tensor TransformerEncoderLayer::forward(const Tensor& x, const AttentionArguments& a) const {
  Tensor y = added(x, norm1, dropout_, norm_first_, [&](const Tensor& t) { return self_attn(t, t, t, a); });
  return added(y, norm2, dropout_, norm_first_,
               [&](const Tensor& t) { return linear2(dropout_(activation_(linear1(t)))); });
}

TransformerDecoderLayer::TransformerDecoderLayer(int64_t d_model, int64_t heads, const TransformerLayerOptions& o)
    : self_attn(register_module("self_attn", MultiheadAttention(d_model, heads, attention_options(o, "self_attn")))),
      multihead_attn(register_module("multihead_attn",
                                     MultiheadAttention(d_model, heads, attention_options(o, "multihead_attn")))),
      linear1(register_module("linear1", Linear(d_model, o.dim_feedforward, linear_options(o, "linear1")))),
      linear2(register_module("linear2", Linear(o.dim_feedforward, d_model, linear_options(o, "linear2")))),
      norm1(register_module("norm1", LayerNorm({d_model}, norm_options(o, "norm1")))),
      norm2(register_module("norm2", LayerNorm({d_model}, norm_options(o, "norm2")))),
      norm3(register_module("norm3", LayerNorm({d_model}, norm_options(o, "norm3")))),
      dropout_(register_module("dropout", Dropout(o.dropout))),
      activation_(activation_of(o)),
      norm_first_(o.norm_first) {}

Tensor TransformerDecoderLayer::forward(const Tensor& x, const Tensor& memory, const AttentionArguments& self,
                                        const AttentionArguments& cross) const {
  Tensor y = added(x, norm1, dropout_, norm_first_, [&](const Tensor& t) { return self_attn(t, t, t, self); });
  y = added(y, norm2, dropout_, norm_first_, [&](const Tensor& t) { return multihead_attn(t, memory, memory, cross); });
  return added(y, norm3, dropout_, norm_first_,
               [&](const Tensor& t) { return linear2(dropout_(activation_(linear1(t)))); });
}

Transformer::Transformer(int64_t d_model, int64_t heads, const TransformerOptions& o)
    : encoder(
          register_module("encoder",
                          TransformerEncoder(
                              o.num_encoder_layers, [&] { return TransformerEncoderLayer(d_model, heads, o.layers); },
                              LayerNorm({d_model}, norm_options(o.layers, "norm"))))),
      decoder(
          register_module("decoder",
                          TransformerDecoder(
                              o.num_decoder_layers, [&] { return TransformerDecoderLayer(d_model, heads, o.layers); },
                              LayerNorm({d_model}, norm_options(o.layers, "norm"))))) {
  for (const Tensor& p : parameters())
    if (p.ndim() > 1) init::xavier_uniform_(p);
}

}  // namespace holon::nn
