#include "holon/optim/optimizer.h"

#include <algorithm>
#include <map>

#include "holon/base/error.h"

namespace holon::optim {

namespace {

void check_new_group(const std::vector<Tensor>& before, const std::vector<Tensor>& params) {
  if (params.empty()) fail_value("an optimizer got no parameters. Pass module.parameters().");
  for (size_t i = 0; i < params.size(); ++i) {
    auto& p = params[i];
    if (!p.defined()) fail_value("an optimizer got an undefined tensor as parameter {}.", i);
    if (!p.is_leaf()) fail_value("an optimizer got the result of an op as parameter {} {}. Pass the leaf that it was made from.", i, p.shape());
    if (std::find(before.begin(), before.end(), p) != before.end() || std::find(params.begin(), params.begin() + static_cast<long>(i), p) != params.begin() + static_cast<long>(i))
      fail_value("an optimizer got parameter {} {} twice. Each belongs to one group, once.", i, p.shape());
  }
}

std::vector<Tensor> gradients(const std::vector<Tensor>& params) {
  std::vector<Tensor> grads;
  for (auto& p : params) grads.push_back(p.grad());
  return grads;
}

template <class Groups>
std::vector<Tensor> all_params(const Groups& groups) {
  std::vector<Tensor> all;
  for (auto& g : groups) all.insert(all.end(), g.params.begin(), g.params.end());
  return all;
}

using State = std::vector<std::pair<std::string, Tensor>>;

void append(State& state, size_t index, const char* what, const Tensor& t) {
  if (t.defined()) state.emplace_back(std::to_string(index) + "." + what, t);
}

}  // namespace

void Optimizer::zero_grad() {
  for (Tensor p : parameters()) p.set_grad({});
}

void SGD::add_group(std::vector<Tensor> params, const SgdOptions& options) {
  check_new_group(parameters(), params);
  size_t n = params.size();
  groups_.push_back({std::move(params), std::vector<Tensor>(n), options});
}

void SGD::step() {
  for (auto& g : groups_) sgd_update(g.params, gradients(g.params), g.momenta, g.options);
}

void SGD::set_lr(double lr) {
  for (auto& g : groups_) g.options.lr = lr;
}

std::vector<Tensor> SGD::parameters() const { return all_params(groups_); }

State SGD::state() const {
  State state;
  size_t index = 0;
  for (auto& g : groups_)
    for (auto& m : g.momenta) append(state, index++, "momentum", m);
  return state;
}

void Adam::add_group(std::vector<Tensor> params, const AdamOptions& options) {
  check_new_group(parameters(), params);
  size_t n = params.size();
  std::vector<Tensor> none(n);
  groups_.push_back({std::move(params), none, none, none, std::vector<int64_t>(n, 0), options});
}

void Adam::step() {
  for (auto& g : groups_) {
    std::vector<Tensor> grads = gradients(g.params);
    // One call per number of steps done, which is one call unless some parameter once had no gradient.
    std::map<int64_t, std::vector<size_t>> by_step;
    for (size_t i = 0; i < grads.size(); ++i)
      if (grads[i].defined()) by_step[++g.steps[i]].push_back(i);
    for (auto& [step, indices] : by_step) {
      std::vector<Tensor> params, some, avgs, squares, most;
      for (size_t i : indices) {
        params.push_back(g.params[i]);
        some.push_back(grads[i]);
        avgs.push_back(g.exp_avgs[i]);
        squares.push_back(g.exp_avg_sqs[i]);
        most.push_back(g.max_exp_avg_sqs[i]);
      }
      adam_update(params, some, avgs, squares, most, step, g.options);
      for (size_t k = 0; k < indices.size(); ++k) {
        g.exp_avgs[indices[k]] = avgs[k];
        g.exp_avg_sqs[indices[k]] = squares[k];
        g.max_exp_avg_sqs[indices[k]] = most[k];
      }
    }
  }
}

void Adam::set_lr(double lr) {
  for (auto& g : groups_) g.options.lr = lr;
}

std::vector<Tensor> Adam::parameters() const { return all_params(groups_); }

State Adam::state() const {
  State state;
  size_t index = 0;
  for (auto& g : groups_)
    for (size_t i = 0; i < g.params.size(); ++i, ++index) {
      append(state, index, "exp_avg", g.exp_avgs[i]);
      append(state, index, "exp_avg_sq", g.exp_avg_sqs[i]);
      append(state, index, "max_exp_avg_sq", g.max_exp_avg_sqs[i]);
    }
  return state;
}

}  // namespace holon::optim
