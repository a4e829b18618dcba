// A call's signature: whether a compiled one fits, and how another is captured and compiled.

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/contract/compilation.h"
#include "holon/contract/contract.h"
#include "holon/dispatch/autocast.h"
#include "holon/dispatch/layout_free.h"
#include "holon/graph/contract_entries.h"
#include "holon/graph/graph_entry.h"
#include "holon/nn/module_access.h"

namespace holon::nn {

namespace {

InputMeta meta_of(const Tensor& t) { return {t.shape(), t.dtype(), t.spec(), t.impl()->device, t.requires_grad()}; }
bool is_like(const InputMeta& m, const Tensor& t) {
  TensorImpl& i = *t.impl();
  return m.dtype == i.dtype && m.spec == i.spec && m.requires_grad == i.requires_grad() && m.shape == i.shape &&
      m.device == i.device;
}

// Whether slots made for one rule can go on with the other; the rates may differ.
bool same_state(const optim::Rule& a, const optim::Rule& b) {
  if (a.kind != b.kind || a.nesterov != b.nesterov || a.maximize != b.maximize || a.decoupled != b.decoupled ||
      a.bias_correction != b.bias_correction || a.master_weights != b.master_weights ||
      a.lr_in_momentum != b.lr_in_momentum || a.eps_in_root != b.eps_in_root ||
      a.ratio_before_decay != b.ratio_before_decay)
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
    if (config.options().amp)
      exchange_autocast({true, *config.options().amp, true, before_.depth + 1, 0, config.float8_recipe()});
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

void check_stages(const std::string& graph, std::span<const std::pair<std::string, int>> stages) {
  std::vector<bool> used;
  for (auto& [path, stage] : stages) {
    if (stage >= static_cast<int>(used.size())) used.resize(to_size(stage) + 1);
    at_index(used, stage) = true;
  }
  for (size_t s = 0; s < used.size(); ++s) {
    if (used[s]) continue;
    auto after = std::find_if(stages.begin(), stages.end(), [&](auto& e) { return e.second > static_cast<int>(s); });
    fail_value("set_stage: {} has no module in stage {}, but {} in stage {}. Stages are numbered from 0 without gaps.",
               graph, s, after->first, after->second);
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
  ModuleScopes(GraphCore& graph, graph::Capture& capture) : graph_(graph), capture_(capture) {
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

  GraphCore& graph_;
  graph::Capture& capture_;
  std::vector<std::string> open_;
  std::string failed_;
};

bool GraphCore::fits(const Entry& e, std::span<const Tensor> inputs, uint64_t variant) const {
  if (e.variant != variant || e.inputs.size() != inputs.size() || e.revision != config.revision() ||
      e.grad != grad_enabled() || e.layout_free != layout_free() || e.parameters != boxing::parameter_policy())
    return false;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!is_like(e.inputs[i], inputs[i])) return false;
  for (auto& seen : e.modules)
    if (seen.module.is_training() != seen.training) return false;
  auto& mode = autocast_mode();
  return e.autocast == mode.enabled &&
      (!mode.enabled ||
       (e.autocast_dtype == mode.dtype && e.float8_block == mode.float8_block && e.float8_recipe == mode.recipe));
}

// Whether parameters and options are still what the step was compiled for. Takes over new learning rates and the like.
bool GraphCore::is_current(Entry& e) {
  for (auto& f : e.externals)
    if (!f.holds()) return false;
  for (auto& seen : e.modules)
    if (detail::ModuleAccess::changes(seen.module) != seen.changes) return false;
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

std::vector<Tensor> GraphCore::run_build(std::span<const Tensor> symbols) {
  ModuleScopes scopes(*this, *graph::Capture::current());
  try {
    return build(symbols);
  } catch (const Error& e) {
    if (scopes.failed_in().empty()) throw;
    throw Error(e.kind(), fmt::format("{} (in {}, while {} was captured)", e.what(), scopes.failed_in(), name()));
  }
}

std::unique_ptr<GraphCore::Entry> GraphCore::capture_entry(std::span<const Tensor> inputs, uint64_t variant) {
  auto e = std::make_unique<Entry>();
  for (auto& t : inputs) {
    t.require_value("an input of a graph");
    e->inputs.push_back(meta_of(t));
  }
  e->variant = variant;
  e->revision = config.revision();
  e->grad = grad_enabled();
  e->layout_free = layout_free();
  e->parameters = boxing::parameter_policy();
  e->autocast = autocast_mode().enabled;
  e->autocast_dtype = autocast_mode().dtype;
  e->float8_block = autocast_mode().float8_block;
  e->float8_recipe = autocast_mode().recipe;
  auto note = [&](const Module& m) { e->modules.push_back({m, m.is_training(), detail::ModuleAccess::changes(m)}); };
  note(root_);
  for (auto& [path, m] : root_.named_modules()) note(m);
  const auto start = std::chrono::steady_clock::now();
  const graph::MicroBatches all = graph::divide_rows(inputs, config.micro_batches(), config.options().uneven);
  for (int v = 0; v < all.variants(); ++v) e->captured.push_back(capture_variant(inputs, all, v, *e));
  match_outputs(e->captured, all);
  e->variant_of = all.variant_of;
  e->capture_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return e;
}

graph::Graph GraphCore::capture_variant(std::span<const Tensor> inputs, const graph::MicroBatches& all, int variant,
                                        Entry& e) {
  FreshCasts casts(config);
  graph::Capture capture;
  capture.set_micro_batches(all, variant);
  if (scaler_)
    capture.set_loss_scale([&](const Tensor& seed) {
      Tensor scale = scale_for(seed);
      capture.name_external(scale, "grad_scale", false);
      return scale;
    });
  for (auto& [name, root] : modules()) {
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
  std::vector<Tensor> outputs = run_build(symbols);
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
  if (variant > 0 && captured.n_outputs() != e.captured[0].n_outputs())
    fail_value("{}: build() returns {} tensors for micro-batches with some numbers of rows and {} for others. It must "
               "always return the same number.",
               name(), e.captured[0].n_outputs(), captured.n_outputs());
  return captured;
}

graph::Graph GraphCore::capture(std::span<const Tensor> inputs) {
  check_not_capturing();
  return std::move(capture_entry(inputs, 0)->captured[0]);
}

// By which a contract knows the graph: its name and inputs.
std::string GraphCore::name_in_contract(std::span<const Tensor> inputs) const {
  std::string text;
  for (auto& in : inputs)
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", holon::name(in.dtype()), in.shape(),
                        in.spec() ? " " + contract::text_of(*in.spec()) : "");
  return fmt::format("{}({})", name(), text);
}

std::unique_ptr<GraphCore::Entry> GraphCore::compile_entry(std::span<const Tensor> inputs, uint64_t variant) {
  claim_parameters();
  graph::CompileOptions options = config.options();
  std::optional<contract::Guard> frozen;
  if (!options.contract.empty() && !contract::is_watching()) frozen.emplace(options.contract);
  std::optional<contract::Compilation> compilation;
  if (contract::is_watching()) compilation.emplace(name_in_contract(inputs));
  if (config.stages() > 1) cut_into_stages(inputs);
  std::vector<std::pair<std::string, int>> stages;
  for (auto& [name, root] : modules()) {
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
  compile_options(&options);
  auto e = capture_entry(inputs, variant);
  e->step = std::make_unique<graph::Step>(e->captured, e->variant_of, options);
  if (compilation) compilation->end(graph::contract_entries(e->step->graph()));
  compilation.reset();
  if (frozen) frozen->end(true);  // the rest of its file is of the rest of the program
  for (auto& captured : e->captured)
    for (auto& x : captured.externals) e->externals.emplace_back(x.tensor);
  for (size_t u = 0; u < e->links.size(); ++u) {
    auto& link = e->links[u];
    auto params = optimizers_[link.optimizer]->params(link.group);
    std::unordered_map<const TensorImpl*, size_t> place;
    for (size_t i = 0; i < params.size(); ++i) place.emplace(params[i].impl(), i);
    const graph::Graph& first = e->captured[0];
    for (int32_t x : first.updates[u].externals)
      link.params.push_back(place.at(at_index(first.externals, x).tensor.impl()));
    HOLON_CHECK(link.params.size() == e->step->slots(u).size(), "{} slots for {} parameters", e->step->slots(u).size(),
                link.params.size());
  }
  return e;
}

}  // namespace holon::nn
