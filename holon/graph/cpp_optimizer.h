// How a graph reaches an optimizer of this library.
#pragma once

#include <functional>

#include "holon/graph/graph_core.h"

namespace holon::nn {

class CppOptimizer final : public GraphOptimizer {
 public:
  // lr: see Graph::add_optimizer(). The optimizer must outlive this.
  CppOptimizer(optim::Optimizer& optimizer, std::function<double(int64_t step)> lr);
  std::string name() const override;
  size_t n_groups() const override { return optimizer_.n_groups(); }
  Group group(size_t i) const override;
  std::vector<Tensor> params(size_t i) const override { return optimizer_.parameters(i); }
  void read(size_t group, std::span<const size_t> params, std::span<optim::Slot> slots) override;
  void write(size_t group, std::span<const size_t> params, std::span<const optim::Slot> slots) override;
  void lend(const void* borrower, std::function<void()> give_back) override;
  const void* borrower() const override { return optimizer_.borrower(); }
  void stepped() override {
    if (lr_) set_step(step_ + 1);
  }

  optim::Optimizer& optimizer() const { return optimizer_; }
  // Of the learning rate; 0 for ever without lr.
  int64_t step() const { return step_; }
  void set_step(int64_t step);

 private:
  optim::Optimizer& optimizer_;
  std::function<double(int64_t)> lr_;
  int64_t step_ = 0;
};

}  // namespace holon::nn
