#include "holon/optim/update.h"

#include <cstring>
#include <vector>

#include "holon/base/error.h"
#include "holon/kernels/cpu/optim.h"

namespace holon::optim {

namespace {

// The gradient in its parameter's layout. Collective where it must be boxed.
Tensor grad_like(const Tensor& param, const Tensor& grad) {
  if (param.is_local() || grad.spec() == param.spec()) return grad;
  NoGradGuard guard;
  return grad.to_global(param.placement(), param.nd_sbp());
}

DType state_dtype(DType param) { return size_bytes(param) == 2 ? float32 : param; }

void check_options(bool ok, const char* rule, const char* text) {
  if (!ok) fail_value("{}: {}", rule, text);
}

void check_list(size_t params, size_t found, const char* rule, const char* what) {
  if (params != found) fail_value("{}: {} parameters need as many {}; found {}.", rule, params, what, found);
}

void check_pair(const Tensor& p, const Tensor& g, const char* rule, size_t i) {
  if (!p.defined()) fail_value("{}: parameter {} is undefined.", rule, i);
  if (!is_floating(p.dtype()))
    fail_type("{}: parameter {} is of {}; only floating point parameters are updated. Leave it out.", rule, i, name(p.dtype()));
  if (!g.defined()) return;
  if (g.shape() != p.shape() || g.dtype() != p.dtype() || g.is_global() != p.is_global())
    fail_value("{}: parameter {} is {} {} {}, its gradient {} {} {}. They must be alike.", rule, i, p.is_global() ? "global" : "local",
               name(p.dtype()), p.shape(), g.is_global() ? "global" : "local", name(g.dtype()), g.shape());
}

void check_state(const Tensor& p, const Tensor& s, const char* rule, const char* what, size_t i) {
  if (!s.defined()) return;
  if (s.shape() != p.shape() || s.dtype() != state_dtype(p.dtype()) || s.spec() != p.spec())
    fail_value("{}: {} of parameter {} must be {} {} with the parameter's placement and sbp; found {} {}. Box or convert it first.",
               rule, what, i, name(state_dtype(p.dtype())), p.shape(), name(s.dtype()), s.shape());
}

// A state like its parameter, in the same memory order.
Tensor zeros_state(const Tensor& p) {
  Array a;
  if (p.array().defined()) {
    const Array& v = p.array();
    a = v.is_dense() ? Array::empty_strided(v.shape, v.strides, state_dtype(v.dtype), v.device)
                     : Array::empty(v.shape, state_dtype(v.dtype), v.device);
    if (a.numel() > 0) std::memset(a.bytes(), 0, a.nbytes());
  }
  if (p.is_local()) return Tensor::local(std::move(a));
  return Tensor::global(std::move(a), p.shape(), state_dtype(p.dtype()), p.spec());
}

// Calls f(i, gradient's local part) for every parameter with a gradient. Gradients are boxed on every rank, since that is
// collective; f runs where this rank has a part.
template <class F>
void for_parts(std::span<Tensor> params, std::span<const Tensor> grads, std::initializer_list<std::span<Tensor>> states, F&& f) {
  for (size_t i = 0; i < params.size(); ++i) {
    if (!grads[i].defined()) continue;
    Tensor grad = grad_like(params[i], grads[i]);
    bool first = false;
    for (auto list : states)
      if (!list.empty() && !list[i].defined()) {
        list[i] = zeros_state(params[i]);
        first = true;
      }
    const Array& part = params[i].array();
    if (!part.defined()) continue;
    f(i, grad.array(), first);
    ++part.storage->version;
    for (auto list : states)
      if (!list.empty()) ++list[i].array().storage->version;
  }
}

}  // namespace

void sgd_update(std::span<Tensor> params, std::span<const Tensor> grads, std::span<Tensor> momenta, const SgdOptions& options) {
  const char* rule = "sgd_update";
  check_options(options.momentum >= 0 && options.weight_decay >= 0, rule, "momentum and weight_decay must not be negative.");
  check_options(!options.nesterov || (options.momentum > 0 && options.dampening == 0), rule,
                "nesterov needs a momentum and no dampening.");
  bool momentum = options.momentum != 0;
  check_list(params.size(), grads.size(), rule, "gradients");
  if (momentum) check_list(params.size(), momenta.size(), rule, "momenta");
  for (size_t i = 0; i < params.size(); ++i) {
    check_pair(params[i], grads[i], rule, i);
    if (momentum) check_state(params[i], momenta[i], rule, "the momentum", i);
  }
  std::vector<kernels::SgdTensor> parts;
  for_parts(params, grads, {momentum ? momenta : std::span<Tensor>()}, [&](size_t i, const Array& grad, bool first) {
    parts.push_back({params[i].array(), grad, momentum ? momenta[i].array() : Array(), first});
  });
  kernels::sgd({options.lr, options.momentum, options.dampening, options.weight_decay, options.nesterov, options.maximize}, parts);
}

void adam_update(std::span<Tensor> params, std::span<const Tensor> grads, std::span<Tensor> exp_avgs,
                 std::span<Tensor> exp_avg_sqs, std::span<Tensor> max_exp_avg_sqs, int64_t step, const AdamOptions& options) {
  const char* rule = "adam_update";
  check_options(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1, rule,
                "beta1 and beta2 must lie in [0, 1).");
  check_options(options.eps >= 0 && options.weight_decay >= 0, rule, "eps and weight_decay must not be negative.");
  check_options(step >= 1, rule, "the step counts from 1.");
  check_list(params.size(), grads.size(), rule, "gradients");
  check_list(params.size(), exp_avgs.size(), rule, "exp_avgs");
  check_list(params.size(), exp_avg_sqs.size(), rule, "exp_avg_sqs");
  if (options.amsgrad) check_list(params.size(), max_exp_avg_sqs.size(), rule, "max_exp_avg_sqs");
  for (size_t i = 0; i < params.size(); ++i) {
    check_pair(params[i], grads[i], rule, i);
    check_state(params[i], exp_avgs[i], rule, "exp_avg", i);
    check_state(params[i], exp_avg_sqs[i], rule, "exp_avg_sq", i);
    if (options.amsgrad) check_state(params[i], max_exp_avg_sqs[i], rule, "max_exp_avg_sq", i);
    if (grads[i].defined() && params[i].is_global() && params[i].nd_sbp().has_partial())
      fail_value("{}: parameter {} is {}: the rule is not linear, so that parts of a sum cannot be updated one by one. Make the "
                 "parameter broadcast or split first.",
                 rule, i, params[i].nd_sbp());
  }
  std::vector<kernels::AdamTensor> parts;
  auto most = options.amsgrad ? max_exp_avg_sqs : std::span<Tensor>();
  for_parts(params, grads, {exp_avgs, exp_avg_sqs, most}, [&](size_t i, const Array& grad, bool) {
    parts.push_back({params[i].array(), grad, exp_avgs[i].array(), exp_avg_sqs[i].array(), options.amsgrad ? most[i].array() : Array(), step});
  });
  kernels::adam({options.lr, options.beta1, options.beta2, options.eps, options.weight_decay, options.decoupled, options.maximize}, parts);
}

}  // namespace holon::optim
