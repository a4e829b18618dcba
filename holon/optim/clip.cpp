#include <algorithm>
#include <cmath>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/kernels/cpu/copy.h"
#include "holon/kernels/cpu/optim.h"
#include "holon/optim/update.h"

namespace holon::optim {

namespace {

double part_of(const Tensor& g) { return g.array().defined() ? kernels::squared_norm(g.array()) : 0; }

// The sum over the ranks of what each holds of tensors of one layout: a split part counts on each rank, a broadcast copy once.
double add_over_ranks(double local, const GlobalSpec* spec) {
  NdSbp nd_sbp = spec->nd_sbp;
  for (int d = 0; d < nd_sbp.size(); ++d)
    if (nd_sbp[d].is_split()) nd_sbp = nd_sbp.with(d, sbp::partial_sum());
  Array part;
  if (spec->placement.contains(Context::current().rank())) {
    part = Array::empty({}, float64, spec->placement.device());
    *part.data<double>() = local;
  }
  return Tensor::global(part, {}, float64, intern_spec(spec->placement, nd_sbp)).item().as_double();
}

// A new array, since two gradients may share their memory.
Array scaled(const Array& a, double factor) {
  if (!a.defined()) return a;
  Array out = Array::empty(a.shape, a.dtype, a.device);
  kernels::copy(a, out);
  kernels::scale(out, factor);
  return out;
}

}  // namespace

double clip_grad_norm(std::span<const Tensor> params, double max_norm, bool error_if_nonfinite) {
  if (!(max_norm >= 0)) fail_value("clip_grad_norm: max_norm must not be negative, found {}.", max_norm);
  NoGradGuard guard;
  double total = 0;
  // In the order of first use, so that every rank adds up the layouts in the same order.
  std::vector<std::pair<const GlobalSpec*, double>> by_spec;
  for (auto& p : params) {
    Tensor g = p.defined() ? p.grad() : Tensor();
    if (!g.defined()) continue;
    if (g.is_local()) {
      total += part_of(g);
      continue;
    }
    // The square of a sum is not the sum of the squares: addends come together first.
    if (g.nd_sbp().has_partial()) g = g.to_global(g.placement(), NdSbp::filled(g.nd_sbp().size(), sbp::broadcast()));
    auto found = std::find_if(by_spec.begin(), by_spec.end(), [&](auto& e) { return e.first == g.spec(); });
    if (found == by_spec.end()) found = by_spec.insert(by_spec.end(), {g.spec(), 0.0});
    found->second += part_of(g);
  }
  for (auto& [spec, local] : by_spec) total += add_over_ranks(local, spec);
  double norm = std::sqrt(total);
  if (error_if_nonfinite && !std::isfinite(norm))
    fail_runtime("clip_grad_norm: the gradients' norm is {}. Look for the parameter whose gradient is not finite, or lower the "
                 "learning rate.",
                 norm);
  double factor = max_norm / (norm + 1e-6);
  if (!(factor < 1)) return norm;
  for (Tensor p : params) {
    Tensor g = p.defined() ? p.grad() : Tensor();
    if (!g.defined()) continue;
    Array a = scaled(g.array(), factor);
    p.set_grad(g.is_local() ? Tensor::local(std::move(a)) : Tensor::global(std::move(a), g.shape(), g.dtype(), g.spec()));
  }
  return norm;
}

}  // namespace holon::optim
