#include "holon/graph/step.h"

#include <algorithm>
#include <chrono>

#include "holon/array/device_runtime.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/base/trace.h"
#include "holon/boxing/events.h"
#include "holon/comm/core/background.h"
#include "holon/comm/core/communicator.h"
#include "holon/contract/contract.h"
#include "holon/dispatch/dispatch.h"
#include "holon/dispatch/draw_seed.h"
#include "holon/graph/agreement.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/passes/variants.h"
#include "holon/graph/program/pipeline.h"
#include "holon/graph/program/program.h"
#include "holon/graph/program/recordings.h"
#include "holon/graph/virtual_rank.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/on_device.h"

namespace holon::graph {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string layout_text(const Dims& shape, DType dtype, const GlobalSpec* spec, Device device) {
  return fmt::format("{} {}{}", holon::name(dtype), shape, spec ? " " + spec->str() : ", local on " + device.str());
}

}  // namespace

struct Step::Impl {
  Graph graph;
  CompileOptions options;
  StepStats stats;
  std::unique_ptr<Program> program;
  std::unique_ptr<Recordings> recordings;           // nullptr: nothing is on a device
  std::vector<int32_t> inputs, externals, outputs;  // buffers to bind
  std::vector<PassReport> reports;
  bool ready = false;
  uint64_t owner = 0;  // of the calls that the instructions make
  std::vector<int> ranks;

  Impl(std::vector<Graph> captured, std::vector<int8_t> variant_of, const CompileOptions& o) : options(o) {
    for (auto& g : captured) stats.captured_nodes += static_cast<int64_t>(g.nodes.size());
    auto start = std::chrono::steady_clock::now();
    options.keep_parameters &= boxing::parameter_policy() == boxing::ParameterPolicy::kKeep;
    if (!is_virtual()) ranks = ranks_of(captured[0]);
    owner = check_captures_agree(ranks, captured, variant_of, options);
    if (options.zero_stage == 3) shard_parameters(captured[0], options);
    graph = passed(std::move(captured), std::move(variant_of), options);
    Schedule schedule = schedule_of(graph, options.schedule);
    check_plans_agree(ranks, graph, schedule);
    stats.passes_s = seconds_since(start);
    stats.nodes = static_cast<int64_t>(graph.nodes.size());
    start = std::chrono::steady_clock::now();
    // The background thread has its own streams on devices, which would have to be put in order with this one's.
    const bool on_devices = std::any_of(graph.values.begin(), graph.values.end(), [](const Value& v) {
      return !(v.spec ? v.spec->placement.device() : v.device).is_host();
    });
    program = lower(graph, {std::move(schedule), !is_virtual() && !on_devices && comm::background_pays()});
    if (on_devices && !is_virtual()) recordings = std::make_unique<Recordings>(*program, graph);
    stats.lowering_s = seconds_since(start);
    stats.instructions = static_cast<int64_t>(program->instructions.size());
    stats.arena_bytes = static_cast<int64_t>(program->memory.bytes);
    stats.sum_bytes = static_cast<int64_t>(program->memory.sum_bytes);
    for (size_t b = 0; b < program->buffers.size(); ++b) {
      auto kind = program->buffers[b].kind;
      auto at = static_cast<int32_t>(b);
      if (kind == Buffer::Kind::kInput) inputs.push_back(at);
      if (kind == Buffer::Kind::kExternal) externals.push_back(at);
      if (kind == Buffer::Kind::kOutput) outputs.push_back(at);
    }
  }

