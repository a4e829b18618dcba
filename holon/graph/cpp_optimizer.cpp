#include "holon/graph/cpp_optimizer.h"

#include <utility>

#include "holon/base/fmt.h"

namespace holon::nn {

Tensor state_for(const optim::Rule& rule, const Tensor& param, const Tensor& state) {
  const GlobalSpec* spec = optim::state_spec(rule, param);
  if (!state.defined() || !spec || state.spec() == spec) return state;
  NoGradGuard no_grad;
  return state.to_global(spec->placement, spec->nd_sbp);
}

namespace {

void copy_state(const optim::Rule& rule, const optim::Slot& from, optim::Slot& to) {
  to.master = state_for(rule, to.param, from.master);
  for (size_t k = 0; k < to.state.size(); ++k) to.state[k] = state_for(rule, to.param, from.state[k]);
  to.step = from.step;
}

}  // namespace

CppOptimizer::CppOptimizer(optim::Optimizer& optimizer, std::function<double(int64_t step)> lr)
    : optimizer_(optimizer), lr_(std::move(lr)) {
  set_step(0);
}

std::string CppOptimizer::name() const {
  return fmt::format("an optimizer of {} parameters", optimizer_.parameters().size());
}

GraphOptimizer::Group CppOptimizer::group(size_t i) const {
  auto& o = optimizer_.group_options(i);
  return {optimizer_.rule(i), o.clip_grad_max_norm, o.clip_grad_norm_type, optimizer_.n_parameters(i)};
}

void CppOptimizer::read(size_t group, std::span<const size_t> params, std::span<optim::Slot> slots) {
  auto own = optimizer_.slots(group);
  for (size_t i = 0; i < params.size(); ++i) copy_state(optimizer_.rule(group), own[params[i]], slots[i]);
}

void CppOptimizer::write(size_t group, std::span<const size_t> params, std::span<const optim::Slot> slots) {
  auto own = optimizer_.slots(group);
  for (size_t i = 0; i < params.size(); ++i) copy_state(optimizer_.rule(group), slots[i], own[params[i]]);
}

void CppOptimizer::lend(const void* borrower, std::function<void()> give_back) {
  optimizer_.lend_state(borrower, std::move(give_back));
}

void CppOptimizer::set_step(int64_t step) {
  step_ = step;
  if (lr_) optimizer_.set_lr(lr_(step_));
}

}  // namespace holon::nn
