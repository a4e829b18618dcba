// Attention over several heads, and the transformer's layers around it.
#pragma once

#include <functional>
#include <optional>

#include "holon/nn/containers.h"
#include "holon/nn/dropout.h"
#include "holon/nn/linear.h"
#include "holon/nn/norm.h"

namespace holon::nn {

struct MultiheadAttentionOptions {
  double dropout = 0;
  bool bias = true;
  std::optional<int64_t> kdim{}, vdim{};  // the widths of key and value, by default embed_dim
  bool batch_first = false;
  // Whether one in_proj_weight holds the weights of query, key and value, as it does by default where the widths are
  // alike. Apart, as q_proj_weight, k_proj_weight and v_proj_weight, they split by heads: S(0), with out_proj.weight
  // S(1) and all others B.
  std::optional<bool> packed{};
  Placement placement{};
  LayoutByName layout{};  // by the parameter's name (its tensor undefined yet); by default all broadcast
  DType dtype = float32;
};

// What a call of attention may add. A mask of bools leaves out where it is true, one of floats is added to the scores.
struct AttentionArguments {
  Tensor attn_mask{};         // [queries, keys], or [batch * heads, queries, keys]
  Tensor key_padding_mask{};  // [batch, keys]
  bool is_causal = false;
  bool average_weights = true;  // over the heads
};

// Attention of query [l, n, embed_dim] over key and value [s, n, ...]; [n, l, ...] if batch_first, and without n for
// one sample.
class MultiheadAttention : public Layer<MultiheadAttention> {
 public:
  // Errors: heads that do not divide embed_dim; packed weights of unlike widths.
  MultiheadAttention(int64_t embed_dim, int64_t num_heads, const MultiheadAttentionOptions& options = {});
  Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                    const AttentionArguments& arguments = {}) const {
    return Layer::operator()(query, key, value, arguments);
  }
  // The scores are never whole in memory.
  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value,
                 const AttentionArguments& arguments = {}) const;
  // The result, and the weights [n, queries, keys] ([n, heads, queries, keys] unless averaged).
  std::pair<Tensor, Tensor> with_weights(const Tensor& query, const Tensor& key, const Tensor& value,
                                         const AttentionArguments& arguments = {}) const;
  Parameter in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight, in_proj_bias;
  Linear out_proj;

 private:
  std::vector<Tensor> run(Tensor query, Tensor key, Tensor value, const AttentionArguments& arguments,
                          bool need_weights) const;
  int64_t heads_;
  double dropout_;
  bool batch_first_;
};

struct TransformerLayerOptions {
  int64_t dim_feedforward = 2048;
  double dropout = 0.1;
  std::function<Tensor(const Tensor&)> activation{};  // by default relu
  double layer_norm_eps = 1e-5;
  bool batch_first = false;
  bool norm_first = false;
  bool bias = true;
  std::optional<bool> packed{};  // of the attention
  Placement placement{};
  LayoutByName layout{};  // by the parameter's name; by default all broadcast
  DType dtype = float32;
};

// Self-attention and two Linears, each added to what went in.
class TransformerEncoderLayer : public Layer<TransformerEncoderLayer> {
 public:
  TransformerEncoderLayer(int64_t d_model, int64_t heads, const TransformerLayerOptions& options = {});
  Tensor operator()(const Tensor& x, const AttentionArguments& arguments = {}) const {
    return Layer::operator()(x, arguments);
  }
  Tensor forward(const Tensor& x, const AttentionArguments& arguments = {}) const;
  MultiheadAttention self_attn;
  Linear linear1, linear2;
  LayerNorm norm1, norm2;

 private:
  Dropout dropout_;
  std::function<Tensor(const Tensor&)> activation_;
  bool norm_first_;
};

// Self-attention, attention over what the encoder gave (memory), and two Linears, each added to what went in.
class TransformerDecoderLayer : public Layer<TransformerDecoderLayer> {
 public:
  TransformerDecoderLayer(int64_t d_model, int64_t heads, const TransformerLayerOptions& options = {});
  Tensor operator()(const Tensor& x, const Tensor& memory, const AttentionArguments& self = {},
                    const AttentionArguments& cross = {}) const {
    return Layer::operator()(x, memory, self, cross);
  }
  Tensor forward(const Tensor& x, const Tensor& memory, const AttentionArguments& self = {},
                 const AttentionArguments& cross = {}) const;
  MultiheadAttention self_attn, multihead_attn;
  Linear linear1, linear2;
  LayerNorm norm1, norm2, norm3;

 private:
  Dropout dropout_;
  std::function<Tensor(const Tensor&)> activation_;
  bool norm_first_;
};

// Layers one after the other, each called with the same further arguments, and a norm behind the last.
template <class L>
class TransformerStack : public Layer<TransformerStack<L>> {
 public:
  // make: a new layer each time.
  TransformerStack(int64_t num_layers, const std::function<L()>& make, std::optional<LayerNorm> norm = {})
      : norm_(std::move(norm)) {
    for (int64_t i = 0; i < num_layers; ++i) layers.push_back(make());
    this->register_module("layers", layers);
    if (norm_) this->register_module("norm", *norm_);
  }
  template <class... Args>
  Tensor forward(Tensor x, const Args&... args) const {
    for (auto& layer : layers) x = layer(x, args...);
    return norm_ ? (*norm_)(x) : x;
  }
  ModuleList<L> layers;

 private:
  std::optional<LayerNorm> norm_;
};
using TransformerEncoder = TransformerStack<TransformerEncoderLayer>;
using TransformerDecoder = TransformerStack<TransformerDecoderLayer>;

struct TransformerOptions {
  int64_t num_encoder_layers = 6, num_decoder_layers = 6;
  TransformerLayerOptions
      layers{};  // a layout is by names in one layer ("linear1.weight"); norms of the stacks have "norm.weight"
};

// Encoder and decoder, each with a norm behind. src is [s, n, d_model], tgt [t, n, d_model]; [n, ...] if batch_first.
class Transformer : public Layer<Transformer> {
 public:
  explicit Transformer(int64_t d_model = 512, int64_t heads = 8, const TransformerOptions& options = {});
  // src_arguments: of the encoder. tgt_arguments: of the decoder's self-attention; memory_arguments: of that over the
  // encoder's result.
  Tensor operator()(const Tensor& src, const Tensor& tgt, const AttentionArguments& src_arguments = {},
                    const AttentionArguments& tgt_arguments = {},
                    const AttentionArguments& memory_arguments = {}) const {
    return decoder(tgt, encoder(src, src_arguments), tgt_arguments, memory_arguments);
  }
  TransformerEncoder encoder;
  TransformerDecoder decoder;
};

}  // namespace holon::nn
