// The update rules of optimizers and the clipping of gradients, on lists of tensors in which None stands for one that is
// not there. python/holon/optim keeps groups and state.
#include <vector>

#include "bind.h"
#include "holon/base/error.h"
#include "holon/optim/update.h"

namespace holon::python {

namespace {

std::vector<Tensor> tensor_list(nb::handle list) {
  std::vector<Tensor> result;
  result.reserve(nb::len(list));
  for (nb::handle item : list) {
    if (item.is_none()) {
      result.emplace_back();
      continue;
    }
    if (!is_tensor(item.ptr())) fail_type("a list of tensors is wanted here; it holds a {}.", Py_TYPE(item.ptr())->tp_name);
    result.push_back(tensor_of(item.ptr()));
  }
  return result;
}

nb::list python_list(const std::vector<Tensor>& tensors) {
  nb::list result;
  for (const Tensor& t : tensors) result.append(wrap_object(t));
  return result;
}

nb::list sgd_update(nb::handle params, nb::handle grads, nb::handle momenta, double lr, double momentum, double dampening,
                    double weight_decay, bool nesterov, bool maximize) {
  auto p = tensor_list(params), g = tensor_list(grads), m = tensor_list(momenta);
  {
    nb::gil_scoped_release released;
    optim::sgd_update(p, g, m, {.lr = lr, .momentum = momentum, .dampening = dampening, .weight_decay = weight_decay,
                                .nesterov = nesterov, .maximize = maximize});
  }
  return python_list(m);
}

nb::tuple adam_update(nb::handle params, nb::handle grads, nb::handle exp_avgs, nb::handle exp_avg_sqs,
                      nb::handle max_exp_avg_sqs, int64_t step, double lr, double beta1, double beta2, double eps,
                      double weight_decay, bool decoupled, bool amsgrad, bool maximize) {
  auto p = tensor_list(params), g = tensor_list(grads), m = tensor_list(exp_avgs), v = tensor_list(exp_avg_sqs),
       v_max = tensor_list(max_exp_avg_sqs);
  {
    nb::gil_scoped_release released;
    optim::adam_update(p, g, m, v, v_max, step, {.lr = lr, .beta1 = beta1, .beta2 = beta2, .eps = eps,
                                                 .weight_decay = weight_decay, .decoupled = decoupled, .amsgrad = amsgrad,
                                                 .maximize = maximize});
  }
  return nb::make_tuple(python_list(m), python_list(v), python_list(v_max));
}

double clip_grad_norm(nb::handle params, double max_norm, bool error_if_nonfinite) {
  auto p = tensor_list(params);
  nb::gil_scoped_release released;
  return optim::clip_grad_norm(p, max_norm, error_if_nonfinite);
}

}  // namespace

void bind_optim(nb::module_& m) {
  m.def("sgd_update", &sgd_update, nb::arg("params"), nb::arg("grads"), nb::arg("momenta"), nb::arg("lr"),
        nb::arg("momentum"), nb::arg("dampening"), nb::arg("weight_decay"), nb::arg("nesterov"), nb::arg("maximize"),
        "Updates params by SGD and returns the momenta, made where they were None. Collective where a gradient is boxed.");
  m.def("adam_update", &adam_update, nb::arg("params"), nb::arg("grads"), nb::arg("exp_avgs"), nb::arg("exp_avg_sqs"),
        nb::arg("max_exp_avg_sqs"), nb::arg("step"), nb::arg("lr"), nb::arg("beta1"), nb::arg("beta2"), nb::arg("eps"),
        nb::arg("weight_decay"), nb::arg("decoupled"), nb::arg("amsgrad"), nb::arg("maximize"),
        "Updates params by Adam (AdamW if decoupled) and returns the three lists of state, made where they were None.");
  m.def("clip_grad_norm", &clip_grad_norm, nb::arg("params"), nb::arg("max_norm"), nb::arg("error_if_nonfinite") = false,
        "Scales the gradients so that their common 2-norm is at most max_norm; returns the norm before.");
}

}  // namespace holon::python
