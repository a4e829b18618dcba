// Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685): next to a product with a weight W that is frozen, B A is
// learned, of rank r: y = W x + scale B A x.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "holon/nn/linear.h"
#include "holon/nn/module.h"

namespace holon::nn {

struct LoraOptions {
  int64_t r = 8;        // rank
  double alpha = 8;     // scale is alpha / r
  double dropout = 0;   // of what A gets, while training
  bool rslora = false;  // scale is alpha / sqrt(r) instead (Kalajdzievski 2023, arXiv:2312.03732)
};

// The numbers of inputs and outputs of a product in the tree. group_size: as of Lora.
struct ProductSizes {
  int64_t in, out;
};
ProductSizes product_sizes(const Module& module, const ProductModule& product, int64_t group_size = 0);

// One of the two matrices of an adapter, [out, in].
class LoraFactor : public Layer<LoraFactor> {
 public:
  LoraFactor(const Dims& shape, const Placement& placement, const NdSbp& sbp, DType dtype);
  Tensor forward(const Tensor& x) const { return linear(x, weight); }
  Parameter weight;
};

// The adapters of a tree of modules: a handle, whose copies are the same ones.
//
// Each of the products gets two modules, "lora_A" [r, in], drawn as a Linear's weight, and "lora_B" [out, r], zeros at
// first. They belong to the tree: to its parameters, its state, its mode. Their layouts follow from the weight's: where
// its outputs are split, B is; where its inputs are, A is, and the adapter's product is a partial sum as the weight's.
// They are float32 where the weight is bfloat16, float16 or quantised, else of its dtype. Hooks of the modules add the
// product up, so that captures, pipelines and compiled steps have it, too.
class Lora {
 public:
  // All other parameters of the tree are frozen. group_size: of products that are quantised. Errors (ValueError),
  // before anything is changed: no products; options out of range; a product that has an adapter; one whose weight is
  // not of two axes, unless it is quantised.
  Lora(Module& module, const std::vector<ProductModule>& products, const LoraOptions& options, int64_t group_size = 0);

  // Adds the adapters to the weights, and takes them out again, by a subtraction: as exact as the weights' dtype is.
  // Errors (RuntimeError), before anything is changed: it is so already; a weight is quantised.
  void merge();
  void unmerge();
  bool is_merged() const;
  // Takes the adapters out of the tree, not out of weights that are merged. What required grad before does again.
  void remove();

  const LoraOptions& options() const;
  // Of the modules that have adapters.
  const std::vector<ProductModule>& products() const;
  // "PATH.lora_A.weight" and "PATH.lora_B.weight" of each.
  StateDict state_dict() const;

 private:
  struct State;
  void add_to_weights(double sign, const char* what);
  std::shared_ptr<State> state_;
};

}  // namespace holon::nn
