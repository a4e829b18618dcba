// The layers. Each takes placement and sbp for its parameters in its options; without a placement they are local. Values at
// the start are PyTorch's, and the same under every layout. Layers are modules: cheap handles that share their parameters.
#pragma once

#include "holon/nn/module.h"
#include "holon/ops.h"

namespace holon::nn {

// y = x weight^T + bias, with weight [out, in].
struct LinearOptions {
  bool bias = true;
  Placement placement{};
  NdSbp sbp{};       // of weight
  NdSbp bias_sbp{};  // by default what fits: S(0) where weight is S(0) (the columns of y are split), else broadcast
  DType dtype = float32;
};
class Linear : public Module {
 public:
  Linear(int64_t in_features, int64_t out_features, const LinearOptions& options = {});
  Tensor operator()(const Tensor& x) const { return linear(x, weight, bias); }
  Tensor weight, bias;  // bias: undefined without one
};

// Normalises the last axes, of sizes `shape`.
struct LayerNormOptions {
  double eps = 1e-5;
  bool affine = true;  // with weight and bias
  Placement placement{};
  NdSbp sbp{};
  DType dtype = float32;
};
class LayerNorm : public Module {
 public:
  LayerNorm(const Dims& shape, const LayerNormOptions& options = {});
  Tensor operator()(const Tensor& x) const { return layer_norm(x, shape_, weight, bias, eps_); }
  Tensor weight, bias;

 private:
  Dims shape_;
  double eps_;
};

// A table [rows, width]: the row of each index.
struct EmbeddingOptions {
  Placement placement{};
  NdSbp sbp{};
  DType dtype = float32;
};
class Embedding : public Module {
 public:
  Embedding(int64_t rows, int64_t width, const EmbeddingOptions& options = {});
  Tensor operator()(const Tensor& indices) const { return embedding(weight, indices); }
  Tensor weight;
};

// Zeroes elements with probability p while training, and scales the others by 1 / (1 - p).
class Dropout : public Module {
 public:
  // Errors: p outside [0, 1].
  explicit Dropout(double p = 0.5);
  Tensor operator()(const Tensor& x) const { return dropout(x, p_, is_training()); }

 private:
  double p_;
};

// Convolution of x [n, in, height, width] with weight [out, in / groups, kernel...].
struct Conv2dOptions {
  Dims stride{1, 1}, padding{0, 0}, dilation{1, 1};
  int64_t groups = 1;
  bool bias = true;
  Placement placement{};
  NdSbp sbp{};
  DType dtype = float32;
};
class Conv2d : public Module {
 public:
  // kernel: one size, or those of height and width. Errors: groups that do not divide both numbers of channels.
  Conv2d(int64_t in_channels, int64_t out_channels, const Dims& kernel, const Conv2dOptions& options = {});
  Tensor operator()(const Tensor& x) const;
  Tensor weight, bias;

 private:
  Dims stride_, padding_, dilation_;
  int64_t groups_;
};

struct MaxPool2dOptions {
  Dims stride{};  // the kernel's sizes if empty
  Dims padding{0, 0};
};
class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(const Dims& kernel, const MaxPool2dOptions& options = {});
  Tensor operator()(const Tensor& x) const;

 private:
  Dims kernel_, stride_, padding_;
};

class ReLU : public Module {
 public:
  Tensor operator()(const Tensor& x) const { return relu(x); }
};

class GELU : public Module {
 public:
  explicit GELU(const GeluOptions& options = {}) : approximate_(options.approximate) {}
  Tensor operator()(const Tensor& x) const { return gelu(x, {.approximate = approximate_}); }

 private:
  std::string approximate_;
};

// Merges all axes but the first.
class Flatten : public Module {
 public:
  Tensor operator()(const Tensor& x) const { return flatten(x, 1); }
};

class CrossEntropyLoss : public Module {
 public:
  explicit CrossEntropyLoss(const CrossEntropyOptions& options = {})
      : ignore_index_(options.ignore_index), reduction_(options.reduction), label_smoothing_(options.label_smoothing) {}
  Tensor operator()(const Tensor& logits, const Tensor& target) const {
    return cross_entropy(logits, target, {},
                         {.ignore_index = ignore_index_, .reduction = reduction_, .label_smoothing = label_smoothing_});
  }

 private:
  int64_t ignore_index_;
  std::string reduction_;
  double label_smoothing_;
};

// Modules one after the other, named "0", "1", ...
class Sequential : public Module {
 public:
  Sequential() = default;
  template <class First, class... M>
    requires(sizeof...(M) > 0 || !std::is_same_v<First, Sequential>)
  explicit Sequential(First first, M... more) {
    push_back(std::move(first));
    (push_back(std::move(more)), ...);
  }
  // Adds a module that is called with a tensor and returns one.
  template <class M>
  void push_back(M module) {
    register_module(std::to_string(calls_.size()), module);
    calls_.push_back(std::move(module));
  }
  size_t size() const { return calls_.size(); }
  Tensor operator()(Tensor x) const {
    for (auto& call : calls_) x = call(x);
    return x;
  }

 private:
  std::vector<std::function<Tensor(const Tensor&)>> calls_;
};

// A list of modules of one type, named "0", "1", ...
template <class M>
class ModuleList : public Module {
 public:
  void push_back(M module) {
    register_module(std::to_string(list_.size()), module);
    list_.push_back(std::move(module));
  }
  size_t size() const { return list_.size(); }
  const M& operator[](size_t i) const { return list_[i]; }
  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }

 private:
  std::vector<M> list_;
};

}  // namespace holon::nn
