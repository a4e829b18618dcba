#include "holon/nn/norm.h"

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/nn/init.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/batch_norm.h"
#include "holon/ops/create.h"
#include "holon/ops/shape.h"
#include "holon/tensor/tracer.h"

namespace holon::nn {

namespace {

template <class Options>
Tensor filled(const Dims& shape, double value, const Options& o) {
  return full(shape, value, {.placement = o.placement, .sbp = o.sbp, .dtype = o.dtype});
}

Tensor counter(const Placement& placement, const NdSbp& sbp) {
  NdSbp whole = sbp;
  for (int d = 0; d < whole.size(); ++d) whole = whole.with(d, sbp::broadcast());
  return zeros({}, {.placement = placement, .sbp = whole, .dtype = int64});
}

void check_axes(const Tensor& x, int least, int most, const char* layer) {
  if (x.ndim() < least || x.ndim() > most)
    fail_value("{}: x is {}; it must have {} axes{}.", layer, x.shape(), least,
               least == most ? "" : fmt::format(" to {}", most));
}

// In a graph: the number of batches is another one in each step, so that the share is a tensor.
Tensor counted(const BatchNorm& norm, const Tensor& x, double eps) {
  const Tensor running[] = {norm.running_mean, norm.running_var};
  Tensor before[2];
  {
    NoGradGuard no_grad;
    for (int i = 0; i < 2; ++i) before[i] = clone(running[i]);
  }
  Tensor y = batch_norm(x, running[0], running[1], norm.weight, norm.bias, true, 1.0, eps);  // they become the batch's
  NoGradGuard no_grad;
  for (int i = 0; i < 2; ++i)
    copy_(running[i], add(before[i], div(sub(running[i], before[i]), norm.num_batches_tracked)));
  return y;
}

}  // namespace

BatchNorm::BatchNorm(int64_t features, const BatchNormOptions& o, int least_axes, int most_axes)
    : eps_(o.eps), momentum_(o.momentum), least_axes_(least_axes), most_axes_(most_axes) {
  if (o.affine) {
    weight = register_parameter("weight", filled({features}, 1, o));
    bias = register_parameter("bias", filled({features}, 0, o));
  }
  if (!o.track_running_stats) return;
  running_mean = register_buffer("running_mean", filled({features}, 0, o));
  running_var = register_buffer("running_var", filled({features}, 1, o));
  num_batches_tracked = register_buffer("num_batches_tracked", counter(o.placement, o.sbp));
}

Tensor BatchNorm::forward(const Tensor& x) const {
  check_axes(x, least_axes_, most_axes_, "BatchNorm");
  double share = momentum_.value_or(0);
  bool tracks = is_training() && running_mean.defined();
  if (tracks) {
    add_(num_batches_tracked, int64_t{1});
    if (!momentum_ && tracer()) return counted(*this, x, eps_);
    if (!momentum_) share = 1 / num_batches_tracked.item().as_double();
  }
  return batch_norm(x, running_mean, running_var, weight, bias, is_training() || !running_mean.defined(), share, eps_);
}

void BatchNorm::reset_running_stats() const {
  if (!running_mean.defined()) return;
  init::constant_(running_mean, 0);
  init::constant_(running_var, 1);
  init::constant_(num_batches_tracked, 0);
}

InstanceNorm::InstanceNorm(int64_t features, const InstanceNormOptions& o, int least_axes, int most_axes)
    : eps_(o.eps), momentum_(o.momentum), least_axes_(least_axes), most_axes_(most_axes) {
  if (o.affine) {
    weight = register_parameter("weight", filled({features}, 1, o));
    bias = register_parameter("bias", filled({features}, 0, o));
  }
  if (!o.track_running_stats) return;
  running_mean = register_buffer("running_mean", filled({features}, 0, o));
  running_var = register_buffer("running_var", filled({features}, 1, o));
  register_buffer("num_batches_tracked", counter(o.placement, o.sbp));
}

Tensor InstanceNorm::forward(const Tensor& x) const {
  check_axes(x, least_axes_, most_axes_, "InstanceNorm");
  return instance_norm(x, running_mean, running_var, weight, bias, is_training() || !running_mean.defined(), momentum_,
                       eps_);
}

GroupNorm::GroupNorm(int64_t groups, int64_t channels, const GroupNormOptions& o) : groups_(groups), eps_(o.eps) {
  if (groups < 1 || channels % groups) fail_value("GroupNorm: {} groups do not divide {} channels.", groups, channels);
  if (!o.affine) return;
  weight = register_parameter("weight", filled({channels}, 1, o));
  bias = register_parameter("bias", filled({channels}, 0, o));
}

LayerNorm::LayerNorm(const Dims& shape, const LayerNormOptions& o) : shape_(shape), eps_(o.eps) {
  if (!o.affine) return;
  weight = register_parameter("weight", filled(shape, 1, o));
  if (o.bias) bias = register_parameter("bias", filled(shape, 0, o));
}

RMSNorm::RMSNorm(const Dims& shape, const RmsNormModuleOptions& o) : shape_(shape), eps_(o.eps) {
  if (o.affine) weight = register_parameter("weight", filled(shape, 1, o));
}

}  // namespace holon::nn