  // The variants after the passes, as one graph.
  Graph passed(std::vector<Graph> captured, std::vector<int8_t> variant_of, CompileOptions passes) {
    if (captured.size() == 1) {
      run_passes(captured[0], passes, &reports);
      return std::move(captured[0]);
    }
    auto join = [&](std::vector<Graph> variants, std::string* missing) {
      reports.clear();
      for (size_t f = 0; f < variants.size(); ++f) run_passes(variants[f], passes, f == 0 ? &reports : nullptr);
      return join_variants(variants, variant_of, missing);
    };
    std::optional<Graph> all = join(captured, nullptr);
    if (!all) {
      // What passes choose by cost depends on the rows. Without it, sums are of what the updates take.
      passes.disabled_passes.push_back("choose_sbp");
      passes.sum_last = true;
      std::string missing;
      all = join(std::move(captured), &missing);
      if (!all)
        fail_runtime("micro-batches of unequal rows lead to different layouts of the gradient of \"{}\". Pass batches "
                     "that the micro-batches divide, or convert the gradient to one layout by to_global() in build().",
                     missing);
    }
    if (passes.verify) verify(*all, "joining its variants");
    return *std::move(all);
  }

  // ZeRO 3: parameters are stored as shards from here on, here and in the program's own handles.
  static void shard_parameters(Graph& graph, const CompileOptions& passes) {
    auto specs = zero3_specs(graph, passes);
    NoGradGuard no_grad;
    for (size_t e = 0; e < specs.size(); ++e) {
      if (!specs[e]) continue;
      Tensor& t = graph.externals[e].tensor;
      Tensor part = t.detach().to_global(specs[e]->placement, specs[e]->nd_sbp);
      t.impl()->array = kernels::contiguous(part.array().defined() ? part.array() : Array());
      t.impl()->spec = specs[e];
    }
  }

  Tensor checked_input(size_t i, const Tensor& given) const {
    const Value& want = graph.value(graph.inputs_of(0)[i]);
    Dims shape = want.shape;
    if (shape.size() > 0) {
      shape[0] = 0;
      for (int m = 0; m < graph.micro_batches; ++m)
        shape[0] += graph.value(graph.inputs_of(graph.variant(m))[i]).shape[0];
    }
    if (!given.defined() || given.shape() != shape || given.dtype() != want.dtype || given.spec() != want.spec ||
        (!want.spec && !(given.impl()->device == want.device)))
      fail_value(
          "input {} of the graph is {}, but it was compiled for {}. Compile the graph for such inputs as well.", i,
          given.defined() ? layout_text(given.shape(), given.dtype(), given.spec(), given.impl()->device) : "undefined",
          layout_text(shape, want.dtype, want.spec, want.device));
    given.require_value("a graph's call");
    const auto& moved = program->moved_rows[i];
    if (!given.array().defined() || (given.array().is_contiguous() && moved.empty())) return given;
    Array a = kernels::contiguous(given.array());
    if (!moved.empty()) a = with_rows_moved(a, moved);
    return given.is_local() ? Tensor::local(std::move(a))
                            : Tensor::global(std::move(a), given.shape(), given.dtype(), given.spec());
  }

  static Array with_rows_moved(const Array& a, const std::vector<RowPiece>& pieces) {
    Array moved = Array::empty(a.shape, a.dtype, a.device);
    for (auto& piece : pieces) {
      Dims shape = a.shape;
      shape[0] = piece.rows;
      Array to = moved.view(shape, moved.strides, piece.to * moved.strides[0]);
      kernels::copy(a.view(shape, a.strides, piece.from * a.strides[0]), to);
    }
    return moved;
  }

  void bind_inputs(const std::vector<Tensor>& given) {
    for (int32_t b : inputs) {
      Buffer& buffer = at_index(program->buffers, b);
      const Array& a = at_index(given, buffer.index).array();
      buffer.storage->rebind(a.bytes() + buffer.at, buffer.bytes);
    }
  }

  void bind_externals() {
    for (size_t k = 0; k < externals.size(); ++k) {
      Buffer& buffer = at_index(program->buffers, externals[k]);
      const External& x = at_index(graph.externals, buffer.index);
      const Array& a = x.tensor.array();
      std::byte* at = a.bytes();
      if (buffer.storage->data() != at) buffer.storage->rebind(at, a.storage->size());
    }
  }

  std::vector<Ref<Storage>> bind_outputs() {
    std::vector<Ref<Storage>> made;
    for (int32_t b : outputs) {
      Buffer& buffer = at_index(program->buffers, b);
      made.push_back(allocate_storage(buffer.bytes, buffer.device));
      buffer.storage->rebind(made.back()->data(), buffer.bytes);
    }
    return made;
  }

