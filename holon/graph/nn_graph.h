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
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "holon/graph/options/options.h"
#include "holon/graph/step_stats.h"
#include "holon/nn/module.h"
#include "holon/optim/grad_scaler.h"
#include "holon/optim/optimizer.h"

namespace holon::graph {
class Capture;
struct Graph;
struct MicroBatches;
class Step;
}  // namespace holon::graph

namespace holon::nn {

// What is asked of compilation. A change counts from the next call on, which captures again.
class GraphConfig {
 public:
  // Any option by its name (options.h); the calls below are those for which a name says too little. Errors:
  // set_option().
  void set(std::string_view name, graph::OptionValue value);
  graph::OptionValue get(std::string_view name) const { return get_option(options_, name); }

  // build() runs in an autocast region; parameters stay as they are. Errors: neither bfloat16 nor float16.
  void enable_amp(bool on = true, DType dtype = bfloat16);
  // The inputs' rows are cut into n micro-batches, each with its share of the mean gradient (backward() divides by n).
  // uneven: where n does not divide each rank's rows, the first micro-batches have a row more, and where there are
  // fewer rows than n there are fewer micro-batches. Gradients are then weighed by rows, and so is an output without
  // rows, such as a mean loss: the mean over its micro-batches is that of the batch. Errors: n < 1.
  void set_gradient_accumulation_steps(int n, bool uneven = false) {
    set("micro_batches", int64_t{n});
    set("uneven", uneven);
  }
  // Splits over data-parallel ranks the state of optimizers (stage 1), gradients too (2), parameters too (3).
  // Parameters of fewer than min_elements stay whole.
  void enable_zero(bool on = true, int stage = 1, int64_t min_elements = 1);
  // Inner values are computed again in backward until a rank needs no more than this. 0: no limit.
  void set_memory_budget(int64_t bytes) { set("memory_budget_bytes", bytes); }
  // How stages and micro-batches follow each other: the name of a scheme (schedule/scheme.h), such as "gpipe", "1f1b",
  // "interleaved" or "zero_bubble", or "auto": zero_bubble where each stage has its own ranks, else 1f1b. Errors: no
  // scheme has the name.
  void set_schedule(const std::string& schedule) { set("schedule", schedule); }
  // The graph's modules are cut into so many stages by cost, where none has its own stage, and their parameters
  // moved to the stages' placements: those given, else those of the parameters cut along their first axis. A block that
  // is cut between is a direct child of a registered module, or in a Sequential or ModuleList, whose children are
  // numbered. Counts for the first capture. Errors: n < 1; another number of placements.
  void set_stages(int n, std::vector<Placement> placements = {});
  void set_bucket_bytes(int64_t bytes) { set("bucket_bytes", bytes); }
  void disable_passes(std::vector<std::string> names) { set("disabled_passes", std::move(names)); }
  // The graph is checked after each pass.
  void verify(bool on = true) { set("verify", on); }

  // What is set; revision() counts the changes.
  const graph::CompileOptions& options() const { return options_; }
  int micro_batches() const { return static_cast<int>(options_.micro_batches); }
  int stages() const { return stages_; }
  const std::vector<Placement>& placements() const { return placements_; }
  uint64_t revision() const { return revision_; }
  // What differs from the defaults: "4 micro-batches, schedule 1f1b"; "" for nothing.
  std::string str() const { return graph::str(options_); }

 private:
  int stages_ = 0;
  std::vector<Placement> placements_;
  graph::CompileOptions options_;
  uint64_t revision_ = 0;
};

// How a graph reaches an optimizer, of this library or of a language over it. The state is at one place at a time: the
// graph reads it before its first step and gives it back when somebody asks.
class GraphOptimizer {
 public:
  // The options of a group of parameters.
  struct Group {
    optim::Rule rule;
    double clip_grad_max_norm = -1, clip_grad_norm_type = 2;
    size_t n_params = 0;
  };
  virtual ~GraphOptimizer() = default;
  // For messages; and its groups of parameters.
  virtual std::string name() const = 0;
  virtual size_t n_groups() const = 0;
  virtual Group group(size_t i) const = 0;  // as its options are now
  // The parameters of a group.
  virtual std::vector<Tensor> params(size_t i) const = 0;
  // Puts the states of these parameters of a group into the slots, or takes them over.
  virtual void read(size_t group, std::span<const size_t> params, std::span<optim::Slot> slots) = 0;
  virtual void write(size_t group, std::span<const size_t> params, std::span<const optim::Slot> slots) = 0;
  // Whoever asks for the state next calls give_back() first. borrower: who has it now, or nullptr.
  virtual void lend(const void* borrower, std::function<void()> give_back) = 0;
  virtual const void* borrower() const = 0;
  // After a call of the graph: a schedule goes on by one step.
  virtual void stepped() {}
};

// How a graph reaches a scaler of losses.
class GraphScaler {
 public:
  virtual ~GraphScaler() = default;
  virtual double scale() const = 0;  // of the next step
  // After a call: whether all gradients were finite. Optimizers whose were not have done nothing.
  virtual void stepped(bool finite) = 0;
};

// A state of the parameter's, in the layout that the rule wants for it: ZeRO splits states. Collective where it is
// another one.
Tensor state_for(const optim::Rule& rule, const Tensor& param, const Tensor& state);

class Graph {
 public:
  Graph();
  virtual ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // What a call computes. Called while the graph is captured, with inputs that have no values.
  virtual std::vector<Tensor> build(TensorList inputs) = 0;

  GraphConfig config;

