// Update rules: functions of parameters, gradients, state and step, over many tensors at once.
//
// Tensors may be local or global, in any mixture. A rule is elementwise, so each rank updates the parts that it holds; a
// gradient whose placement or sbp is not its parameter's is boxed to it first (collective). An undefined gradient skips its
// parameter. The state has its parameter's layout, and its dtype, but float32 for bfloat16 and float16, in which arithmetic
// runs in float32. Nothing is recorded for backward; the version of every changed tensor is counted up.
//
// Common errors (holon::Error, before anything is changed): lists of unlike lengths; a gradient or a state of another shape,
// dtype or kind (local, global) than its parameter; a parameter that is not of floating point; options out of range.
#pragma once

#include <cstdint>
#include <span>

#include "holon/tensor/tensor.h"

namespace holon::optim {

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
};

// momenta[i] is undefined until the first use and made here; with momentum 0 it is never touched, and the list may be empty.
// A parameter with partial_sum is updated as its parts are, because the rule is linear.
void sgd_update(std::span<Tensor> params, std::span<const Tensor> grads, std::span<Tensor> momenta, const SgdOptions& options);

struct AdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false;  // weight decay as in AdamW
  bool amsgrad = false, maximize = false;
};

// step counts from 1. The state is undefined until the first use and made here; max_exp_avg_sqs may be empty without amsgrad.
// Errors: a parameter with partial_sum, of which the rule, which is not linear, cannot update a part.
void adam_update(std::span<Tensor> params, std::span<const Tensor> grads, std::span<Tensor> exp_avgs,
                 std::span<Tensor> exp_avg_sqs, std::span<Tensor> max_exp_avg_sqs, int64_t step, const AdamOptions& options);

// Scales the gradients of params so that the 2-norm of all of them together is at most max_norm. Returns the norm before.
// Right for any mixture of sbps and placements: every element counts once. Collective where a parameter is global.
// Errors: max_norm negative; with error_if_nonfinite, a norm that is not finite.
double clip_grad_norm(std::span<const Tensor> params, double max_norm, bool error_if_nonfinite = false);

}  // namespace holon::optim
