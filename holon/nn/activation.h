// Activations: element by element, or a softmax along an axis.
#pragma once

#include "holon/nn/module.h"
#include "holon/ops.h"

namespace holon::nn {

class ReLU : public Layer<ReLU> {
 public:
  Tensor forward(const Tensor& x) const { return relu(x); }
};

class SiLU : public Layer<SiLU> {
 public:
  Tensor forward(const Tensor& x) const { return silu(x); }
};

class Tanh : public Layer<Tanh> {
 public:
  Tensor forward(const Tensor& x) const { return tanh(x); }
};

class Sigmoid : public Layer<Sigmoid> {
 public:
  Tensor forward(const Tensor& x) const { return sigmoid(x); }
};

class GELU : public Layer<GELU> {
 public:
  explicit GELU(const GeluOptions& options = {}) : approximate_(options.approximate) {}
  Tensor forward(const Tensor& x) const { return gelu(x, {.approximate = approximate_}); }

 private:
  std::string approximate_;
};

class Softmax : public Layer<Softmax> {
 public:
  explicit Softmax(int64_t dim = -1) : dim_(dim) {}
  Tensor forward(const Tensor& x) const { return softmax(x, dim_); }

 private:
  int64_t dim_;
};

class LogSoftmax : public Layer<LogSoftmax> {
 public:
  explicit LogSoftmax(int64_t dim = -1) : dim_(dim) {}
  Tensor forward(const Tensor& x) const { return log_softmax(x, dim_); }

 private:
  int64_t dim_;
};

}  // namespace holon::nn
