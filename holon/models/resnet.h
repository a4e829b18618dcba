// ResNet for the classification of images, of basic blocks (18, 34) or bottlenecks (50 and more).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "holon/models/layers.h"
#include "holon/models/model.h"
#include "holon/nn/containers.h"
#include "holon/nn/conv.h"

namespace holon::models {

// The names are those of config.json.
struct ResnetConfig {
  int64_t num_channels = 3, embedding_size = 64, num_labels = 1000;
  std::vector<int64_t> hidden_sizes{256, 512, 1024, 2048}, depths{3, 4, 6, 3};
  bool bottleneck = true;  // layer_type
  bool downsample_in_first_stage = false, downsample_in_bottleneck = false;
  std::string hidden_act = "relu";

  // Errors (ValueError): what Config says; sizes that do not fit each other.
  static ResnetConfig from(const Config& config);
};

// A convolution and its batch norm, without a bias. Which channels the ranks of tp divide.
class ConvNorm : public nn::Layer<ConvNorm> {
 public:
  enum class Divided { kNone, kOutputs, kInputs };
  ConvNorm(int64_t in, int64_t out, int64_t kernel, int64_t stride, Divided divided, const Layout& layout);
  Tensor forward(const Tensor& x) const;
  nn::Conv2d convolution;
  nn::BatchNorm2d normalization;

 private:
  Divided divided_;
  Layout layout_;
};

// Two or three convolutions, added to what went in.
class ResnetBlock : public nn::Layer<ResnetBlock> {
 public:
  ResnetBlock(const ResnetConfig& config, int64_t in, int64_t out, int64_t stride, const Layout& layout);
  Tensor forward(const Tensor& x) const;
  nn::ModuleList<ConvNorm> layer;
  std::optional<ConvNorm> shortcut;  // where the shape changes

 private:
  Activation act_;
};

class Resnet : public nn::Layer<Resnet> {
 public:
  Resnet(const ResnetConfig& config, const std::vector<Layout>& layouts);
  // Logits [batch, labels] of pixels [batch, channels, height, width]. There are no further inputs.
  Tensor forward(const Tensor& pixels, const Inputs& inputs = {}) const;
  // As Model's. labels [batch].
  Tensor loss(const Tensor& pixels, const Tensor& labels, const Inputs& inputs = {}) const;
  const std::vector<Layout>& layouts() const { return layouts_; }
  std::vector<StagedModule> stages() const;
  CheckpointNames checkpoint_names() const;
  ConvNorm embedder;
  nn::ModuleList<ResnetBlock> blocks;
  nn::Linear classifier;

 private:
  ResnetConfig config_;
  Activation act_;
  std::vector<Layout> layouts_;
};

}  // namespace holon::models
