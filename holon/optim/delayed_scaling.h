// Scales of float8 products by the largest values of earlier steps, as NVIDIA's Transformer Engine has them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "holon/dispatch/float8_recipe.h"
#include "holon/nn/module.h"

namespace holon::optim {

struct DelayedScalingOptions {
  int margin = 0;                   // scales are 2^margin times smaller than values need
  int64_t amax_history_len = 1024;  // steps
  enum class AmaxCompute : uint8_t { kMax, kMostRecent };
  AmaxCompute amax_compute_algo = AmaxCompute::kMax;
};

// For each parameter of a product, the largest magnitudes (amax) of the other factor, of the parameter and of the
// results' gradients in the last steps. A step's scales are from the steps before it: the power of two that brings
// history's largest amax, or the most recent one, closest to the dtype's largest number and not above it, over
// 2^margin; 1 at first. What is then beyond the range becomes the largest number.
//
// update() ends a step, however many passes it had (micro-batches, accumulated gradients). The ranks of a placement
// agree on all amaxes of its parameters by one exchange. Ranks of local parameters have their own. An amax that is 0 or
// not finite says nothing, and the history stays as it is.
//
// Not thread-safe, as an optimizer.
class DelayedScaling final : public Float8Recipe {
 public:
  using Options = DelayedScalingOptions;
  using Named = nn::StateDict;
  // Errors (ValueError): a margin that is negative or above 64; a history of no step; a name or a parameter twice.
  explicit DelayedScaling(Named parameters, const Options& options = {});
  explicit DelayedScaling(const nn::Module& module, const Options& options = {})
      : DelayedScaling(module.named_parameters(), options) {}
  DelayedScaling(const DelayedScaling&) = delete;
  DelayedScaling& operator=(const DelayedScaling&) = delete;

  // Collective over the world where parameters are global.
  void update() override;

  // "fc.weight.scale" [3] and "fc.weight.amax_history" [3, amax_history_len], the newest first, in the order of
  // Float8Role, of the parameters that have been in a product; global ones are broadcast. Largest magnitudes since the
  // last update() are not in it.
  Named state_dict() const;
  // Collective where tensors are global. Errors (ValueError), before anything is changed: a name that no parameter has,
  // or with one of the two tensors only; another shape.
  void load_state_dict(const Named& state);

  // What the next step multiplies values by, on ranks that have the parameter. Errors (ValueError): there is no
  // parameter of the name.
  float scale(const std::string& parameter, Float8Role role) const;

  Float8Scales* scales_of(const Tensor& parameter, DType dtype) override;

 private:
  struct State {
    std::string name;
    Tensor parameter;
    DType dtype = float8_e4m3fn;  // of the region in which it was used
    Float8Scales tensors;         // undefined until the parameter is in a product
    float scale[kFloat8Roles];
    std::vector<float> history[kFloat8Roles];  // the newest first
  };
  static void make_tensors(State& s);
  static std::vector<float> history_of(const State& s);
  void restore(State& s, const std::vector<float>& scale, const std::vector<float>& history) const;
  void move(State& s) const;
  static std::vector<float> largest_of(const std::vector<State*>& states);
  void end_step(State& s, size_t role, float amax) const;
  static void begin_step(State& s, size_t role);

  Options options_;
  std::vector<std::unique_ptr<State>> states_;
  std::unordered_map<const TensorImpl*, State*> of_;
};

}  // namespace holon::optim
