// The update rules of holon/optim over Python lists. A state is a list with None where a parameter has none yet; what the
// rule has made comes back in lists of the same lengths.
#include "args.h"
#include "holon/optim/update.h"

namespace holon::python {

namespace {

std::vector<Tensor> read(nb::handle list, const char* call, const char* argument) {
  std::vector<Tensor> v;
  if (!PyList_Check(list.ptr()) && !PyTuple_Check(list.ptr())) fail_type("{}: {} must be a list of Tensor, got {}.", call, argument, describe(list.ptr()));
  for (nb::handle item : nb::steal(checked(PySequence_Fast(list.ptr(), ""))))
    v.push_back(item.is_none() ? Tensor() : expect_tensor(item, call, argument));
  return v;
}

nb::list write(const std::vector<Tensor>& tensors) {
  nb::list l;
  for (auto& t : tensors) l.append(wrap_object(t));
  return l;
}

}  // namespace

void bind_optim(nb::module_& m) {
  using namespace nb::literals;
  m.def("sgd_update", [](nb::handle params, nb::handle grads, nb::handle momenta, double lr, double momentum, double dampening, double weight_decay,
                         bool nesterov, bool maximize) {
    std::vector<Tensor> p = read(params, "sgd_update", "params"), g = read(grads, "sgd_update", "grads"), v = read(momenta, "sgd_update", "momenta");
    optim::sgd_update(p, g, v, {lr, momentum, dampening, weight_decay, nesterov, maximize});
    return write(v);
  }, "params"_a, "grads"_a, "momenta"_a, "lr"_a, "momentum"_a = 0.0, "dampening"_a = 0.0, "weight_decay"_a = 0.0, "nesterov"_a = false,
        "maximize"_a = false, "One step of SGD; returns the momenta.");
  m.def("adam_update", [](nb::handle params, nb::handle grads, nb::handle exp_avgs, nb::handle exp_avg_sqs, nb::handle max_exp_avg_sqs, int64_t step,
                          double lr, double beta1, double beta2, double eps, double weight_decay, bool decoupled, bool amsgrad, bool maximize) {
    std::vector<Tensor> p = read(params, "adam_update", "params"), g = read(grads, "adam_update", "grads"), a = read(exp_avgs, "adam_update", "exp_avgs"),
                        s = read(exp_avg_sqs, "adam_update", "exp_avg_sqs"), x = read(max_exp_avg_sqs, "adam_update", "max_exp_avg_sqs");
    optim::adam_update(p, g, a, s, x, step, {lr, beta1, beta2, eps, weight_decay, decoupled, amsgrad, maximize});
    return nb::make_tuple(write(a), write(s), write(x));
  }, "params"_a, "grads"_a, "exp_avgs"_a, "exp_avg_sqs"_a, "max_exp_avg_sqs"_a, "step"_a, "lr"_a, "beta1"_a = 0.9, "beta2"_a = 0.999, "eps"_a = 1e-8,
        "weight_decay"_a = 0.0, "decoupled"_a = false, "amsgrad"_a = false, "maximize"_a = false,
        "One step of Adam, counted from 1; returns (exp_avgs, exp_avg_sqs, max_exp_avg_sqs).");
  m.def("clip_grad_norm", [](nb::handle params, double max_norm, bool error_if_nonfinite) {
    std::vector<Tensor> p = read(params, "clip_grad_norm", "params");
    return optim::clip_grad_norm(p, max_norm, error_if_nonfinite);
  }, "params"_a, "max_norm"_a, "error_if_nonfinite"_a = false, "Scales gradients to a total norm of at most max_norm; returns the norm before.");
}

}  // namespace holon::python
