#include "holon/graph/nn_graph.h"

#include <cxxabi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <typeinfo>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/dispatch/autocast.h"
#include "holon/graph/cpp_optimizer.h"
#include "holon/kernels/cpu/copy.h"
#include "holon/ops.h"

namespace holon::nn {

namespace {

// Which graph updates a parameter. Ranks may be threads, so that all of a process are here.
struct Owners {
  struct Owner {
    uint64_t graph;
    std::string name;
  };
  std::mutex mutex;
  std::unordered_map<const TensorImpl*, Owner> of;
};
Owners& owners() {
  static Owners o;
  return o;
}

uint64_t next_number() {
  static std::atomic<uint64_t> n{1};
  return n++;
}

// What a compiled step has taken for granted of a tensor from outside. Where its memory lies may change.
struct Fingerprint {
  const TensorImpl* impl;  // held by the step's graph
  const GlobalSpec* spec;
  Dims shape, strides;
  DType dtype;
  bool requires_grad;

  explicit Fingerprint(const Tensor& t)
      : impl(t.impl()),
        spec(t.spec()),
        shape(t.shape()),
        strides(t.array().strides),
        dtype(t.dtype()),
        requires_grad(t.requires_grad()) {}
  bool holds() const {
    return impl->spec == spec && impl->requires_grad == requires_grad && impl->dtype == dtype && impl->shape == shape &&
        impl->array.strides == strides;
  }
};

struct InputMeta {
  Dims shape;
  DType dtype;
  const GlobalSpec* spec;
  Device device;
  bool requires_grad;
  bool operator==(const InputMeta&) const = default;
};
InputMeta meta_of(const Tensor& t) { return {t.shape(), t.dtype(), t.spec(), t.impl()->device, t.requires_grad()}; }
bool is_like(const InputMeta& m, const Tensor& t) {
  const TensorImpl& i = *t.impl();
  return m.dtype == i.dtype && m.spec == i.spec && m.requires_grad == i.requires_grad && m.shape == i.shape &&
      m.device == i.device;
}

std::string str(const InputMeta& m) {
  return fmt::format("{} {}{}", holon::name(m.dtype), m.shape, m.spec ? " " + m.spec->str() : "");
}

std::string size_text(int64_t bytes) {
  if (bytes < 10 << 10) return fmt::format("{} B", bytes);
  if (bytes < 10 << 20) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / (1 << 10));
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

// Whether slots made for one rule can go on with the other; the rates may differ.
bool same_state(const optim::Rule& a, const optim::Rule& b) {
  if (a.kind != b.kind || a.nesterov != b.nesterov || a.maximize != b.maximize || a.decoupled != b.decoupled ||
      a.bias_correction != b.bias_correction || a.master_weights != b.master_weights)
    return false;
  for (int i = 0; i < optim::kMaxStates; ++i)
    if (!optim::state_name(a, i) != !optim::state_name(b, i)) return false;
  return true;
}

// A capture begins without casts of parameters from outside, which would pass for constants, and leaves none of its own
// behind.
class FreshCasts {
 public:
  explicit FreshCasts(const GraphConfig& config) : before_(autocast_mode()) {
    clear_autocast_cache();
    if (config.amp()) exchange_autocast({true, config.amp_dtype(), true, before_.depth + 1});
  }
  ~FreshCasts() {
    exchange_autocast(before_);
    clear_autocast_cache();
  }
  FreshCasts(const FreshCasts&) = delete;
  FreshCasts& operator=(const FreshCasts&) = delete;

