// What several families share: options of nn's layers for a layout, activations, and the values that a model begins
// with.
#pragma once

#include <string>

#include "holon/models/layout.h"
#include "holon/nn/linear.h"
#include "holon/nn/norm.h"
#include "holon/nn/sparse.h"

namespace holon::models {

// A Linear whose outputs the ranks of tp divide; one whose inputs they divide, after it; one that is whole.
nn::LinearOptions by_outputs(const Layout& layout, bool bias);
nn::LinearOptions by_inputs(const Layout& layout, bool bias);
nn::LinearOptions undivided(const Layout& layout, bool bias);
nn::LayerNormOptions layer_norm_options(const Layout& layout, double eps);
nn::RmsNormModuleOptions rms_norm_options(const Layout& layout, double eps);
// A table whose rows, the vocabulary, the ranks of tp divide; one that is whole, as for positions.
nn::EmbeddingOptions vocabulary_options(const Layout& layout);
nn::EmbeddingOptions table_options(const Layout& layout);

// Elementwise functions by their names in config.json: "gelu", "gelu_new", "relu", "silu", ... Errors (ValueError),
// when it is made: another name.
class Activation {
 public:
  Activation(const char* model, const std::string& name);
  Tensor operator()(const Tensor& x) const { return f_(x); }

 private:
  Tensor (*f_)(const Tensor& x);
};

// down(activation(gate(x)) * up(x)) of x [..., hidden].
class SwiGlu : public nn::Layer<SwiGlu> {
 public:
  SwiGlu(int64_t hidden, int64_t intermediate, const std::string& activation, bool bias, const Layout& layout);
  Tensor forward(const Tensor& x) const;
  nn::Linear gate_proj, up_proj, down_proj;

 private:
  Activation act_;
  Layout layout_;
};

// Draws a model's parameters: weights normal with that deviation, biases 0. Norms keep their ones.
void draw_parameters(const nn::Module& module, double deviation);

}  // namespace holon::models
