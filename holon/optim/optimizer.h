// Optimizers: groups of parameters with options, the state of each parameter, and one of the update rules.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "holon/optim/update.h"

namespace holon::optim {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every parameter that has a gradient. Collective where a gradient must be boxed.
  virtual void step() = 0;
  // Drops all gradients.
  void zero_grad();
  // Sets the learning rate of all groups.
  virtual void set_lr(double lr) = 0;
  // The first group's learning rate.
  virtual double lr() const = 0;
  virtual std::vector<Tensor> parameters() const = 0;
  // The state by name ("0.exp_avg": that of the first parameter), for a checkpoint; without entries that do not exist yet.
  virtual std::vector<std::pair<std::string, Tensor>> state() const = 0;

 protected:
  Optimizer() = default;
};

class SGD : public Optimizer {
 public:
  explicit SGD(std::vector<Tensor> params, const SgdOptions& options = {}) { add_group(std::move(params), options); }
  // Errors: an empty list; a parameter that is not a leaf, or is in a group already.
  void add_group(std::vector<Tensor> params, const SgdOptions& options);

  void step() override;
  void set_lr(double lr) override;
  double lr() const override { return groups_[0].options.lr; }
  std::vector<Tensor> parameters() const override;
  std::vector<std::pair<std::string, Tensor>> state() const override;

 private:
  struct Group {
    std::vector<Tensor> params, momenta;
    SgdOptions options;
  };
  std::vector<Group> groups_;
};

class Adam : public Optimizer {
 public:
  explicit Adam(std::vector<Tensor> params, const AdamOptions& options = {}) { add_group(std::move(params), options); }
  // Errors: as SGD::add_group.
  void add_group(std::vector<Tensor> params, const AdamOptions& options);

  void step() override;
  void set_lr(double lr) override;
  double lr() const override { return groups_[0].options.lr; }
  std::vector<Tensor> parameters() const override;
  std::vector<std::pair<std::string, Tensor>> state() const override;

 private:
  struct Group {
    std::vector<Tensor> params, exp_avgs, exp_avg_sqs, max_exp_avg_sqs;
    std::vector<int64_t> steps;  // of each parameter: one without a gradient does not count the step
    AdamOptions options;
  };
  std::vector<Group> groups_;
};

// Adam with decoupled weight decay, which is 0.01 unless the options say otherwise.
class AdamW : public Adam {
 public:
  explicit AdamW(std::vector<Tensor> params, AdamOptions options = {.weight_decay = 0.01}) : Adam(std::move(params), decoupled(options)) {}
  void add_group(std::vector<Tensor> params, const AdamOptions& options) { Adam::add_group(std::move(params), decoupled(options)); }

 private:
  static AdamOptions decoupled(AdamOptions options) {
    options.decoupled = true;
    return options;
  }
};

}  // namespace holon::optim
