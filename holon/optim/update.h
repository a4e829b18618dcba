// The options of each rule, and the rules on plain lists of tensors.
#pragma once

#include <cstdint>
#include <span>

#include "holon/optim/clip.h"
#include "holon/optim/rule.h"

namespace holon::optim {

// What a group of parameters may have in addition to its rule.
struct GroupOptions {
  double clip_grad_max_norm = -1;  // for Optimizer::clip_grad() and graphs; negative: none
  double clip_grad_norm_type = 2;
  bool master_weights = false;  // float32 copies of parameters of two bytes
};

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
  bool lr_in_momentum = false;  // v = momentum v - lr g and p += v: a step keeps the lr that it was made by
  GroupOptions group = {};
};
struct AdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false;  // weight decay as in AdamW
  bool amsgrad = false, maximize = false;
  bool bias_correction = true;
  GroupOptions group = {};
};
// Adam with decoupled weight decay (https://arxiv.org/abs/1711.05101), which is 0.01 unless the options say otherwise.
struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  bool amsgrad = false, maximize = false;
  bool bias_correction = true;
  GroupOptions group = {};
};
struct AdagradOptions {
  double lr = 1e-3, lr_decay = 0, weight_decay = 0, initial_accumulator_value = 0, eps = 1e-10;
  bool maximize = false;
  GroupOptions group = {};
};
struct AdadeltaOptions {
  double lr = 1, rho = 0.9, eps = 1e-6, weight_decay = 0;
  bool maximize = false;
  GroupOptions group = {};
};
struct RmspropOptions {
  double lr = 1e-3, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false, maximize = false;
  bool eps_in_root = false;  // g / sqrt(v + eps) instead of g / (sqrt(v) + eps)
  GroupOptions group = {};
};
// Adam whose steps are scaled, for each parameter, to the parameter's own norm (https://arxiv.org/abs/1904.00962).
struct LambOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = true;  // weight decay is part of the direction; else of the gradient
  bool bias_correction = true, maximize = false;
  bool eps_in_root = false;         // m / sqrt(v + eps) instead of m / (sqrt(v) + eps)
  bool ratio_before_decay = false;  // the trust ratio is that of the direction without the decay
  GroupOptions group = {};
};
// SGD whose gradients are scaled, for each parameter, by
// trust_coefficient |parameter| / (|gradient| + weight_decay |parameter| + eps) (https://arxiv.org/abs/1708.03888).
struct LarsOptions {
  double lr = 1e-3, momentum = 0.9, dampening = 0, weight_decay = 0, trust_coefficient = 1e-3, eps = 1e-8;
  bool nesterov = false, maximize = false;
  GroupOptions group = {};
};

// The rule that the options specify.
Rule rule_of(const SgdOptions& options);
Rule rule_of(const AdamOptions& options);
Rule rule_of(const AdamWOptions& options);
Rule rule_of(const AdagradOptions& options);
Rule rule_of(const AdadeltaOptions& options);
Rule rule_of(const RmspropOptions& options);
Rule rule_of(const LambOptions& options);
Rule rule_of(const LarsOptions& options);

// momenta[i] is undefined until the first use and made here; with momentum 0 it is never touched, and the list may be
// empty.
void sgd_update(std::span<Tensor> params, std::span<const Tensor> grads, std::span<Tensor> momenta,
                const SgdOptions& options);

// step counts from 1. The state is undefined until the first use and made here; max_exp_avg_sqs may be empty without
// amsgrad.
void adam_update(std::span<Tensor> params, std::span<const Tensor> grads, std::span<Tensor> exp_avgs,
                 std::span<Tensor> exp_avg_sqs, std::span<Tensor> max_exp_avg_sqs, int64_t step,
                 const AdamOptions& options);

// As clip_grad_norm_(), with the norm as a number. Errors: those of clip_grad_norm_(); in build(), where no number is
// known.
double clip_grad_norm(TensorList params, double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);
template <std::same_as<bool> B>
double clip_grad_norm(TensorList params, double max_norm, B error_if_nonfinite) = delete;  // norm_type comes first

// Multiplies the gradients of params by a factor. Returns whether all of them were finite before, on all ranks alike
// where one is global. Collective where a parameter is global.
bool scale_grads(TensorList params, double factor);

}  // namespace holon::optim
