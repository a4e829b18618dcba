// Layers that are products with a weight, and those that change nothing but the shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holon/nn/module.h"
#include "holon/ops/layers.h"
#include "holon/ops/matmul.h"
#include "holon/ops/shape.h"

namespace holon::nn {

// y = x weight^T + bias, with weight [out, in].
struct LinearOptions {
  bool bias = true;
  Placement placement{};
  NdSbp sbp{};       // of weight
  NdSbp bias_sbp{};  // by default what fits: S(0) where weight is S(0) (the columns of y are split), else broadcast
  DType dtype = float32;
};
class Linear : public Layer<Linear> {
 public:
  Linear(int64_t in_features, int64_t out_features, const LinearOptions& options = {});
  Tensor forward(const Tensor& x) const { return is_floating(weight.dtype()) ? linear(x, weight, bias) : quantized(x); }
  Parameter weight, bias;  // bias: undefined without one. weight: uint8 once it is quantised (holon/nn/quantize.h)

 private:
  Tensor quantized(const Tensor& x) const;
  int64_t in_features_;
};

// A module of a tree that multiplies by a parameter: [out, in], or with axes in front, or [in, out] where it is
// transposed. It computes a product with a quantised one by quantized_product() (holon/nn/quantize.h) or as experts do.
struct ProductModule {
  std::string path{};
  bool transposed = false;
  std::string parameter = "weight";
};
// All Linear modules in the tree that are called, whether quantised or not: not the out_proj of a MultiheadAttention,
// which multiplies by its weight itself.
std::vector<ProductModule> linear_modules(const Module& module);

// y[o] = x1 weight[o] x2 + bias[o], with weight [out, in1, in2].
class Bilinear : public Layer<Bilinear> {
 public:
  Bilinear(int64_t in1_features, int64_t in2_features, int64_t out_features, const LinearOptions& options = {});
  Tensor forward(const Tensor& x1, const Tensor& x2) const { return bilinear(x1, x2, weight, bias); }
  Parameter weight, bias;
};

// Returns its input.
class Identity : public Layer<Identity> {
 public:
  Tensor forward(const Tensor& x) const { return x; }
};

// Merges the axes from start to end; by default all but the first.
class Flatten : public Layer<Flatten> {
 public:
  explicit Flatten(int64_t start_dim = 1, int64_t end_dim = -1) : start_dim_(start_dim), end_dim_(end_dim) {}
  Tensor forward(const Tensor& x) const { return flatten(x, start_dim_, end_dim_); }

 private:
  int64_t start_dim_, end_dim_;
};

// Cuts an axis into axes of the given sizes.
class Unflatten : public Layer<Unflatten> {
 public:
  Unflatten(int64_t dim, const Dims& sizes) : dim_(dim), sizes_(sizes) {}
  // Errors: sizes whose product is not that of the axis.
  Tensor forward(const Tensor& x) const;

 private:
  int64_t dim_;
  Dims sizes_;
};

}  // namespace holon::nn