 private:
  AutocastMode before_;
};

}  // namespace

// A compiled signature. Optimizers that have lent it their state keep it alive until they have it back.
struct Graph::Entry {
  struct Link {
    size_t optimizer, group;
    std::vector<size_t> params;  // of slot i: its place in the group
    GraphOptimizer::Group seen;
  };
  std::vector<InputMeta> inputs;
  std::vector<std::pair<Module, bool>> training;  // the modules' flags
  uint64_t variant = 0, revision = 0;
  bool grad = true, autocast = false;
  DType autocast_dtype = bfloat16;
  std::vector<Fingerprint> externals;
  std::vector<Link> links;
  std::vector<size_t> n_groups;        // of each optimizer
  std::vector<graph::Graph> captured;  // for each form of micro-batches
  std::vector<int8_t> form_of;         // of each micro-batch; empty: there is one
  double capture_s = 0;
  std::unique_ptr<graph::Step> step;
};

Graph::Graph() : number_(next_number()) {}

Graph::~Graph() {
  if (claimed_.empty()) return;
  std::lock_guard lock(owners().mutex);
  for (auto& p : claimed_)
    if (auto it = owners().of.find(p.impl()); it != owners().of.end() && it->second.graph == number_)
      owners().of.erase(it);
}

std::string Graph::name() const {
  int status = 0;
  const char* mangled = typeid(*this).name();
  std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : mangled;
}

void Graph::add_module(const std::string& name, const Module& module) {
  if (name.empty() || name.find('.') != std::string::npos)
    fail_value("register_module: '{}' cannot be a name within a graph: it must not be empty and have no dot.", name);
  for (auto& [taken, m] : modules_)
    if (taken == name) fail_value("register_module: the graph has a module '{}' already.", name);
  modules_.emplace_back(name, module);
  block_of(module, "register_module");
}

Graph::Block& Graph::block_of(const Module& module, const char* call) {
  for (auto& [name, root] : modules_) {
    blocks_[root.identity()].path = name;
    for (auto& [path, m] : root.named_modules()) blocks_[m.identity()].path = name + "." + path;
  }
  auto it = blocks_.find(module.identity());
  if (it == blocks_.end())
    fail_value("{}: the module is none of this graph's. Register it, or one that holds it, by register_module() first.",
               call);
  return it->second;
}

void Graph::set_stage(const Module& module, int stage, const Placement* placement) {
  if (stage < 0) fail_value("set_stage: stage {}; stages count from 0.", stage);
  Block& b = block_of(module, "set_stage");
  b.stage = stage;
  if (placement) b.placement = placements_.emplace_back(std::make_shared<Placement>(*placement)).get();
  entries_.clear();
}

void Graph::set_activation_checkpointing(const Module& module, bool on) {
  block_of(module, "set_activation_checkpointing").checkpointing = on;
  entries_.clear();
}

void Graph::add_optimizer(optim::Optimizer& optimizer, std::function<double(int64_t step)> lr) {
  add_optimizer(std::make_shared<CppOptimizer>(optimizer, std::move(lr)));
}

void Graph::add_optimizer(std::shared_ptr<GraphOptimizer> optimizer) {
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

void Graph::set_grad_scaler(optim::GradScaler& scaler) { set_grad_scaler(std::make_shared<CppScaler>(scaler)); }

void Graph::set_grad_scaler(std::shared_ptr<GraphScaler> scaler) {
  scaler_ = std::move(scaler);
  entries_.clear();
}

// A tensor with the scale's value, on the ranks and in the dtype of what backward() begins with.
Tensor Graph::scale_for(const Tensor& seed) {
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

void check_stages(const std::string& graph, std::span<const std::pair<std::string, int>> stages) {
  std::vector<bool> used;
  for (auto& [path, stage] : stages) {
    if (stage >= static_cast<int>(used.size())) used.resize(static_cast<size_t>(stage) + 1);
    used[static_cast<size_t>(stage)] = true;
  }
  for (size_t s = 0; s < used.size(); ++s) {
    if (used[s]) continue;
    auto after = std::find_if(stages.begin(), stages.end(), [&](auto& e) { return e.second > static_cast<int>(s); });
    fail_value("set_stage: {} has no module in stage {}, but {} in stage {}. Stages count from 0 without gaps.", graph,
               s, after->first, after->second);
  }
}

Tensor on_stage(const Tensor& x, const Placement& placement) {
  if (!x.defined() || x.is_local() || x.placement() == placement) return x;
  NdSbp sbp = x.nd_sbp();
  if (sbp.size() != static_cast<int>(placement.hierarchy().size()))
    sbp = NdSbp::filled(static_cast<int>(placement.hierarchy().size()), sbp::broadcast());
  return x.to_global(placement, sbp);
}

// Calls of modules while build() runs.
class ModuleScopes {
 public:
  ModuleScopes(Graph& graph, graph::Capture& capture) : graph_(graph), capture_(capture) {
    capture.set_module_hooks([this](const void* module, const Tensor& x) { return enter(module, x); },
                             [this](bool failed) { leave(failed); });
  }
  ~ModuleScopes() { capture_.set_module_hooks({}, {}); }
  ModuleScopes(const ModuleScopes&) = delete;
  ModuleScopes& operator=(const ModuleScopes&) = delete;
  const std::string& failed_in() const { return failed_; }

 private:
  Tensor enter(const void* module, const Tensor& x) {
    auto it = graph_.blocks_.find(module);
    if (it == graph_.blocks_.end()) {
      open_.push_back(open_.empty() ? "" : open_.back());
      capture_.push_scope(open_.back());
      return x;
    }
    open_.push_back(it->second.path);
    capture_.push_scope(it->second.path, it->second.stage);
    return it->second.placement ? on_stage(x, *it->second.placement) : x;
  }
  void leave(bool failed) {
    if (failed && failed_.empty()) failed_ = open_.back();
    open_.pop_back();
    capture_.pop_scope();
  }

  Graph& graph_;
  graph::Capture& capture_;
  std::vector<std::string> open_;
  std::string failed_;
};

bool Graph::fits(const Entry& e, std::span<const Tensor> inputs, uint64_t variant) const {
  if (e.variant != variant || e.inputs.size() != inputs.size() || e.revision != config.revision() ||
      e.grad != grad_enabled())
    return false;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!is_like(e.inputs[i], inputs[i])) return false;
  for (auto& [module, flag] : e.training)
    if (module.is_training() != flag) return false;
  auto& mode = autocast_mode();
  return e.autocast == mode.enabled && (!mode.enabled || e.autocast_dtype == mode.dtype);
}

// Whether parameters and options are still what the step was compiled for. Takes over new learning rates and the like.
bool Graph::is_current(Entry& e) {
  for (auto& f : e.externals)
    if (!f.holds()) return false;
  for (size_t o = 0; o < optimizers_.size(); ++o)
    if (optimizers_[o]->n_groups() != e.n_groups[o]) return false;
  for (size_t u = 0; u < e.links.size(); ++u) {
    auto& link = e.links[u];
    auto now = optimizers_[link.optimizer]->group(link.group);
    if (now.n_params != link.seen.n_params || now.clip_grad_max_norm != link.seen.clip_grad_max_norm ||
        now.clip_grad_norm_type != link.seen.clip_grad_norm_type || !same_state(now.rule, link.seen.rule))
      return false;
    e.step->rule(u) = now.rule;
  }
  return true;
}

int Graph::find(std::span<const Tensor> inputs, uint64_t variant) const {
  if (last_ < entries_.size() && fits(*entries_[last_], inputs, variant)) return static_cast<int>(last_);
  for (size_t i = 0; i < entries_.size(); ++i)
    if (fits(*entries_[i], inputs, variant)) return static_cast<int>(i);
  return -1;
}

void Graph::claim_parameters() {
  std::lock_guard lock(owners().mutex);
  auto& of = owners().of;
  for (auto& o : optimizers_)
    for (size_t g = 0; g < o->n_groups(); ++g)
      for (auto& p : o->params(g))
        if (auto it = of.find(p.impl()); it != of.end() && it->second.graph != number_)
          fail_runtime("{}: a parameter {} of its {} is updated by another graph, {}. One graph may update a "
                       "parameter: give both steps to one, leave the optimizer "
                       "out of this one, or delete the other first.",
                       name(), p.shape(), o->name(), it->second.name);
  for (auto& o : optimizers_)
    for (size_t g = 0; g < o->n_groups(); ++g)
      for (auto& p : o->params(g))
        if (of.try_emplace(p.impl(), Owners::Owner{number_, name()}).second) claimed_.push_back(p);
}

TensorVec Graph::run_build(std::span<const Tensor> symbols) {
  ModuleScopes scopes(*this, *graph::Capture::current());
  try {
    return build(symbols);
  } catch (const Error& e) {
    if (scopes.failed_in().empty()) throw;
    throw Error(e.kind(), fmt::format("{} (in {}, while {} was captured)", e.what(), scopes.failed_in(), name()));
  }
}

std::unique_ptr<Graph::Entry> Graph::capture_entry(std::span<const Tensor> inputs, uint64_t variant) {
  auto e = std::make_unique<Entry>();
  for (auto& t : inputs) {
    t.require_value("an input of a graph");
    e->inputs.push_back(meta_of(t));
  }
  e->variant = variant;
  e->revision = config.revision();
  e->grad = grad_enabled();
  e->autocast = autocast_mode().enabled;
  e->autocast_dtype = autocast_mode().dtype;
  for (auto& [name, root] : modules_) {
    e->training.emplace_back(root, root.is_training());
    for (auto& [path, m] : root.named_modules()) e->training.emplace_back(m, m.is_training());
  }
  const auto start = std::chrono::steady_clock::now();
  const graph::MicroBatches all = graph::divide_rows(inputs, config.micro_batches(), config.uneven());
  for (int form = 0; form < all.forms(); ++form) e->captured.push_back(capture_form(inputs, all, form, *e));
  match_outputs(e->captured, all);
  e->form_of = all.form_of;
  e->capture_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return e;
}

graph::Graph Graph::capture_form(std::span<const Tensor> inputs, const graph::MicroBatches& all, int form, Entry& e) {
  FreshCasts casts(config);
  graph::Capture capture;
  capture.set_micro_batches(all, form);
  if (scaler_)
    capture.set_loss_scale([&](const Tensor& seed) {
      Tensor scale = scale_for(seed);
      capture.name_external(scale, "grad_scale", false);
      return scale;
    });
  for (auto& [name, root] : modules_) {
    for (auto& [path, t] : root.named_parameters()) capture.name_external(t, name + "." + path, true);
    for (auto& [path, t] : root.named_buffers()) capture.name_external(t, name + "." + path, false);
  }
  capture_begins(capture);
  TensorVec symbols;
  for (size_t i = 0; i < inputs.size(); ++i) {
    symbols.push_back(capture.input_like(inputs[i]));
    if (inputs[i].requires_grad()) symbols.back().set_requires_grad();
    if (i < input_placements_.size() && input_placements_[i]) symbols[i] = on_stage(symbols[i], *input_placements_[i]);
  }
  TensorVec outputs = run_build(symbols);
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!outputs[i].defined()) fail_value("{}: output {} of build() is an undefined tensor.", name(), i);
  capture_ends(capture);
  e.n_groups.clear();
  e.links.clear();
  for (size_t o = 0; o < optimizers_.size(); ++o) {
    e.n_groups.push_back(optimizers_[o]->n_groups());
    for (size_t g = 0; g < e.n_groups[o]; ++g) {
      auto group = optimizers_[o]->group(g);
      capture.add_update(group.rule, optimizers_[o]->params(g), group.clip_grad_max_norm, group.clip_grad_norm_type,
                         static_cast<int>(o));
      e.links.push_back({o, g, {}, group});
    }
  }
  graph::Graph captured = capture.finish({outputs.begin(), outputs.size()});
  if (form > 0 && captured.outputs.size() != e.captured[0].outputs.size())
    fail_value(
        "{}: build() returns {} tensors for micro-batches of some rows and {} for others. It must return as many "
        "for any number of rows.",
        name(), e.captured[0].outputs.size(), captured.outputs.size());
  return captured;
}

graph::Graph Graph::capture(std::span<const Tensor> inputs) {
  check_not_capturing();
  return std::move(capture_entry(inputs, 0)->captured[0]);
}

std::unique_ptr<Graph::Entry> Graph::compile_entry(std::span<const Tensor> inputs, uint64_t variant) {
  claim_parameters();
  if (config.stages() > 1) cut_into_stages(inputs);
  graph::StepOptions options = config.step();
  std::vector<std::pair<std::string, int>> stages;
  for (auto& [name, root] : modules_) {
    auto note = [&](const Module& m) {
      Block& b = blocks_[m.identity()];
      if (b.stage >= 0) stages.emplace_back(b.path, b.stage);
      if (b.checkpointing) options.recompute.push_back(b.path);
    };
    block_of(root, "capture");
    note(root);
    for (auto& [path, m] : root.named_modules()) note(m);
  }
  check_stages(name(), stages);
  step_options(&options);
  auto e = capture_entry(inputs, variant);
  e->step = std::make_unique<graph::Step>(e->captured, e->form_of, options);
  for (auto& form : e->captured)
    for (auto& x : form.externals) e->externals.emplace_back(x.tensor);
  for (size_t u = 0; u < e->links.size(); ++u) {
    auto& link = e->links[u];
    auto params = optimizers_[link.optimizer]->params(link.group);
    std::unordered_map<const TensorImpl*, size_t> place;
    for (size_t i = 0; i < params.size(); ++i) place.emplace(params[i].impl(), i);
    const graph::Graph& first = e->captured[0];
    for (int32_t x : first.updates[u].externals)
      link.params.push_back(place.at(first.externals[static_cast<size_t>(x)].tensor.impl()));
    HOLON_CHECK(link.params.size() == e->step->slots(u).size(), "{} slots for {} parameters", e->step->slots(u).size(),
                link.params.size());
  }
  return e;
}

void Graph::check_not_capturing() const {
  if (Context::current().tracer()) [[unlikely]]
    fail_runtime(
        "{}: a graph is called inside of another one's build(), which is being captured. Call the module itself there.",
        name());
}

int Graph::find_current(std::span<const Tensor> inputs, uint64_t variant) {
  int found = find(inputs, variant);
  if (found < 0 || !is_current(*entries_[static_cast<size_t>(found)])) return -1;
  last_ = static_cast<size_t>(found);
  return found;
}

size_t Graph::entry_for(std::span<const Tensor> inputs, uint64_t variant) {
  check_not_capturing();
  int found = find_current(inputs, variant);
  if (found >= 0) return static_cast<size_t>(found);
  found = find(inputs, variant);
  std::shared_ptr<Entry> e = compile_entry(inputs, variant);
  if (found >= 0) {
    entries_[static_cast<size_t>(found)] = e;
    return last_ = static_cast<size_t>(found);
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
void Graph::take_states(const std::shared_ptr<Entry>& e) {
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

std::vector<Tensor> Graph::run(size_t signature, std::span<const Tensor> inputs) {
  auto& e = entries_[signature];
  if (!e->links.empty()) take_states(e);
  const bool scaled = scaler_ && !e->links.empty();
  if (scaled) {
    const double scale = scaler_->scale();
    e->step->set_loss_scale(scale);
    for (auto& t : scales_)
      if (Array a = t.array(); a.defined()) kernels::fill(a, Scalar(scale));
  }
  auto outputs = run_step(*e->step, inputs);
  for (auto& o : optimizers_) o->stepped();
  if (scaled) {
    auto finite = e->step->finite();
    scaler_->stepped(std::all_of(finite.begin(), finite.end(), [](uint8_t f) { return f != 0; }));
  }
  return outputs;
}

std::vector<Tensor> Graph::call(std::span<const Tensor> inputs, uint64_t variant, size_t* signature) {
  size_t at = entry_for(inputs, variant);
  if (signature) *signature = at;
  return run(at, inputs);
}

void Graph::set_variant(size_t signature, uint64_t variant) { entries_[signature]->variant = variant; }

graph::StepStats Graph::stats(size_t signature) const {
  graph::StepStats s = step(signature).stats();
  s.capture_s = entries_[signature]->capture_s;
  return s;
}

const graph::Step& Graph::step(size_t signature) const {
  if (signature >= entries_.size()) fail(ErrorKind::kIndex, "step: signature {} of {}.", signature, entries_.size());
  return *entries_[signature]->step;
}

std::string Graph::describe() const {
  std::string text;
  for (auto& [name, m] : modules_) text += fmt::format("  ({}): {} parameters\n", name, m.parameter_count());
  for (auto& o : optimizers_) text += "  (optimizer): " + o->name() + "\n";
  return text;
}

std::string Graph::str() const {
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

std::string Graph::plan() const {
  std::string text;
  for (auto& e : entries_) text += e->step->plan();
  return text;
}

std::string Graph::captured() const {
  std::string text;
  for (auto& e : entries_)
    for (auto& form : e->captured) text += graph::str(form);
  return text;
}

Graph::State Graph::state_dict() const {
  State state;
  for (auto& [name, m] : modules_)
    for (auto& [path, t] : m.state_dict()) state.modules.emplace_back(name + "." + path, t);
  for (auto& o : optimizers_)
    if (auto* own = dynamic_cast<CppOptimizer*>(o.get())) {
      state.optimizers.push_back(own->optimizer().state_dict());
      state.steps.push_back(own->step());
    }
  return state;
}

void Graph::load_state_dict(const State& state) {
  std::vector<CppOptimizer*> own;
  for (auto& o : optimizers_)
    if (auto* c = dynamic_cast<CppOptimizer*>(o.get())) own.push_back(c);
  if (own.size() != state.optimizers.size() || own.size() != state.steps.size())
    fail_value("load_state_dict: it has {} optimizers, the graph {}.", state.optimizers.size(), own.size());
  for (auto& [name, m] : modules_) {
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
