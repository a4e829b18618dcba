#include "holon/models/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"
#include "holon/ops/values.h"

namespace holon::models {

namespace {

double positive(const Config& config, const char* key, double otherwise) {
  const double x = otherwise > 0 ? config.number(key, otherwise) : config.number(key);
  if (!(x > 0)) fail_value("models: {}: {} is {}; it must be positive.", config.source(), key, x);
  return x;
}

// By how much scores grow when a context is stretched, by the paper of YaRN.
double stretched(double factor, double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; }

}  // namespace

RotaryConfig RotaryConfig::from(const Config& config, double default_theta) {
  const bool newer = config.has("rope_parameters");
  const Config rope = config.object(newer ? "rope_parameters" : "rope_scaling");
  RotaryConfig c;
  c.theta = rope.has("rope_theta") ? positive(rope, "rope_theta", 0) : positive(config, "rope_theta", default_theta);
  c.type = rope.text("rope_type", rope.text("type", "default"));
  if (rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 1)) != 1)
    fail_value("models: {}: partial_rotary_factor is not 1: rotary embeddings of a part of the width are not "
               "supported.",
               config.source());
  if (c.type == "default") return c;
  if (c.type != "linear" && c.type != "llama3" && c.type != "yarn")
    fail_value("models: {}: rope_type is '{}'; those supported are default, linear, llama3 and yarn.", config.source(),
               c.type);
  const double positions = positive(config, "max_position_embeddings", 0);
  c.original_positions =
      positive(rope, "original_max_position_embeddings", config.number("original_max_position_embeddings", positions));
  c.factor = positive(rope, "factor", c.type == "yarn" ? positions / c.original_positions : 0);
  if (c.type == "llama3") {
    c.low_freq_factor = positive(rope, "low_freq_factor", 0);
    c.high_freq_factor = positive(rope, "high_freq_factor", 0);
    if (c.high_freq_factor <= c.low_freq_factor)
      fail_value("models: {}: high_freq_factor {} must be over low_freq_factor {}.", config.source(),
                 c.high_freq_factor, c.low_freq_factor);
  }
  if (c.type == "yarn") {
    c.beta_fast = positive(rope, "beta_fast", 32);
    c.beta_slow = positive(rope, "beta_slow", 1);
    c.truncate = rope.flag("truncate", true);
    const double all = rope.number("mscale_all_dim", 0), one = rope.number("mscale", 0);
    const double usual =
        all != 0 && one != 0 ? stretched(c.factor, one) / stretched(c.factor, all) : stretched(c.factor, 1);
    c.attention_factor = positive(rope, "attention_factor", usual);
    if (all != 0) c.score_factor = stretched(c.factor, all) * stretched(c.factor, all);
  }
  return c;
}

std::vector<float> inverse_frequencies(const RotaryConfig& c, int64_t width) {
  const int64_t n = width / 2;
  std::vector<float> out(to_size(n));
  // yarn: the pair of elements that turns so many times within the positions of the training.
  auto pair_of = [&](double turns) {
    return static_cast<double>(width) * std::log(c.original_positions / (turns * 2 * std::numbers::pi)) /
        (2 * std::log(c.theta));
  };
  double first = 0, last = 0;
  if (c.type == "yarn") {
    first = pair_of(c.beta_fast), last = pair_of(c.beta_slow);
    if (c.truncate) first = std::floor(first), last = std::ceil(last);
    first = std::max(first, 0.0), last = std::min(last, static_cast<double>(width - 1));
    if (first == last) last += 0.001;
  }
  for (int64_t i = 0; i < n; ++i) {
    // The exponent as float, as torch has it: the difference would grow with the position.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(width);
    const double plain = 1 / std::pow(c.theta, static_cast<double>(exponent));
    double f = plain;
    if (c.type == "linear") f = plain / c.factor;
    if (c.type == "llama3") {
      // How many times it turns within the positions of the training: many, it stays; few, it is stretched.
      const double turns = c.original_positions * plain / (2 * std::numbers::pi);
      const double kept = std::clamp((turns - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor), 0.0, 1.0);
      f = (1 - kept) * plain / c.factor + kept * plain;
    }
    if (c.type == "yarn") {
      const double stretch = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
      f = stretch * plain / c.factor + (1 - stretch) * plain;
    }
    at_index(out, i) = static_cast<float>(f);
  }
  return out;
}

Rotary::Rotary(const RotaryConfig& config, int64_t width, const Layout& layout)
    : factor_(config.attention_factor), dtype_(layout.dtype) {
  inv_freq_ = register_buffer("inv_freq",
                              tensor(inverse_frequencies(config, width), {1, 1, 1, width / 2},
                                     {.placement = layout.placement, .sbp = layout.whole}),
                              false);
}

Angles Rotary::forward(const Tensor& positions) const {
  NoGradGuard guard;
  const Tensor angles = positions.to(float32).reshape({positions.size(0), 1, positions.size(1), 1}) * inv_freq_;
  auto scaled = [&](const Tensor& t) { return (factor_ == 1 ? t : t * factor_).to(dtype_); };
  return {scaled(cos(angles)), scaled(sin(angles))};
}

Tensor rotate(const Tensor& x, const Angles& a, bool adjacent) {
  const int64_t half = x.size(-1) / 2;
  const Tensor first = adjacent ? slice(x, -1, 0, {}, 2) : slice(x, -1, 0, half);
  const Tensor second = adjacent ? slice(x, -1, 1, {}, 2) : slice(x, -1, half);
  return cat({first * a.cos - second * a.sin, second * a.cos + first * a.sin}, -1);
}

}  // namespace holon::models
