// ViT for the classification of images: patches as tokens, and one more token that is classified.
#pragma once

#include <string>
#include <vector>

#include "holon/models/attention.h"
#include "holon/models/layers.h"
#include "holon/models/model.h"
#include "holon/nn/containers.h"
#include "holon/nn/conv.h"
#include "holon/nn/dropout.h"

namespace holon::models {

// The names are those of config.json.
struct VitConfig {
  int64_t hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12, intermediate_size = 3072;
  int64_t image_size = 224, patch_size = 16, num_channels = 3, num_labels = 1000;
  double layer_norm_eps = 1e-12, initializer_range = 0.02;
  double hidden_dropout_prob = 0, attention_probs_dropout_prob = 0;
  std::string hidden_act = "gelu";
  bool qkv_bias = true;

  // Errors (ValueError): what Config says; sizes that do not fit each other.
  static VitConfig from(const Config& config);
};

// Attention in both directions.
class VitAttention : public nn::Layer<VitAttention> {
 public:
  VitAttention(const VitConfig& config, const Layout& layout);
  Tensor forward(const Tensor& x) const;
  nn::Linear query, key, value, dense;

 private:
  int64_t heads_;
  double dropout_;
  Layout layout_;
};

// One layer: attention and two products, each behind a norm and added to what went in.
class VitBlock : public nn::Layer<VitBlock> {
 public:
  VitBlock(const VitConfig& config, const Layout& layout);
  Tensor forward(const Tensor& x) const;
  VitAttention attention;
  nn::Linear up, down;
  nn::LayerNorm layernorm_before, layernorm_after;
  nn::Dropout dropout;

 private:
  Activation act_;
  Layout layout_;
};

// Patches as tokens, with positions.
class VitEmbeddings : public nn::Layer<VitEmbeddings> {
 public:
  VitEmbeddings(const VitConfig& config, const Layout& layout);
  // pixels [batch, channels, height, width] to [batch, 1 + patches, hidden].
  Tensor forward(const Tensor& pixels) const;
  nn::Parameter cls_token, position_embeddings;
  nn::Conv2d projection;
  nn::Dropout dropout;
};

class Vit : public nn::Layer<Vit> {
 public:
  Vit(const VitConfig& config, const std::vector<Layout>& layouts);
  // Logits [batch, labels] of pixels [batch, channels, height, width]. There are no further inputs.
  Tensor forward(const Tensor& pixels, const Inputs& inputs = {}) const;
  // As Model's. labels [batch].
  Tensor loss(const Tensor& pixels, const Tensor& labels, const Inputs& inputs = {}) const;
  const std::vector<Layout>& layouts() const { return layouts_; }
  std::vector<StagedModule> stages() const;
  CheckpointNames checkpoint_names() const;
  VitEmbeddings embeddings;
  nn::ModuleList<VitBlock> blocks;
  nn::LayerNorm norm;
  nn::Linear classifier;

 private:
  VitConfig config_;
  std::vector<Layout> layouts_;
};

}  // namespace holon::models
