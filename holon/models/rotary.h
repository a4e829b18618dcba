// Rotary position embeddings, and the scalings that let a model see more positions than it was trained with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holon/models/config.h"
#include "holon/models/layout.h"
#include "holon/nn/module.h"

namespace holon::models {

// How positions become angles. type: "default"; "linear", every frequency over factor; "llama3", the low ones;
// "yarn", a ramp between both, with larger scores.
struct RotaryConfig {
  double theta = 10000;
  std::string type = "default";
  double factor = 1;
  double original_positions = 0;                     // llama3, yarn: those of the training
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  bool truncate = true;                              // yarn: the ramp begins and ends at whole dimensions
  double attention_factor = 1;                       // yarn: of cosines and sines
  double score_factor = 1;                           // yarn with mscale_all_dim: of DeepSeek's scores

  // From "rope_parameters", or "rope_scaling" and "rope_theta" as older files have them. Errors (ValueError): another
  // type; a factor that its type needs is missing or not positive; a part of the width only.
  static RotaryConfig from(const Config& config, double default_theta = 10000);
};

// width / 2 numbers: how far the angle of a pair of elements turns from one position to the next.
std::vector<float> inverse_frequencies(const RotaryConfig& config, int64_t width);

// Cosines and sines of the angles at positions [batch or 1, length]: [batch or 1, 1, length, width / 2], for rotate().
struct Angles {
  Tensor cos, sin;
};
class Rotary : public nn::Layer<Rotary> {
 public:
  Rotary(const RotaryConfig& config, int64_t width, const Layout& layout);
  // In float32, and then of the layout's dtype.
  Angles forward(const Tensor& positions) const;

 private:
  nn::Buffer inv_freq_;
  double factor_;
  DType dtype_;
};

// x [batch, heads, length, width] turned by the angles of its positions, element i together with i + width / 2.
// adjacent: 2 i together with 2 i + 1, of which all first ones and then all second ones are returned.
Tensor rotate(const Tensor& x, const Angles& angles, bool adjacent = false);

}  // namespace holon::models
