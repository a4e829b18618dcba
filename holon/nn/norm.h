// Normalisation: to mean 0 and variance 1 over the batch, a sample, a group of channels or the last axes.
#pragma once

#include <optional>

#include "holon/nn/module.h"
#include "holon/ops/batch_norm.h"
#include "holon/ops/layers.h"
#include "holon/ops/norm.h"

namespace holon::nn {

struct BatchNormOptions {
  double eps = 1e-5;
  std::optional<double> momentum =
      0.1;             // the share of a new batch in the running statistics; none: all batches count alike
  bool affine = true;  // with weight and bias
  bool track_running_stats = true;
  Placement placement{};
  NdSbp sbp{};
  DType dtype = float32;
};

// Brings each channel (axis 1) to mean 0 and variance 1 over the logical batch, whatever ranks hold of it; then *
// weight + bias. In evaluation by the running statistics.
class BatchNorm : public Layer<BatchNorm> {
 public:
  // x may have from least to most axes.
  explicit BatchNorm(int64_t features, const BatchNormOptions& options = {}, int least_axes = 2, int most_axes = 5);
  // Errors: x has another number of axes.
  Tensor forward(const Tensor& x) const;
  void reset_running_stats() const;
  // Undefined where the options leave them out.
  Parameter weight, bias;
  Buffer running_mean, running_var, num_batches_tracked;

 private:
  double eps_;
  std::optional<double> momentum_;
  int least_axes_, most_axes_;
};
// Of [n, c] or [n, c, l]; of images; of volumes. All are synchronous on global tensors.
struct BatchNorm1d : BatchNorm {
  explicit BatchNorm1d(int64_t features, const BatchNormOptions& options = {}) : BatchNorm(features, options, 2, 3) {}
};
struct BatchNorm2d : BatchNorm {
  explicit BatchNorm2d(int64_t features, const BatchNormOptions& options = {}) : BatchNorm(features, options, 4, 4) {}
};
struct BatchNorm3d : BatchNorm {
  explicit BatchNorm3d(int64_t features, const BatchNormOptions& options = {}) : BatchNorm(features, options, 5, 5) {}
};
using SyncBatchNorm = BatchNorm;

struct InstanceNormOptions {
  double eps = 1e-5;
  double momentum = 0.1;
  bool affine = false;
  bool track_running_stats = false;
  Placement placement{};
  NdSbp sbp{};
  DType dtype = float32;
};

// Brings each channel of each sample to mean 0 and variance 1.
class InstanceNorm : public Layer<InstanceNorm> {
 public:
  explicit InstanceNorm(int64_t features, const InstanceNormOptions& options = {}, int least_axes = 3,
                        int most_axes = 5);
  Tensor forward(const Tensor& x) const;
  Parameter weight, bias;
  Buffer running_mean, running_var;

 private:
  double eps_, momentum_;
  int least_axes_, most_axes_;
};
struct InstanceNorm1d : InstanceNorm {
  explicit InstanceNorm1d(int64_t features, const InstanceNormOptions& options = {})
      : InstanceNorm(features, options, 3, 3) {}
};
struct InstanceNorm2d : InstanceNorm {
  explicit InstanceNorm2d(int64_t features, const InstanceNormOptions& options = {})
      : InstanceNorm(features, options, 4, 4) {}
};
struct InstanceNorm3d : InstanceNorm {
  explicit InstanceNorm3d(int64_t features, const InstanceNormOptions& options = {})
      : InstanceNorm(features, options, 5, 5) {}
};

struct GroupNormOptions {
  double eps = 1e-5;
  bool affine = true;
  Placement placement{};
  NdSbp sbp{};
  DType dtype = float32;
};
// Brings each of `groups` groups of channels (axis 1) of each sample to mean 0 and variance 1; then * weight + bias.
class GroupNorm : public Layer<GroupNorm> {
 public:
  // Errors: groups that do not divide the channels.
  GroupNorm(int64_t groups, int64_t channels, const GroupNormOptions& options = {});
  Tensor forward(const Tensor& x) const { return group_norm(x, groups_, weight, bias, eps_); }
  Parameter weight, bias;

 private:
  int64_t groups_;
  double eps_;
};

struct LayerNormOptions {
  double eps = 1e-5;
  bool affine = true;  // with weight and bias
  bool bias = true;
  Placement placement{};
  NdSbp sbp{};
  DType dtype = float32;
};
// Normalises the last axes, of sizes `shape`.
class LayerNorm : public Layer<LayerNorm> {
 public:
  LayerNorm(const Dims& shape, const LayerNormOptions& options = {});
  Tensor forward(const Tensor& x) const { return layer_norm(x, shape_, weight, bias, eps_); }
  Parameter weight, bias;

 private:
  Dims shape_;
  double eps_;
};

struct RmsNormModuleOptions {
  std::optional<double> eps{};  // by default the dtype's smallest step
  bool affine = true;
  Placement placement{};
  NdSbp sbp{};
  DType dtype = float32;
};
// x over the root of its mean square over the last axes; then * weight.
class RMSNorm : public Layer<RMSNorm> {
 public:
  RMSNorm(const Dims& shape, const RmsNormModuleOptions& options = {});
  Tensor forward(const Tensor& x) const { return rms_norm(x, shape_, weight, eps_); }
  Parameter weight;

 private:
  Dims shape_;
  std::optional<double> eps_;
};

// x over (k + alpha * the mean of the squares of size channels around each) ** beta.
struct LocalResponseNormModuleOptions {
  double alpha = 1e-4, beta = 0.75, k = 1;
};
class LocalResponseNorm : public Layer<LocalResponseNorm> {
 public:
  explicit LocalResponseNorm(int64_t size, const LocalResponseNormModuleOptions& options = {})
      : size_(size), options_(options) {}
  Tensor forward(const Tensor& x) const {
    return local_response_norm(x, size_, options_.alpha, options_.beta, options_.k);
  }

 private:
  int64_t size_;
  LocalResponseNormModuleOptions options_;
};

}  // namespace holon::nn
