#include "holon/models/layers.h"

#include "holon/base/error.h"
#include "holon/nn/init.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/unary.h"

namespace holon::models {

nn::LinearOptions by_outputs(const Layout& l, bool bias) {
  return {.bias = bias, .placement = l.placement, .sbp = l.tensor_parallel(0), .dtype = l.dtype};
}

nn::LinearOptions by_inputs(const Layout& l, bool bias) {
  return {.bias = bias, .placement = l.placement, .sbp = l.tensor_parallel(1), .dtype = l.dtype};
}

nn::LinearOptions undivided(const Layout& l, bool bias) {
  return {.bias = bias, .placement = l.placement, .sbp = l.whole, .dtype = l.dtype};
}

nn::LayerNormOptions layer_norm_options(const Layout& l, double eps) {
  return {.eps = eps, .placement = l.placement, .sbp = l.whole, .dtype = l.dtype};
}

nn::RmsNormModuleOptions rms_norm_options(const Layout& l, double eps) {
  return {.eps = eps, .placement = l.placement, .sbp = l.whole, .dtype = l.dtype};
}

nn::EmbeddingOptions vocabulary_options(const Layout& l) {
  return {.placement = l.placement, .sbp = l.tensor_parallel(0), .dtype = l.dtype};
}

nn::EmbeddingOptions table_options(const Layout& l) {
  return {.placement = l.placement, .sbp = l.whole, .dtype = l.dtype};
}

namespace {

struct Named {
  const char* name;
  Tensor (*f)(const Tensor& x);
};
Tensor gelu_by_tanh(const Tensor& x) { return gelu(x, {.approximate = "tanh"}); }
constexpr Named kActivations[] = {{"silu", [](const Tensor& x) { return silu(x); }},
                                  {"swish", [](const Tensor& x) { return silu(x); }},
                                  {"gelu", [](const Tensor& x) { return gelu(x); }},
                                  {"gelu_new", gelu_by_tanh},
                                  {"gelu_pytorch_tanh", gelu_by_tanh},
                                  {"relu", [](const Tensor& x) { return relu(x); }},
                                  {"tanh", [](const Tensor& x) { return tanh(x); }}};

}  // namespace

Activation::Activation(const char* model, const std::string& name) : f_(nullptr) {
  std::string known;
  for (auto& a : kActivations) {
    if (name == a.name) f_ = a.f;
    known += (known.empty() ? "" : ", ") + std::string(a.name);
  }
  if (!f_) fail_value("{}: the activation '{}' is not supported; those that are: {}.", model, name, known);
}

SwiGlu::SwiGlu(int64_t hidden, int64_t intermediate, const std::string& activation, bool bias, const Layout& l)
    : gate_proj(register_module("gate_proj", nn::Linear(hidden, intermediate, by_outputs(l, bias)))),
      up_proj(register_module("up_proj", nn::Linear(hidden, intermediate, by_outputs(l, bias)))),
      down_proj(register_module("down_proj", nn::Linear(intermediate, hidden, by_inputs(l, bias)))),
      act_("SwiGlu", activation),
      layout_(l) {}

Tensor SwiGlu::forward(const Tensor& x) const { return added_up(down_proj(act_(gate_proj(x)) * up_proj(x)), layout_); }

void draw_parameters(const nn::Module& module, double deviation) {
  for (auto& [name, p] : module.named_parameters()) {
    if (name.ends_with("bias"))
      nn::init::constant_(p, 0);
    else if (p.ndim() >= 2)
      nn::init::normal_(p, 0, deviation);
  }
}

}  // namespace holon::models
