// Optimizers: groups of parameters with options, the state of each parameter, and one of the update rules.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "holon/optim/update.h"

namespace holon::optim {

// What a checkpoint keeps of an optimizer. Tensors by parameter and name ("0.exp_avg": that of the first parameter,
// counted over all groups), numbers by parameter ("0.step") and by group ("group0.lr").
struct StateDict {
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::vector<std::pair<std::string, double>> numbers;
};

// Not thread-safe: one thread at a time uses an optimizer and the parameters that it updates.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every parameter that has a gradient. Collective where a gradient must be redistributed, and with LAMB and
  // LARS.
  void step();
  // The same after a closure that computes the gradients and returns the loss, which is returned.
  Tensor step(const std::function<Tensor()>& closure);
  // Drops all gradients, or fills them with zeros.
  void zero_grad(bool set_to_none = true);
  // Clips the gradients of the groups whose options give a clip_grad_max_norm. Groups with the same limit and
  // clip_grad_norm_type are clipped together, by the norm of all their gradients. Returns the norm before of each
  // limit, in the order of the groups (see clip_grad_norm_). Collective where a parameter is global.
  std::vector<Tensor> clip_grad(bool error_if_nonfinite = false);
  // Sets the learning rate of all groups.
  void set_lr(double lr);
  void set_lr(size_t group, double lr);
  // The first group's learning rate.
  double lr() const { return lr(0); }
  double lr(size_t group) const;
  size_t n_groups() const { return groups_.size(); }
  std::vector<Tensor> parameters() const;
  std::vector<Tensor> parameters(size_t group) const;
  size_t n_parameters(size_t group) const { return groups_.at(group).slots.size(); }
  const Rule& rule(size_t group) const { return groups_.at(group).rule; }
  const GroupOptions& group_options(size_t group) const { return groups_.at(group).options; }

  // The state by name, without entries that do not exist yet. The tensors are the optimizer's own.
  std::vector<std::pair<std::string, Tensor>> state() const;
  StateDict state_dict() const;
  // Takes copies, redistributed to the parameters' layout (collective for global ones). Errors (before anything is
  // changed), naming the entry: one that this optimizer has not, or a parameter with a part of its state only; another
  // shape or kind (local, global); a missing group.
  void load_state_dict(const StateDict& dict);

  // A graph's steps update the state instead of step(), from lend_state() on until somebody asks for it: give_back()
  // then puts it into slots(). borrower: who has it, nullptr for nobody.
  void lend_state(const void* borrower, std::function<void()> give_back);
  const void* borrower() const { return borrower_; }
  std::span<Slot> slots(size_t group);

 protected:
  Optimizer() = default;
  // Errors: an empty list; a parameter that is not a leaf, or is in a group already; options out of range.
  void add(std::vector<Tensor> params, const Rule& rule, const GroupOptions& options);

 private:
  struct Group {
    std::vector<Slot> slots;
    Rule rule;
    GroupOptions options;
  };
  void take_back() const;

  std::vector<Group> groups_;
  mutable const void* borrower_ = nullptr;
  mutable std::function<void()> give_back_;
};

// An optimizer whose groups have options of one type, one for each rule.
template <class Options>
class RuleOptimizer : public Optimizer {
 public:
  explicit RuleOptimizer(std::vector<Tensor> params, const Options& options = {}) {
    add_group(std::move(params), options);
  }
  // Errors: see Optimizer::add().
  void add_group(std::vector<Tensor> params, const Options& options) {
    add(std::move(params), rule_of(options), options.group);
  }
};

// The optimizers. Their options and update rules are those of holon/optim/update.h.
using SGD = RuleOptimizer<SgdOptions>;
using Adam = RuleOptimizer<AdamOptions>;
using AdamW = RuleOptimizer<AdamWOptions>;
using Adagrad = RuleOptimizer<AdagradOptions>;
using Adadelta = RuleOptimizer<AdadeltaOptions>;
using RMSprop = RuleOptimizer<RmspropOptions>;
using LAMB = RuleOptimizer<LambOptions>;
using LARS = RuleOptimizer<LarsOptions>;

}  // namespace holon::optim