  void begin_draws() {
    RandomState& r = random_state();
    Draws& d = program->draws;
    d.global_seed = graph.global_draws > 0 ? seed_of_global_draws(ranks) : r.seed;
    d.local_seed = seed_of_local_draws(r);
    d.global_base = r.global_counter;
    d.local_base = r.local_counter;
    r.global_counter += int64_t{graph.global_draws} * graph.micro_batches;
    r.local_counter += int64_t{graph.local_draws} * graph.micro_batches;
  }

  std::string where(const Instruction& i) const {
    if (i.node < 0) return "";
    const Node& n = at_index(graph.nodes, i.node);
    std::string s;
    if (const std::string& scope = at_index(graph.scopes, n.scope); !scope.empty()) s += " in " + scope;
    if (const std::string& site = at_index(graph.sites, n.site); !site.empty()) s += " (" + site + ")";
    return s;
  }

  std::string label(const Instruction& i) const {
    if (i.node < 0) return i.verb() ? i.verb() : "output";
    const Node& n = at_index(graph.nodes, i.node);
    std::string op = n.op ? n.op->name() : name(n.kind);
    const std::string& scope = at_index(graph.scopes, n.scope);
    if (i.verb()) op = i.verb();
    return scope.empty() ? op : scope + "." + op;
  }

  // What a lane of the trace shows: tasks of the schedule, in them instructions by the modules' names. Waits for other
  // ranks are of another category than work.
  void run_traced(size_t& at) {
    const size_t n = program->instructions.size();
    for (auto& range : program->tasks) {
      run_traced(at, to_size(range.first));
      const Task& t = range.task;
      const std::string text = t.str();
      tracing::Span span(graph.stages * graph.micro_batches > 1 ? std::string_view(text) : name(section_of(t.phase)),
                         "task");
      if (span) {
        span.arg("stage", static_cast<int64_t>(t.stage));
        span.arg("micro_batch", static_cast<int64_t>(t.micro_batch));
        span.arg("section", name(section_of(t.phase)));
      }
      run_traced(at, to_size(range.end));
    }
    run_traced(at, n);
  }

  void run_traced(size_t& at, size_t end) {
    for (; at < end; ++at) {
      Instruction& i = *program->instructions[at];
      const std::string text = label(i);
      tracing::Span span(text, i.waits() ? "graph wait" : "graph");
      if (span) {
        if (i.node >= 0) {
          const Node& n = at_index(graph.nodes, i.node);
          span.arg("stage", static_cast<int64_t>(n.stage));
          span.arg("section", name(n.section));
        }
        span.arg("micro_batch", static_cast<int64_t>(i.micro_batch));
        span.arg("does", i.str());
      }
      i.run();
    }
  }

  void run_instructions() {
    struct Own {
      explicit Own(uint64_t owner) { comm::set_call_owner(owner); }
      ~Own() { comm::set_call_owner(0); }
    } own(owner);
    size_t at = 0;
    auto& list = program->instructions;
    try {
      if (tracing::on()) return run_traced(at);
      if (recordings) return recordings->run(at);
      for (; at < list.size(); ++at) list[at]->run();
    } catch (const Error& e) {
      std::string place = at < list.size() ? where(*list[at]) : "";
      if (place.empty()) throw;
      throw Error(e.kind(), fmt::format("{} [graph:{}]", e.what(), place));
    }
  }

