// Functions with their own gradient that are not registered ops: written in C++ or behind Python's
// autograd.Function.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "holon/tensor/tensor.h"

namespace holon::autograd {

// One call of such a function: the two halves share what they capture.
struct FunctionCall {
  std::string name;
  // The sharding rule in factors, as OpBuilder::rule() takes it: "m k, k n -> m n". On global tensors the inputs are
  // redistributed to the cheapest signature and forward and backward run on each rank's local parts. Empty: they get
  // the tensors as they are.
  std::string rule;
  bool linear = false;  // a partial sum may pass, jointly in all inputs
  // Gets local tensors (with a rule) or any, unrecorded; returns the outputs.
  std::function<std::vector<Tensor>(TensorList inputs)> forward;
  // Gets the gradient of each output (undefined where nothing reached it), and returns one per input, undefined ones
  // too.
  std::function<std::vector<Tensor>(TensorList grads)> backward;
  // The outputs' logical shapes from the inputs'. Empty: by the rule, where each size is that of its factor.
  std::function<std::vector<Dims>(std::span<const Dims> inputs)> infer;
};

// Calls forward and records backward. With a rule and global inputs: collective where inputs must be redistributed;
// ranks outside the placement run nothing. Errors: inputs on different placements or local ones among global; an output
// whose local shape is not that of its part; a gradient of another shape than its input; gradients of another number.
std::vector<Tensor> apply_function(FunctionCall call, TensorList inputs);

}  // namespace holon::autograd
