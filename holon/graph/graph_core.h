// GraphCore: what an nn::Graph does, for the front ends of this library and of other languages, which derive from it.
// Users derive from nn::Graph, which has one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "holon/graph/capture/capture.h"
#include "holon/graph/graph_config.h"
#include "holon/graph/nn_graph.h"
#include "holon/graph/step.h"
#include "holon/optim/grad_scaler.h"
#include "holon/optim/optimizer.h"

namespace holon::nn {

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

class GraphCore {
 public:
  GraphCore();
  virtual ~GraphCore();
  GraphCore(const GraphCore&) = delete;
  GraphCore& operator=(const GraphCore&) = delete;

  // See nn::Graph, whose functions of the same names these are.
  virtual std::vector<Tensor> build(TensorList inputs) = 0;
  GraphConfig config;
  void compile(std::span<const Tensor> examples) { entry_for(examples, 0); }
  std::string str() const;
  std::string plan() const;
  std::string captured() const;
  size_t n_signatures() const { return entries_.size(); }
  graph::StepStats stats(size_t signature) const;
  const graph::Step& step(size_t signature) const;
  std::vector<double> grad_norms() const;
  GraphState state_dict() const;
  void load_state_dict(const GraphState& state);
  // Of the graph's modules. Errors: a name that is taken or has a dot.
  Module& root_for(const std::string& name);
  void registered(const Module& module) { block_of(module, "register_module"); }
  void replace_module(const std::string& path, const Module& module);
  void add_optimizer(optim::Optimizer& optimizer, std::function<double(int64_t step)> lr = {});
  void add_optimizer(std::shared_ptr<GraphOptimizer> optimizer);
  void set_grad_scaler(optim::GradScaler& scaler);
  void set_grad_scaler(std::shared_ptr<GraphScaler> scaler);  // nullptr: none
  void set_stage(const Module& module, int stage, const Placement* placement = nullptr);
  void set_activation_checkpointing(const Module& module, bool on);

  // Runs build(), compiled. variant: what else the signature depends on.
  std::vector<Tensor> call(std::span<const Tensor> inputs, uint64_t variant, size_t* signature = nullptr);
  // The number of the compiled signature, or -1.
  int find(std::span<const Tensor> inputs, uint64_t variant) const;
  // The same, of one that is still valid: modules have what they had, parameters are in the same memory, options of
  // optimizers fit. Takes over new rates.
  int find_current(std::span<const Tensor> inputs, uint64_t variant);
  size_t entry_for(std::span<const Tensor> inputs, uint64_t variant);
  // What build() does with inputs like these; nothing is compiled.
  graph::Graph capture(std::span<const Tensor> inputs);
  std::vector<Tensor> run(size_t signature, std::span<const Tensor> inputs);
  void set_variant(size_t signature, uint64_t variant);
  void check_not_capturing() const;

 protected:
  virtual std::string name() const = 0;  // of the graph, for messages
  virtual std::string describe() const;  // modules, stages and optimizers
  // Called before and after build() is captured.
  virtual void capture_begins(graph::Capture&) {}
  virtual void capture_ends(graph::Capture&) {}
  virtual void compile_options(graph::CompileOptions*) const {}  // adds what is not in the config
  // Runs a compiled step.
  virtual std::vector<Tensor> run_step(graph::Step& step, std::span<const Tensor> inputs) { return step.run(inputs); }

 private:
  friend class ModuleScopes;
  struct Entry;
  struct Block {
    std::optional<Module> module;  // held, so that its identity stays its own
    std::string path;
    int stage = -1;
    const Placement* placement = nullptr;
    bool checkpointing = false;
  };
  std::vector<std::pair<std::string, Module>> modules() const { return root_.named_children(); }
  Block& block_of(const Module& module, const char* call);
  std::unique_ptr<Entry> capture_entry(std::span<const Tensor> inputs, uint64_t variant);
  std::string name_in_contract(std::span<const Tensor> inputs) const;
  std::unique_ptr<Entry> compile_entry(std::span<const Tensor> inputs, uint64_t variant);
  graph::Graph capture_variant(std::span<const Tensor> inputs, const graph::MicroBatches& all, int variant, Entry& e);
  std::vector<Tensor> run_build(std::span<const Tensor> symbols);
  void cut_into_stages(std::span<const Tensor> inputs);
  bool fits(const Entry& e, std::span<const Tensor> inputs, uint64_t variant) const;
  bool is_current(Entry& e);
  void forget_entries();
  void claim_parameters();
  void take_states(const std::shared_ptr<Entry>& e);
  Tensor scale_for(const Tensor& seed);

  Module root_;  // of the graph's modules
  std::unordered_map<const void*, Block> blocks_;
  std::vector<std::shared_ptr<Placement>> placements_;
  std::vector<std::shared_ptr<GraphOptimizer>> optimizers_;
  std::shared_ptr<GraphScaler> scaler_;
  std::vector<Tensor> scales_;  // the scale, where losses are
  std::vector<std::shared_ptr<Entry>> entries_;
  std::vector<const Placement*>
      input_placements_;  // where inputs are brought, after a cut into stages; nullptr: nowhere
  std::vector<Tensor> claimed_;
  std::shared_ptr<const Entry> ran_;  // by the last call
  std::vector<double> grad_norms_;    // of the last call, if its entry is gone
  size_t last_ = 0;
  const uint64_t number_;
};

// Stages of a pipeline by module path. Errors (ValueError): a number is skipped, naming the path that comes after the
// gap.
void check_stages(const std::string& graph, std::span<const std::pair<std::string, int>> stages);
// x on the placement: under its own sbp where that has as many axes, else broadcast. Local tensors stay.
Tensor on_stage(const Tensor& x, const Placement& placement);

}  // namespace holon::nn
