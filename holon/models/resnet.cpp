#include "holon/models/resnet.h"

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/models/loss.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/pool.h"
#include "holon/ops/shape.h"

namespace holon::models {

namespace {

constexpr const char* kName = "ResNet";

NdSbp weight_sbp(const Layout& l, ConvNorm::Divided divided) {
  if (divided == ConvNorm::Divided::kNone) return l.whole;
  return l.tensor_parallel(divided == ConvNorm::Divided::kOutputs ? 0 : 1);
}

// What one block of a stage has: channels before and behind it, and its stride.
struct BlockSize {
  int64_t in, out, stride;
};
std::vector<BlockSize> block_sizes(const ResnetConfig& c) {
  std::vector<BlockSize> out;
  int64_t channels = c.embedding_size;
  for (size_t s = 0; s < c.depths.size(); ++s)
    for (int64_t i = 0; i < c.depths[s]; ++i) {
      const bool smaller = i == 0 && (s > 0 || c.downsample_in_first_stage);
      out.push_back({channels, c.hidden_sizes[s], smaller ? 2 : 1});
      channels = c.hidden_sizes[s];
    }
  return out;
}

}  // namespace

ResnetConfig ResnetConfig::from(const Config& c) {
  ResnetConfig out;
  out.num_channels = c.integer("num_channels", 3);
  out.embedding_size = c.integer("embedding_size", 64);
  out.num_labels = label_count(c);
  out.hidden_sizes = c.integers("hidden_sizes");
  out.depths = c.integers("depths");
  const std::string type = c.text("layer_type", "bottleneck");
  if (type != "bottleneck" && type != "basic")
    fail_value("models: {}: layer_type is '{}'; it must be bottleneck or basic.", c.source(), type);
  out.bottleneck = type == "bottleneck";
  out.downsample_in_first_stage = c.flag("downsample_in_first_stage", false);
  out.downsample_in_bottleneck = c.flag("downsample_in_bottleneck", false);
  out.hidden_act = c.text("hidden_act", "relu");
  if (out.depths.empty() || out.depths.size() != out.hidden_sizes.size())
    fail_value("models: {}: {} hidden_sizes and {} depths; there must be one of each for every stage.", c.source(),
               out.hidden_sizes.size(), out.depths.size());
  for (size_t i = 0; i < out.depths.size(); ++i)
    if (out.depths[i] < 1 || out.hidden_sizes[i] < 1 || (out.bottleneck && out.hidden_sizes[i] % 4))
      fail_value("models: {}: stage {} has depth {} and hidden size {}; both must be 1 or more{}.", c.source(), i,
                 out.depths[i], out.hidden_sizes[i], out.bottleneck ? ", and the size a multiple of 4" : "");
  if (out.num_channels < 1 || out.embedding_size < 1)
    fail_value("models: {}: num_channels {} and embedding_size {} must be 1 or more.", c.source(), out.num_channels,
               out.embedding_size);
  return out;
}

ConvNorm::ConvNorm(int64_t in, int64_t out, int64_t kernel, int64_t stride, Divided divided, const Layout& l)
    : convolution(register_module("convolution",
                                  nn::Conv2d(in, out, kernel,
                                             {.stride = {stride},
                                              .padding = {kernel / 2},
                                              .bias = false,
                                              .placement = l.placement,
                                              .sbp = weight_sbp(l, divided),
                                              .dtype = l.dtype}))),
      normalization(
          register_module("normalization",
                          nn::BatchNorm2d(out,
                                          {.placement = l.placement,
                                           .sbp = divided == Divided::kOutputs ? l.tensor_parallel(0) : l.whole,
                                           .dtype = l.dtype}))),
      divided_(divided),
      layout_(l) {}

Tensor ConvNorm::forward(const Tensor& x) const {
  const Tensor y = convolution(x);
  return normalization(divided_ == Divided::kInputs ? added_up(y, layout_) : y);
}

ResnetBlock::ResnetBlock(const ResnetConfig& c, int64_t in, int64_t out, int64_t stride, const Layout& l)
    : act_(kName, c.hidden_act) {
  // The ranks of tp share the channels in front of the last convolution.
  using Divided = ConvNorm::Divided;
  if (c.bottleneck) {
    const int64_t fewer = out / 4;
    const bool early = c.downsample_in_bottleneck;
    layer.push_back(ConvNorm(in, fewer, 1, early ? stride : 1, Divided::kNone, l));
    layer.push_back(ConvNorm(fewer, fewer, 3, early ? 1 : stride, Divided::kOutputs, l));
    layer.push_back(ConvNorm(fewer, out, 1, 1, Divided::kInputs, l));
  } else {
    layer.push_back(ConvNorm(in, out, 3, stride, Divided::kOutputs, l));
    layer.push_back(ConvNorm(out, out, 3, 1, Divided::kInputs, l));
  }
  register_module("layer", layer);
  if (in == out && stride == 1) return;
  shortcut.emplace(in, out, 1, stride, Divided::kNone, l);
  register_module("shortcut", *shortcut);
}

Tensor ResnetBlock::forward(const Tensor& input) const {
  Tensor x = input;
  for (size_t i = 0; i < layer.size(); ++i) {
    x = layer[i](x);
    if (i + 1 < layer.size()) x = relu(x);  // whatever hidden_act is
  }
  return act_(x + (shortcut ? (*shortcut)(input) : input));
}

Resnet::Resnet(const ResnetConfig& c, const std::vector<Layout>& layouts)
    : embedder(register_module(
          "embedder", ConvNorm(c.num_channels, c.embedding_size, 7, 2, ConvNorm::Divided::kNone, layouts.front()))),
      classifier(nn::Linear(c.hidden_sizes.back(), c.num_labels, by_outputs(layouts.back(), true))),
      config_(c),
      act_(kName, c.hidden_act),
      layouts_(layouts) {
  const auto sizes = block_sizes(c);
  const auto n = static_cast<int64_t>(sizes.size());
  check_stages(kName, n, layouts);
  for (int64_t i = 0; i < n; ++i) {
    auto [in, out, stride] = at_index(sizes, i);
    blocks.push_back(ResnetBlock(c, in, out, stride, at_index(layouts, stage_of(i, n, layouts))));
  }
  register_module("blocks", blocks);
  register_module("classifier", classifier);
}

Tensor Resnet::forward(const Tensor& pixels, const Inputs& in) const {
  check_pixels(kName, pixels, config_.num_channels, 0);
  check_no_inputs(kName, in);
  Tensor x = act_(embedder(by_rows(pixels, layouts_.front(), pixels.size(0)).to(layouts_.front().dtype)));
  x = max_pool2d(x, 3, Dims{2}, 1);
  const auto n = static_cast<int64_t>(blocks.size());
  for (int64_t i = 0; i < n; ++i) x = at_index(blocks, i)(to_stage(x, at_index(layouts_, stage_of(i, n, layouts_))));
  return classifier(flatten(adaptive_avg_pool2d(x, 1), 1));
}

Tensor Resnet::loss(const Tensor& pixels, const Tensor& labels, const Inputs& in) const {
  return class_loss(kName, (*this)(pixels, in), labels, layouts_.back());
}

std::vector<StagedModule> Resnet::stages() const {
  std::vector<StagedModule> parts{{embedder, 0}};
  const auto n = static_cast<int64_t>(blocks.size());
  for (int64_t i = 0; i < n; ++i) parts.emplace_back(at_index(blocks, i), static_cast<int>(stage_of(i, n, layouts_)));
  parts.emplace_back(classifier, static_cast<int>(layouts_.size()) - 1);
  return parts;
}

CheckpointNames Resnet::checkpoint_names() const {
  CheckpointNames names{.base = "resnet."};
  auto rename = [&](const std::string& ours, const std::string& theirs) {
    for (auto& [name, t] : state_dict())
      if (name.starts_with(ours)) names.rules.push_back({{name}, {theirs + name.substr(ours.size())}});
  };
  rename("embedder.", "resnet.embedder.embedder.");
  rename("classifier.", "classifier.1.");
  size_t block = 0;
  for (size_t s = 0; s < config_.depths.size(); ++s)
    for (int64_t i = 0; i < config_.depths[s]; ++i, ++block)
      rename("blocks." + std::to_string(block) + ".",
             "resnet.encoder.stages." + std::to_string(s) + ".layers." + std::to_string(i) + ".");
  return names;
}

}  // namespace holon::models
