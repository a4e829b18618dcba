#include "holon/optim/update.h"

#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"

namespace holon::optim {

Rule rule_of(const SgdOptions& o) {
  Rule r;
  r.kind = RuleKind::kSgd;
  r.lr = o.lr, r.momentum = o.momentum, r.dampening = o.dampening, r.weight_decay = o.weight_decay;
  r.nesterov = o.nesterov, r.maximize = o.maximize, r.master_weights = o.group.master_weights;
  r.lr_in_momentum = o.lr_in_momentum;
  return r;
}

Rule rule_of(const AdamOptions& o) {
  Rule r;
  r.kind = RuleKind::kAdam;
  r.lr = o.lr, r.beta1 = o.beta1, r.beta2 = o.beta2, r.eps = o.eps, r.weight_decay = o.weight_decay;
  r.decoupled = o.decoupled, r.amsgrad = o.amsgrad, r.maximize = o.maximize, r.bias_correction = o.bias_correction;
  r.master_weights = o.group.master_weights;
  return r;
}

Rule rule_of(const AdamWOptions& o) {
  return rule_of(AdamOptions{.lr = o.lr,
                             .beta1 = o.beta1,
                             .beta2 = o.beta2,
                             .eps = o.eps,
                             .weight_decay = o.weight_decay,
                             .decoupled = true,
                             .amsgrad = o.amsgrad,
                             .maximize = o.maximize,
                             .bias_correction = o.bias_correction,
                             .group = o.group});
}

Rule rule_of(const AdagradOptions& o) {
  Rule r;
  r.kind = RuleKind::kAdagrad;
  r.lr = o.lr, r.lr_decay = o.lr_decay, r.weight_decay = o.weight_decay, r.eps = o.eps;
  r.initial_accumulator_value = o.initial_accumulator_value, r.maximize = o.maximize,
  r.master_weights = o.group.master_weights;
  return r;
}

Rule rule_of(const AdadeltaOptions& o) {
  Rule r;
  r.kind = RuleKind::kAdadelta;
  r.lr = o.lr, r.rho = o.rho, r.eps = o.eps, r.weight_decay = o.weight_decay, r.maximize = o.maximize;
  r.master_weights = o.group.master_weights;
  return r;
}

Rule rule_of(const RmspropOptions& o) {
  Rule r;
  r.kind = RuleKind::kRmsprop;
  r.lr = o.lr, r.rho = o.alpha, r.eps = o.eps, r.weight_decay = o.weight_decay, r.momentum = o.momentum;
  r.centered = o.centered, r.maximize = o.maximize, r.master_weights = o.group.master_weights;
  r.eps_in_root = o.eps_in_root;
  return r;
}

Rule rule_of(const LambOptions& o) {
  Rule r;
  r.kind = RuleKind::kLamb;
  r.lr = o.lr, r.beta1 = o.beta1, r.beta2 = o.beta2, r.eps = o.eps, r.weight_decay = o.weight_decay;
  r.decoupled = o.decoupled, r.bias_correction = o.bias_correction, r.maximize = o.maximize;
  r.eps_in_root = o.eps_in_root, r.ratio_before_decay = o.ratio_before_decay;
  r.master_weights = o.group.master_weights;
  return r;
}

Rule rule_of(const LarsOptions& o) {
  Rule r;
  r.kind = RuleKind::kLars;
  r.lr = o.lr, r.momentum = o.momentum, r.dampening = o.dampening, r.weight_decay = o.weight_decay, r.eps = o.eps;
  r.trust_coefficient = o.trust_coefficient, r.nesterov = o.nesterov, r.maximize = o.maximize;
  r.master_weights = o.group.master_weights;
  return r;
}

namespace {

// The lists as slots, one step made, and the state put back. A list is read where the rule has that state.
void run(const Rule& rule, std::span<Tensor> params, std::span<const Tensor> grads,
         std::initializer_list<std::span<Tensor>> states, int64_t steps_done) {
  auto check_list = [&](size_t found, const char* what) {
    if (params.size() != found)
      fail_value("an update of {} parameters needs as many {}; found {}.", params.size(), what, found);
  };
  check_list(grads.size(), "gradients");
  std::vector<Slot> slots(params.size());
  int k = 0;
  for (auto list : states) {
    if (const char* name = state_name(rule, k)) {
      check_list(list.size(), name);
      for (size_t i = 0; i < slots.size(); ++i) at_index(slots[i].state, k) = list[i];
    }
    ++k;
  }
  for (size_t i = 0; i < slots.size(); ++i)
    slots[i].param = params[i], slots[i].grad = grads[i], slots[i].step = steps_done;
  update(rule, slots);
  k = 0;
  for (auto list : states) {
    if (state_name(rule, k))
      for (size_t i = 0; i < slots.size(); ++i) list[i] = at_index(slots[i].state, k);
    ++k;
  }
}

}  // namespace

void sgd_update(std::span<Tensor> params, std::span<const Tensor> grads, std::span<Tensor> momenta,
                const SgdOptions& options) {
  run(rule_of(options), params, grads, {momenta}, 0);
}

void adam_update(std::span<Tensor> params, std::span<const Tensor> grads, std::span<Tensor> exp_avgs,
                 std::span<Tensor> exp_avg_sqs, std::span<Tensor> max_exp_avg_sqs, int64_t step,
                 const AdamOptions& options) {
  if (step < 1) fail_value("adam_update: the step counts from 1, found {}.", step);
  run(rule_of(options), params, grads, {exp_avgs, exp_avg_sqs, max_exp_avg_sqs}, step - 1);
}

}  // namespace holon::optim
