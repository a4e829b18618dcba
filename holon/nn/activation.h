// Activations: element by element, or a softmax along an axis.
#pragma once

#include "holon/nn/module.h"
#include "holon/ops/activation.h"
#include "holon/ops/create.h"
#include "holon/ops/norm.h"

namespace holon::nn {

// Those without options.
class ReLU : public Layer<ReLU> {
 public:
  Tensor forward(const Tensor& x) const { return relu(x); }
};
class ReLU6 : public Layer<ReLU6> {
 public:
  Tensor forward(const Tensor& x) const { return relu6(x); }
};
class SELU : public Layer<SELU> {
 public:
  Tensor forward(const Tensor& x) const { return selu(x); }
};
class QuickGELU : public Layer<QuickGELU> {
 public:
  Tensor forward(const Tensor& x) const { return quick_gelu(x); }
};
class SiLU : public Layer<SiLU> {
 public:
  Tensor forward(const Tensor& x) const { return silu(x); }
};
class Mish : public Layer<Mish> {
 public:
  Tensor forward(const Tensor& x) const { return mish(x); }
};
class Sigmoid : public Layer<Sigmoid> {
 public:
  Tensor forward(const Tensor& x) const { return sigmoid(x); }
};
class LogSigmoid : public Layer<LogSigmoid> {
 public:
  Tensor forward(const Tensor& x) const { return logsigmoid(x); }
};
class Tanh : public Layer<Tanh> {
 public:
  Tensor forward(const Tensor& x) const { return tanh(x); }
};
class Softsign : public Layer<Softsign> {
 public:
  Tensor forward(const Tensor& x) const { return softsign(x); }
};
class Tanhshrink : public Layer<Tanhshrink> {
 public:
  Tensor forward(const Tensor& x) const { return tanhshrink(x); }
};
class Hardswish : public Layer<Hardswish> {
 public:
  Tensor forward(const Tensor& x) const { return hardswish(x); }
};
class Hardsigmoid : public Layer<Hardsigmoid> {
 public:
  Tensor forward(const Tensor& x) const { return hardsigmoid(x); }
};

class LeakyReLU : public Layer<LeakyReLU> {
 public:
  explicit LeakyReLU(double negative_slope = 0.01) : slope_(negative_slope) {}
  Tensor forward(const Tensor& x) const { return leaky_relu(x, slope_); }

 private:
  double slope_;
};

class ELU : public Layer<ELU> {
 public:
  explicit ELU(double alpha = 1) : alpha_(alpha) {}
  Tensor forward(const Tensor& x) const { return elu(x, alpha_); }

 private:
  double alpha_;
};

class CELU : public Layer<CELU> {
 public:
  explicit CELU(double alpha = 1) : alpha_(alpha) {}
  Tensor forward(const Tensor& x) const { return celu(x, alpha_); }

 private:
  double alpha_;
};

class GELU : public Layer<GELU> {
 public:
  explicit GELU(const GeluOptions& options = {}) : approximate_(options.approximate) {}
  Tensor forward(const Tensor& x) const { return gelu(x, {.approximate = approximate_}); }

 private:
  std::string approximate_;
};

class Softplus : public Layer<Softplus> {
 public:
  explicit Softplus(double beta = 1, double threshold = 20) : beta_(beta), threshold_(threshold) {}
  Tensor forward(const Tensor& x) const { return softplus(x, beta_, threshold_); }

 private:
  double beta_, threshold_;
};

class Softshrink : public Layer<Softshrink> {
 public:
  explicit Softshrink(double lambd = 0.5) : lambd_(lambd) {}
  Tensor forward(const Tensor& x) const { return softshrink(x, lambd_); }

 private:
  double lambd_;
};

class Hardshrink : public Layer<Hardshrink> {
 public:
  explicit Hardshrink(double lambd = 0.5) : lambd_(lambd) {}
  Tensor forward(const Tensor& x) const { return hardshrink(x, lambd_); }

 private:
  double lambd_;
};

// x where it is over threshold, value elsewhere.
class Threshold : public Layer<Threshold> {
 public:
  Threshold(double threshold, double value) : threshold_(threshold), value_(value) {}
  Tensor forward(const Tensor& x) const { return holon::threshold(x, threshold_, value_); }

 private:
  double threshold_, value_;
};

class Hardtanh : public Layer<Hardtanh> {
 public:
  explicit Hardtanh(double min_val = -1, double max_val = 1) : min_(min_val), max_(max_val) {}
  Tensor forward(const Tensor& x) const { return hardtanh(x, min_, max_); }

 private:
  double min_, max_;
};

// a * sigmoid(b), a and b being the halves of x along an axis.
class GLU : public Layer<GLU> {
 public:
  explicit GLU(int64_t dim = -1) : dim_(dim) {}
  Tensor forward(const Tensor& x) const { return glu(x, dim_); }

 private:
  int64_t dim_;
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

struct PReLUOptions {
  double init = 0.25;
  Placement placement{};
  NdSbp sbp{};
  DType dtype = float32;
};
// x where it is positive, weight * x elsewhere: one weight, or one for each channel (axis 1).
class PReLU : public Layer<PReLU> {
 public:
  explicit PReLU(int64_t num_parameters = 1, const PReLUOptions& o = {})
      : weight(register_parameter(
            "weight", full({num_parameters}, o.init, {.placement = o.placement, .sbp = o.sbp, .dtype = o.dtype}))) {}
  Tensor forward(const Tensor& x) const { return prelu(x, weight); }
  Parameter weight;
};

}  // namespace holon::nn
