// Weights of products as small numbers in groups, with less memory: a step that computes a few rows takes the time in
// which the weights are read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "holon/nn/linear.h"
#include "holon/nn/module.h"

namespace holon::nn {

struct QuantizeOptions {
  int bits = 4;                // 4 or 8, for each number
  int64_t group_size = 32;     // adjacent inputs of an output that have one scale
  std::string format = "int";  // integers; or "mxfp4": floats of 4 bits in groups of 32
};

// Replaces the weights of these modules, which multiply by quantized_product() then, as Linear does, by numbers with a
// scale for each group: uint8 [out, groups, bytes] in the form of holon/kernels/quantized.h, divided among the ranks as
// before. An integer is off by at most half of its group's scale, which is its largest number over 7 (4 bits) or 127 (8
// bits); MXFP4's by a quarter of the number at most, or an eighth of the scale. The weights are parameters without
// gradients, in state_dict() as they are; gradients of inputs go through the numbers that they represent, except in
// experts, where backward is an error. `run`, if given, is called with what quantises one weight on this rank.
//
// Errors, before anything is changed (ValueError): bits, group_size or format out of range; a group_size that does not
// divide the inputs of one of them; a path of none, or of one that is quantised already. Then: weights that are not
// finite. Collective where a group_size does not divide the ranks' inputs.
void quantize(Module& module, const std::vector<ProductModule>& products, const QuantizeOptions& options = {},
              const std::function<void(const std::function<void()>&)>& run = {});

// x [..., in] times a quantised weight, plus bias, which may be undefined. in: as it was before, by which the groups
// are known. Errors (ValueError): another last size of x.
Tensor quantized_product(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t in);

// Whether any weight in the tree is quantised.
bool is_quantized(const Module& module);

}  // namespace holon::nn
