#include "holon/conformance/gradients.h"

#include <algorithm>
#include <cmath>

#include "holon/autograd/engine.h"
#include "holon/base/fmt.h"
#include "holon/conformance/values.h"

namespace holon::conformance {

namespace {

struct Problem {
  const Subject& s;
  std::vector<std::vector<double>> values;

  explicit Problem(const Subject& subject) : s(subject) {
    for (size_t i = 0; i < s.in.size(); ++i) values.push_back(s.values(i));
  }

  TensorVec run(TensorVec* leaves = nullptr) const {
    TensorVec in;
    for (size_t i = 0; i < s.in.size(); ++i) {
      in.emplace_back();
      if (!s.has(i)) continue;
      in[i] = Tensor::local(array_of(values[i], s.in[i].shape, s.has_gradient(i) ? float64 : s.in[i].dtype));
      if (leaves && s.has_gradient(i)) in[i].set_requires_grad();
    }
    if (leaves) *leaves = in;
    return s.call(in, {}, {});
  }

  double loss(const TensorVec& roots, const TensorVec& outs) const {
    double sum = 0;
    for (size_t o = 0; o < outs.size(); ++o) {
      if (!roots[o].requires_grad()) continue;
      auto v = values_of(outs[o].array());
      for (size_t e = 0; e < v.size(); ++e) sum += output_weight(o, e) * v[e];
    }
    return sum;
  }
};

}  // namespace

std::string gradient_error(const Subject& s, bool* checked) {
  if (checked) *checked = false;
  Problem p(s);
  TensorVec leaves, outs = p.run(&leaves);
  std::vector<Tensor> roots, gradients;
  for (size_t o = 0; o < outs.size(); ++o) {
    if (!outs[o].requires_grad()) continue;
    std::vector<double> w(static_cast<size_t>(outs[o].numel()));
    for (size_t e = 0; e < w.size(); ++e) w[e] = output_weight(o, e);
    roots.push_back(outs[o]);
    gradients.push_back(Tensor::local(array_of(w, outs[o].shape(), outs[o].dtype())));
  }
  if (roots.empty()) return {};
  autograd::backward(roots, gradients, false, false);
  if (checked) *checked = true;
  NoGradGuard no_grad;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!leaves[i].defined() || !leaves[i].requires_grad()) continue;
    const Tensor g = leaves[i].grad();
    std::vector<double> analytic(p.values[i].size());
    if (g.defined()) {
      if (g.shape() != leaves[i].shape() || g.dtype() != float64)
        return fmt::format("input {}: the gradient is {} {}, not float64 {}", i, holon::name(g.dtype()), g.shape(),
                           leaves[i].shape());
      analytic = values_of(g.array());
    }
    for (size_t e = 0; e < analytic.size(); ++e) {
      const double before = p.values[i][e], h = 1e-5;
      p.values[i][e] = before + h;
      const double up = p.loss(outs, p.run());
      p.values[i][e] = before - h;
      const double down = p.loss(outs, p.run());
      p.values[i][e] = before;
      const double numeric = (up - down) / (2 * h);
      if (!(std::abs(analytic[e] - numeric) <= 1e-6 * std::max(1.0, std::abs(numeric))))
        return fmt::format("input {}, element {}: {}, but differences give {}", i, e, analytic[e], numeric);
    }
  }
  return {};
}

}  // namespace holon::conformance
