// nn::Graph: a whole training step, captured once for each kind of input and run as one compiled step.
//
//   struct Train : nn::Graph {
//     Net net;
//     optim::SGD sgd{net.parameters(), {.lr = 0.1}};
//     Train() { register_module("net", net); add_optimizer(sgd); }
//     std::vector<Tensor> build(TensorList in) override {
//       Tensor loss = cross_entropy(net(in[0]), in[1]);
//       loss.backward();
//       return {loss};
//     }
//   };
//   Train train;
//   Tensor loss = train(images, labels)[0];
//
// build() runs once for each signature: the shapes, dtypes, layouts and devices of the inputs, the gradient and
// autocast mode, the modules' training flags and the config. Nothing is computed meanwhile; later calls run what was
// recorded. A parameter's grad stays untouched. A parameter that gets other memory or another layout (to_global, to)
// is captured again.
//
// Not thread-safe: one thread at a time, always in the same context (holon/base/context.h), calls a graph.
//
// Ops, parameters and errors go by the modules' paths ("net.fc1"): calls of modules that derive from nn::Layer are
// seen.
//
// A module that a graph has registered is replaced by replace_module(); assigning to its variable is an Error.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "holon/graph/graph_config.h"
#include "holon/graph/step_stats.h"
#include "holon/nn/module.h"
#include "holon/optim/grad_scaler.h"
#include "holon/optim/optimizer.h"

namespace holon::graph {
class Step;
}

namespace holon::nn {

class GraphCore;

// What Graph::state_dict() returns: the modules' parameters and buffers ("net.fc1.weight"), and the optimizers' states
// in the order of add_optimizer().
struct GraphState {
  StateDict modules;
  std::vector<optim::StateDict> optimizers;
  std::vector<int64_t> steps;  // of their learning rates
};

// Names of this class are in scope where users derive from it: there are no others than these.
class Graph {
  std::unique_ptr<GraphCore> core_;  // before config

 public:
  Graph();
  virtual ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // What a call computes. Called while the graph is captured, with inputs that have no values.
  virtual std::vector<Tensor> build(TensorList inputs) = 0;

  GraphConfig& config;

  // Runs build(), compiled. Collective where it communicates. Errors: what build() and the passes raise; a call from
  // inside another graph's build(); a parameter that another graph updates.
  std::vector<Tensor> operator()(TensorList inputs);
  template <class... T>
  requires(std::convertible_to<T, Tensor>&&...) std::vector<Tensor>
  operator()(const T&... inputs) {
    const Tensor list[] = {inputs..., Tensor()};
    return (*this)(TensorList(std::span<const Tensor>(list, sizeof...(T))));
  }
  // Captures and compiles for inputs like these, which are not read. Collective.
  void compile(TensorList examples);

  // A line for each signature that was compiled, with what came of it. Modules and the config are before.
  std::string str() const;
  // This rank's instructions, and the graph as it was captured, of each signature.
  std::string plan() const;
  std::string captured() const;
  size_t n_signatures() const;
  // Of a signature, in order of their first calls. Errors: there is none of this number.
  graph::StepStats stats(size_t signature) const;
  const graph::Step& step(size_t signature) const;
  // By what the last call clipped gradients, before it did: the norms of optim::clip_grad_norm_() in build() in the
  // order of the calls, then of the optimizers' groups with a clip_grad_max_norm, as Optimizer::clip_grad() returns
  // them. Empty before the first call. Waits for a device on which they are clipped.
  std::vector<double> grad_norms() const;

  // What the modules and optimizers hold, by name. Errors of load_state_dict(): those of the modules' and optimizers'.
  GraphState state_dict() const;
  void load_state_dict(const GraphState& state);

  // Puts another module in place of the one at a path ("net", "net.fc1"), as Module::replace_module(): the next call
  // captures again. Optimizers keep the parameters that they have.
  void replace_module(const std::string& path, const Module& module);

 protected:
  // Names the module for messages, stages and state_dict(). Errors: a name that is taken or has a dot.
  template <class M>
  M&& register_module(const std::string& name, M&& module) {
    root_for(name).add_module(name, std::forward<M>(module), {.type = &typeid(void)});
    registered(module);
    return std::forward<M>(module);
  }
  // Updates the optimizer's parameters at the end of each call, and clips their gradients before as
  // Optimizer::clip_grad() would, where groups have a clip_grad_max_norm. lr: the learning rate of all groups at a
  // step, counted from 0 over the calls of this graph. The optimizer must outlive the graph. Errors: a call has
  // captured the graph already.
  void add_optimizer(optim::Optimizer& optimizer, std::function<double(int64_t step)> lr = {});
  // backward() in build() begins with the scaler's scale instead of 1, and gradients are divided by it before they are
  // clipped and updated. An optimizer with a gradient that is not finite leaves the step out. The scaler must outlive
  // the graph. Errors: build() gives backward() its own gradient.
  void set_grad_scaler(optim::GradScaler& scaler);
  // The module's ops belong to this stage of a pipeline; its first input is brought to the placement, under its own sbp
  // where that fits, else broadcast. Errors: a negative stage; a module that is none of this graph's.
  void set_stage(const Module& module, int stage, const Placement* placement = nullptr);
  void set_stage(const Module& module, int stage, const Placement& placement) { set_stage(module, stage, &placement); }
  // What the module computes inside is computed again in backward.
  void set_activation_checkpointing(const Module& module, bool on = true);

 private:
  Module& root_for(const std::string& name);
  void registered(const Module& module);
};

}  // namespace holon::nn