  // Runs build(), compiled. Collective where it communicates. Errors: what build() and the passes raise; a call from
  // inside another graph's build(); a parameter that another graph updates.
  std::vector<Tensor> operator()(TensorList inputs) { return call(inputs, 0); }
  template <class... T>
  requires(std::convertible_to<T, Tensor>&&...) std::vector<Tensor>
  operator()(const T&... inputs) {
    const Tensor list[] = {inputs..., Tensor()};
    return call({list, sizeof...(T)}, 0);
  }
  // Captures and compiles for inputs like these, which are not read. Collective.
  void compile(TensorList examples) { entry_for(examples, 0); }

  // A line for each signature that was compiled, with what came of it. Modules and the config are before.
  std::string str() const;
  // This rank's instructions, and the graph as it was captured, of each signature.
  std::string plan() const;
  std::string captured() const;
  size_t n_signatures() const { return entries_.size(); }
  // Of a signature, in order of their first calls. Errors: there is none of this number.
  graph::StepStats stats(size_t signature) const;
  const graph::Step& step(size_t signature) const;
  // By what the last call clipped gradients, before it did: the norms of optim::clip_grad_norm_() in build() in the
  // order of the calls, then of the optimizers' groups with a clip_grad_max_norm, as Optimizer::clip_grad() returns
  // them. Empty before the first call.
  const std::vector<double>& grad_norms() const { return grad_norms_; }

  // The modules' parameters and buffers ("net.fc1.weight"), and the optimizers' states in the order of add_optimizer().
  struct State {
    StateDict modules;
    std::vector<optim::StateDict> optimizers;
    std::vector<int64_t> steps;  // of their learning rates
  };
  State state_dict() const;
  void load_state_dict(const State& state);

 protected:
  // Names the module for messages, stages and state_dict(). Errors: a name that is taken or has a dot.
  template <class M>
  M&& register_module(const std::string& name, M&& module) {
    add_module(name, module);
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

  // For front ends in other languages.
  void add_optimizer(std::shared_ptr<GraphOptimizer> optimizer);
  void set_grad_scaler(std::shared_ptr<GraphScaler> scaler);  // nullptr: none
  // variant: what else the signature depends on.
  std::vector<Tensor> call(std::span<const Tensor> inputs, uint64_t variant, size_t* signature = nullptr);
  // The number of the compiled signature, or -1.
  int find(std::span<const Tensor> inputs, uint64_t variant) const;
  // The same, of one that is still valid: parameters are in the same memory, options of optimizers fit. Takes over new
  // rates.
  int find_current(std::span<const Tensor> inputs, uint64_t variant);
  size_t entry_for(std::span<const Tensor> inputs, uint64_t variant);
  // What build() does with inputs like these; nothing is compiled.
  graph::Graph capture(std::span<const Tensor> inputs);
  std::vector<Tensor> run(size_t signature, std::span<const Tensor> inputs);
  void set_variant(size_t signature, uint64_t variant);
  void check_not_capturing() const;
  virtual std::string name() const;      // of the class
  virtual std::string describe() const;  // modules, stages and optimizers
  // Called before and after build() is captured.
  virtual void capture_begins(graph::Capture&) {}
  virtual void capture_ends(graph::Capture&) {}
  virtual void compile_options(graph::CompileOptions*) const {}  // adds what is not in the config
  // Runs a compiled step.
  virtual std::vector<Tensor> run_step(graph::Step& step, std::span<const Tensor> inputs);

 private:
  friend class ModuleScopes;
  struct Entry;
  struct Block {
    std::string path;
    int stage = -1;
    const Placement* placement = nullptr;
    bool checkpointing = false;
  };
  void add_module(const std::string& name, const Module& module);
  Block& block_of(const Module& module, const char* call);
  std::unique_ptr<Entry> capture_entry(std::span<const Tensor> inputs, uint64_t variant);
  std::unique_ptr<Entry> compile_entry(std::span<const Tensor> inputs, uint64_t variant);
  graph::Graph capture_variant(std::span<const Tensor> inputs, const graph::MicroBatches& all, int variant, Entry& e);
  std::vector<Tensor> run_build(std::span<const Tensor> symbols);
  void cut_into_stages(std::span<const Tensor> inputs);
  bool fits(const Entry& e, std::span<const Tensor> inputs, uint64_t variant) const;
  bool is_current(Entry& e);
  void claim_parameters();
  void take_states(const std::shared_ptr<Entry>& e);
  Tensor scale_for(const Tensor& seed);

  std::vector<std::pair<std::string, Module>> modules_;
  std::unordered_map<const void*, Block> blocks_;
  std::vector<std::shared_ptr<Placement>> placements_;
  std::vector<std::shared_ptr<GraphOptimizer>> optimizers_;
  std::shared_ptr<GraphScaler> scaler_;
  std::vector<Tensor> scales_;  // the scale, where losses are
  std::vector<std::shared_ptr<Entry>> entries_;
  std::vector<const Placement*>
      input_placements_;  // where inputs are brought, after a cut into stages; nullptr: nowhere
  std::vector<Tensor> claimed_;
  std::vector<double> grad_norms_;
  size_t last_ = 0;
  const uint64_t number_;
};

// Stages of a pipeline by module path. Errors (ValueError): a number is skipped, naming the path that comes after the
// gap.
void check_stages(const std::string& graph, std::span<const std::pair<std::string, int>> stages);
// x on the placement: under its own sbp where that has as many axes, else broadcast. Local tensors stay.
Tensor on_stage(const Tensor& x, const Placement& placement);

}  // namespace holon::nn
