#include "holon/graph/graph_core.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/fork.h"
#include "holon/base/index.h"
#include "holon/graph/cpp_optimizer.h"
#include "holon/graph/graph_entry.h"
#include "holon/graph/virtual_rank.h"
#include "holon/kernels/copy.h"
#include "holon/ops/create.h"
#include "holon/tensor/tracer.h"

namespace holon::nn {

namespace {

// Which graph updates a parameter. Ranks may be threads, so that all of a process are here.
struct Owners {
  struct Owner {
    uint64_t graph;
    std::string name;
  };
  ProcessMutex mutex;
  std::unordered_map<const TensorImpl*, Owner> of;
};
Owners& owners() {
  static auto* o = new Owners;  // never destroyed: graphs may be static objects
  return *o;
}

uint64_t next_number() {
  static std::atomic<uint64_t> n{1};
  return n++;
}

std::string str(const InputMeta& m) {
  return fmt::format("{} {}{}", holon::name(m.dtype), m.shape, m.spec ? " " + m.spec->str() : "");
}

std::string size_text(int64_t bytes) {
  if (bytes < 10 << 10) return fmt::format("{} B", bytes);
  if (bytes < 10 << 20) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / (1 << 10));
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

GraphCore::GraphCore() : number_(next_number()) {}

GraphCore::~GraphCore() {
  if (claimed_.empty()) return;
  std::lock_guard lock(owners().mutex);
  for (auto& p : claimed_)
    if (auto it = owners().of.find(p.impl()); it != owners().of.end() && it->second.graph == number_)
      owners().of.erase(it);
}

Module& GraphCore::root_for(const std::string& name) {
  if (name.empty() || name.find('.') != std::string::npos)
    fail_value("register_module: '{}' cannot be a name within a graph: a name is not empty and has no dot.", name);
  for (auto& [taken, m] : modules())
    if (taken == name) fail_value("register_module: the graph already has a module '{}'.", name);
  return root_;
}

void GraphCore::replace_module(const std::string& path, const Module& module) { root_.replace_module(path, module); }

GraphCore::Block& GraphCore::block_of(const Module& module, const char* call) {
  for (auto& [name, root] : modules()) {
    auto note = [&](const Module& m, std::string path) {
      Block& b = blocks_[m.identity()];
      b.path = std::move(path);
      b.module = m;
    };
    note(root, name);
    for (auto& [path, m] : root.named_modules()) note(m, name + "." + path);
  }
  auto it = blocks_.find(module.identity());
  if (it == blocks_.end())
    fail_value("{}: the module does not belong to this graph. Register it, or a module that contains it, by "
               "register_module() first.",
               call);
  return it->second;
}

void GraphCore::set_stage(const Module& module, int stage, const Placement* placement) {
  if (stage < 0) fail_value("set_stage: stage {}; stages are numbered from 0.", stage);
  Block& b = block_of(module, "set_stage");
  b.stage = stage;
  if (placement) b.placement = placements_.emplace_back(std::make_shared<Placement>(*placement)).get();
  forget_entries();
}

void GraphCore::set_activation_checkpointing(const Module& module, bool on) {
  block_of(module, "set_activation_checkpointing").checkpointing = on;
  forget_entries();
}

void GraphCore::add_optimizer(optim::Optimizer& optimizer, std::function<double(int64_t step)> lr) {
  add_optimizer(std::make_shared<CppOptimizer>(optimizer, std::move(lr)));
}

void GraphCore::add_optimizer(std::shared_ptr<GraphOptimizer> optimizer) {
  if (!entries_.empty())
    fail_runtime("add_optimizer: {} has been captured already. Add optimizers in the constructor.", name());
  optimizers_.push_back(std::move(optimizer));
}

namespace {
struct CppScaler final : GraphScaler {
  optim::GradScaler& of;
  explicit CppScaler(optim::GradScaler& s) : of(s) {}
  double scale() const override { return of.scale; }
  void stepped(bool finite) override { of.update(finite); }
};
}  // namespace

void GraphCore::set_grad_scaler(optim::GradScaler& scaler) { set_grad_scaler(std::make_shared<CppScaler>(scaler)); }

void GraphCore::set_grad_scaler(std::shared_ptr<GraphScaler> scaler) {
  scaler_ = std::move(scaler);
  forget_entries();
}

// A tensor with the scale's value, on the ranks and in the dtype of what backward() begins with.
Tensor GraphCore::scale_for(const Tensor& seed) {
  for (auto& t : scales_)
    if (t.dtype() == seed.dtype() && t.spec() == seed.spec() && t.impl()->device == seed.impl()->device) return t;
  TracerPause pause;
  OnesOptions o;
  o.dtype = seed.dtype();
  if (seed.is_global()) {
    o.placement = seed.placement();
    o.sbp = seed.nd_sbp();
  }
  return scales_.emplace_back(ones(Dims{}, o));
}

int GraphCore::find(std::span<const Tensor> inputs, uint64_t variant) const {
  if (last_ < entries_.size() && fits(*entries_[last_], inputs, variant)) return static_cast<int>(last_);
  for (size_t i = 0; i < entries_.size(); ++i)
    if (fits(*entries_[i], inputs, variant)) return static_cast<int>(i);
  return -1;
}

void GraphCore::claim_parameters() {
  std::lock_guard lock(owners().mutex);
  auto& of = owners().of;
  for (auto& o : optimizers_)
    for (size_t g = 0; g < o->n_groups(); ++g)
      for (auto& p : o->params(g))
        if (auto it = of.find(p.impl()); it != of.end() && it->second.graph != number_)
          fail_runtime(
              "{}: a parameter {} of its {} is updated by another graph, {}. Only one graph may update a parameter: "
              "put both steps into one graph, leave the optimizer out of this one, or delete the other first.",
              name(), p.shape(), o->name(), it->second.name);
  for (auto& o : optimizers_)
    for (size_t g = 0; g < o->n_groups(); ++g)
      for (auto& p : o->params(g))
        if (of.try_emplace(p.impl(), Owners::Owner{number_, name()}).second) claimed_.push_back(p);
}

void GraphCore::check_not_capturing() const {
  if (capturing_tracer()) [[unlikely]]
    fail_runtime(
        "{}: a graph is called inside another one's build(), which is being captured. Call the module itself there.",
        name());
}

int GraphCore::find_current(std::span<const Tensor> inputs, uint64_t variant) {
  int found = find(inputs, variant);
  if (found < 0 || !is_current(*at_index(entries_, found))) return -1;
  last_ = to_size(found);
  return found;
}

size_t GraphCore::entry_for(std::span<const Tensor> inputs, uint64_t variant) {
  check_not_capturing();
  int found = find_current(inputs, variant);
  if (found >= 0) return to_size(found);
  found = find(inputs, variant);
  std::shared_ptr<Entry> e = compile_entry(inputs, variant);
  if (found >= 0) {
    at_index(entries_, found) = e;
    return last_ = to_size(found);
  }
  entries_.push_back(e);
  return last_ = entries_.size() - 1;
}

// The states in the layout that the rule wants for the parameter. Collective where it is another one.
static void lay_out(optim::Slot& slot, const optim::Rule& rule, const Tensor& param) {
  NoGradGuard no_grad;
  auto bring = [](Tensor& t, const GlobalSpec* spec) {
    if (t.defined() && spec && t.spec() && t.spec() != spec) t = t.to_global(spec->placement, spec->nd_sbp);
  };
  for (Tensor& t : slot.state) bring(t, optim::state_spec(rule, param));
  bring(slot.master, optim::state_spec(rule, param));
}

// From here on the state of the optimizers is the step's.
void GraphCore::take_states(const std::shared_ptr<Entry>& e) {
  std::vector<bool> seen(optimizers_.size());
  for (auto& link : e->links) {
    GraphOptimizer& o = *optimizers_[link.optimizer];
    if (seen[link.optimizer]) continue;
    seen[link.optimizer] = true;
    if (o.borrower() == e.get()) continue;
    for (size_t u = 0; u < e->links.size(); ++u) {
      if (e->links[u].optimizer != link.optimizer) continue;
      auto slots = e->step->slots(u);
      o.read(e->links[u].group, e->links[u].params, slots);
      for (auto& slot : slots) lay_out(slot, e->step->rule(u), slot.param);
    }
    o.lend(e.get(), [e, port = optimizers_[link.optimizer], at = link.optimizer] {
      for (size_t u = 0; u < e->links.size(); ++u) {
        auto& own = e->links[u];
        if (own.optimizer != at) continue;
        auto lent = e->step->slots(u);
        std::vector<optim::Slot> slots(lent.begin(), lent.end());
        auto params = port->params(own.group);
        for (size_t i = 0; i < slots.size(); ++i) lay_out(slots[i], e->step->rule(u), params[own.params[i]]);
        port->write(own.group, own.params, slots);
      }
    });
  }
}

// Without keeping the memory of the one that ran last.
void GraphCore::forget_entries() {
  if (ran_) grad_norms_ = ran_->step->norms();
  ran_.reset();
  entries_.clear();
}

std::vector<double> GraphCore::grad_norms() const { return ran_ ? ran_->step->norms() : grad_norms_; }

std::vector<Tensor> GraphCore::run(size_t signature, std::span<const Tensor> inputs) {
  auto& e = entries_[signature];
  if (graph::is_virtual()) return run_step(*e->step, inputs);
  if (!e->links.empty()) take_states(e);
  const bool scaled = scaler_ && !e->links.empty();
  if (scaled) {
    const double scale = scaler_->scale();
    e->step->set_loss_scale(scale);
    for (auto& t : scales_)
      if (Array a = t.array(); a.defined()) kernels::fill(a, Scalar(scale));
  }
  auto outputs = run_step(*e->step, inputs);
  ran_ = e;
  for (auto& o : optimizers_) o->stepped();
  if (auto& recipe = config.float8_recipe(); recipe && !e->links.empty()) recipe->update();
  if (scaled) {
    auto finite = e->step->finite();
    scaler_->stepped(std::all_of(finite.begin(), finite.end(), [](uint8_t f) { return f != 0; }));
  }
  return outputs;
}

std::vector<Tensor> GraphCore::call(std::span<const Tensor> inputs, uint64_t variant, size_t* signature) {
  size_t at = entry_for(inputs, variant);
  if (signature) *signature = at;
  return run(at, inputs);
}

void GraphCore::set_variant(size_t signature, uint64_t variant) { entries_[signature]->variant = variant; }

graph::StepStats GraphCore::stats(size_t signature) const {
  graph::StepStats s = step(signature).stats();
  s.capture_s = entries_[signature]->capture_s;
  return s;
}

const graph::Step& GraphCore::step(size_t signature) const {
  if (signature >= entries_.size()) fail(ErrorKind::kIndex, "step: signature {} of {}.", signature, entries_.size());
  return *entries_[signature]->step;
}

std::string GraphCore::describe() const {
  std::string text;
  for (auto& [name, m] : modules()) text += fmt::format("  ({}): {} parameters\n", name, m.parameter_count());
  for (auto& o : optimizers_) text += "  (optimizer): " + o->name() + "\n";
  return text;
}

std::string GraphCore::str() const {
  std::string text = name() + "(\n";
  if (auto c = config.str(); !c.empty()) text += "  (config): " + c + "\n";
  text += describe();
  if (entries_.empty()) text += "  not captured yet: call it, or compile(inputs)\n";
  for (size_t i = 0; i < entries_.size(); ++i) {
    auto& e = *entries_[i];
    std::string in;
    for (auto& m : e.inputs) in += (in.empty() ? "" : ", ") + nn::str(m);
    auto& s = e.step->stats();
    text += fmt::format("  (signature {}): ({}){}\n    {} nodes captured, {} after the passes; {} instructions on this "
                        "rank; memory {} of {}\n"
                        "    capture {:.1f} ms, passes {:.1f} ms, lowering {:.1f} ms\n",
                        i, in, e.grad ? "" : ", no_grad", s.captured_nodes, s.nodes, s.instructions,
                        size_text(s.arena_bytes), size_text(s.sum_bytes), e.capture_s * 1e3, s.passes_s * 1e3,
                        s.lowering_s * 1e3);
    std::string passes = e.step->passes();
    for (size_t from = 0; from < passes.size();) {
      size_t end = std::min(passes.find('\n', from), passes.size());
      text += "    " + passes.substr(from, end - from) + "\n";
      from = end + 1;
    }
  }
  return text + ")";
}

std::string GraphCore::plan() const {
  std::string text;
  for (auto& e : entries_) text += e->step->plan();
  return text;
}

std::string GraphCore::captured() const {
  std::string text;
  for (auto& e : entries_)
    for (auto& variant : e->captured) text += graph::str(variant);
  return text;
}

GraphState GraphCore::state_dict() const {
  GraphState state;
  for (auto& [name, m] : modules())
    for (auto& [path, t] : m.state_dict()) state.modules.emplace_back(name + "." + path, t);
  for (auto& o : optimizers_)
    if (auto* own = dynamic_cast<CppOptimizer*>(o.get())) {
      state.optimizers.push_back(own->optimizer().state_dict());
      state.steps.push_back(own->step());
    }
  return state;
}

void GraphCore::load_state_dict(const GraphState& state) {
  std::vector<CppOptimizer*> own;
  for (auto& o : optimizers_)
    if (auto* c = dynamic_cast<CppOptimizer*>(o.get())) own.push_back(c);
  if (own.size() != state.optimizers.size() || own.size() != state.steps.size())
    fail_value("load_state_dict: it has {} optimizers, the graph {}.", state.optimizers.size(), own.size());
  for (auto& [name, m] : modules()) {
    StateDict part;
    for (auto& [path, t] : state.modules)
      if (path.compare(0, name.size() + 1, name + ".") == 0) part.emplace_back(path.substr(name.size() + 1), t);
    m.load_state_dict(part);
  }
  for (size_t i = 0; i < own.size(); ++i) {
    own[i]->optimizer().load_state_dict(state.optimizers[i]);
    own[i]->set_step(state.steps[i]);
  }
}

}  // namespace holon::nn