  std::vector<Tensor> run(std::span<const Tensor> given) {
    if (is_virtual()) {
      if (contract::is_watching()) return outputs_of_run({});  // of which only the compilation counts
      fail_runtime("a virtual rank cannot run a graph: there is no data. Run it in a world of real ranks.");
    }
    tracing::Span span("graph step", "graph");
    if (given.size() != graph.n_inputs())
      fail_value("the graph takes {} tensors, {} were passed. Call it as it was compiled.", graph.n_inputs(),
                 given.size());
    std::vector<Tensor> in;
    in.reserve(given.size());
    for (size_t i = 0; i < given.size(); ++i) in.push_back(checked_input(i, given[i]));
    bind_inputs(in);
    bind_externals();
    std::vector<Ref<Storage>> storages = bind_outputs();
    begin_draws();
    if (!ready) {
      program->allocate();
      for (auto& i : program->instructions) i->bind();
      ready = true;
    }
    if (recordings) recordings->before_step(tracing::on());
    run_instructions();
    if (recordings) {
      recordings->after_step();
      stats.recorded = static_cast<int64_t>(recordings->recorded());
    }
    std::vector<Tensor> out = outputs_of_run(storages);
    for (auto& x : graph.externals)
      if (x.assigned && x.tensor.array().defined()) ++x.tensor.array().storage->version;
    return out;
  }

  // storages: of the buffers of outputs; none on a virtual rank.
  std::vector<Tensor> outputs_of_run(const std::vector<Ref<Storage>>& storages) const {
    std::vector<Tensor> out;
    out.reserve(program->outputs.size());
    for (auto& part : program->outputs) {
      if (part.external >= 0) {
        out.push_back(at_index(graph.externals, part.external).tensor.detach());
        continue;
      }
      Array a;
      if (part.buffer >= 0) {
        a = part.array;
        if (!storages.empty())
          a.storage = at_index(storages, std::find(outputs.begin(), outputs.end(), part.buffer) - outputs.begin());
      }
      out.push_back(part.spec ? Tensor::global(std::move(a), part.shape, part.dtype, part.spec)
                              : Tensor::local(std::move(a)));
    }
    return out;
  }
};

namespace {
std::vector<Graph> only(Graph g) {
  std::vector<Graph> one;
  one.push_back(std::move(g));
  return one;
}
}  // namespace

Step::Step(Graph captured, const CompileOptions& options) : Step(only(std::move(captured)), {}, options) {}
Step::Step(std::vector<Graph> captured, std::vector<int8_t> variant_of, const CompileOptions& options)
    : impl_(std::make_unique<Impl>(std::move(captured), std::move(variant_of), options)) {}
Step::~Step() = default;

std::vector<Tensor> Step::run(std::span<const Tensor> inputs) { return impl_->run(inputs); }
const Graph& Step::graph() const { return impl_->graph; }
const Program& Step::program() const { return *impl_->program; }
const StepStats& Step::stats() const { return impl_->stats; }

std::string Step::plan() const {
  std::string s;
  for (size_t i = 0; i < impl_->program->instructions.size(); ++i) {
    auto& instruction = *impl_->program->instructions[i];
    s += fmt::format("{:>5} {}{}{}\n", i, instruction.str(),
                     impl_->graph.micro_batches > 1 ? fmt::format("  micro-batch {}", instruction.micro_batch) : "",
                     impl_->where(instruction));
  }
  return s;
}

std::string Step::passes() const {
  std::string s;
  for (auto& r : impl_->reports)
    s += fmt::format("{:<18} {:>6} -> {:<6} nodes {:>10.0f} us\n", r.name, r.nodes_before, r.nodes_after, r.us);
  return s;
}

void Step::set_loss_scale(double scale) {
  HOLON_CHECK(impl_->program->loss_scale, "the loss was captured without a scale");
  impl_->program->loss_scale->factor = 1 / scale;
}
std::span<const uint8_t> Step::finite() const {
  HOLON_CHECK(impl_->program->loss_scale, "the loss was captured without a scale");
  return impl_->program->loss_scale->finite;
}

std::vector<double> Step::norms() const {
  std::vector<double> found;
  for (const Array& norm : impl_->program->norms) found.push_back(kernels::on_device(norm, {}).data<double>()[0]);
  return found;
}

size_t Step::n_updates() const { return impl_->program->updates.size(); }
optim::Rule& Step::rule(size_t update) { return impl_->program->updates.at(update).rule; }
std::span<optim::Slot> Step::slots(size_t update) { return impl_->program->updates.at(update).slots; }

}  // namespace holon::graph
