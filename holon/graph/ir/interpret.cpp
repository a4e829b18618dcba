#include "holon/graph/ir/interpret.h"

#include "holon/base/index.h"
#include "holon/boxing/executor.h"
#include "holon/dispatch/autocast.h"
#include "holon/dispatch/draw_seed.h"
#include "holon/graph/ir/kinds.h"
#include "holon/kernels/copy.h"

namespace holon::graph {

Tensor redistributed(const Tensor& x, const GlobalSpec* to) {
  if (x.spec() == to) return x;
  return Tensor::global(boxing::redistribute(x.spec(), to, x.shape(), x.dtype(), x.array()), x.shape(), x.dtype(), to);
}

// A copy in new memory, with the same layout.
Tensor copied(const Tensor& x) {
  Array a;
  if (x.array().defined()) {
    a = Array::empty(x.array().shape, x.dtype(), x.array().device);
    kernels::copy(x.array(), a);
  }
  return x.is_local() ? Tensor::local(std::move(a)) : Tensor::global(std::move(a), x.shape(), x.dtype(), x.spec());
}

Interpreter::Interpreter(Graph& graph, OptimizerState& s)
    : g(graph), state(s), of_(graph.values.size()), before_(random_state()) {
  state.of_update.resize(g.updates.size());
  for (size_t u = 0; u < g.updates.size(); ++u) state.of_update[u].resize(g.updates[u].externals.size());
  for (auto& e : g.externals) at_index(of_, e.value) = e.tensor.detach();
  if (!g.clips.empty()) late_ = after_gradients(g);
}

Interpreter::~Interpreter() {
  RandomState& r = random_state();
  r.local_counter = before_.local_counter + micro_batch_ * g.local_draws;
  r.global_counter = before_.global_counter + micro_batch_ * g.global_draws;
}

void Interpreter::give(std::span<const Tensor> inputs) {
  if (inputs.size() != g.n_inputs())
    fail_value("interpret: {} inputs were passed, the graph takes {}. Pass them in build()'s order.", inputs.size(),
               g.n_inputs());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value& v = g.value(g.only().inputs[i]);
    if (inputs[i].spec() != v.spec || inputs[i].dtype() != v.dtype || (v.spec && !(inputs[i].shape() == v.shape)))
      fail_value("interpret: input {} is {} {}{}, the graph takes {} {}{}. Convert it first.", i,
                 holon::name(inputs[i].dtype()), inputs[i].shape(),
                 inputs[i].spec() ? " " + inputs[i].spec()->str() : "", holon::name(v.dtype), v.shape,
                 v.spec ? " " + v.spec->str() : "");
    at_index(of_, g.only().inputs[i]) = inputs[i].detach();
  }
}

std::vector<Tensor> Interpreter::outputs(const std::vector<bool>& left_out) const {
  std::vector<Tensor> all;
  for (size_t o = 0; o < g.n_outputs(); ++o)
    all.push_back(o < left_out.size() && left_out[o] ? Tensor() : at(g.only().outputs[o]));
  return all;
}

const Tensor& Interpreter::at(ValueId v) const {
  const Tensor& t = at_index(of_, v);
  HOLON_CHECK(t.defined(), "%{} has no value yet", v);
  return t;
}

void Interpreter::make(const Node& n, size_t o, Tensor t) {
  const Value& v = g.value(n.out[o]);
  HOLON_CHECK(t.is_global() == v.is_global() && t.dtype() == v.dtype && (!v.spec || t.shape() == v.shape),
              "eager gives {} {} for: {}", holon::name(t.dtype()), t.shape(), str(g, n));
  if (v.spec && t.spec() != v.spec) t = redistributed(t, v.spec);
  at_index(of_, n.out[o]) = std::move(t);
}

Attrs Interpreter::drawn(const Node& n) const {
  const bool global = g.value(n.out[0]).is_global();
  Attrs attrs = n.attrs;
  attrs.set_int(n.op->seed_attr, static_cast<int64_t>(global ? before_.seed : seed_of_local_draws(before_)));
  attrs.set_int(n.op->counter_attr,
                n.draw +
                    (global ? before_.global_counter + micro_batch_ * g.global_draws
                            : before_.local_counter + micro_batch_ * g.local_draws));
  return attrs;
}

std::vector<Tensor> interpret(Graph& g, std::span<const Tensor> inputs) {
  OptimizerState state;
  return interpret(g, inputs, state);
}

std::vector<Tensor> interpret(Graph& g, std::span<const Tensor> inputs, OptimizerState& state) {
  std::vector<Tensor> one(inputs.begin(), inputs.end());
  NoGradGuard no_grad;
  AutocastPause plain;
  Interpreter run(g, state);
  run.give(one);
  run.run([](Section) { return true; });
  run.next_micro_batch();
  return run.outputs();
}

std::vector<std::vector<Tensor>> interpret_step(Graph& g, std::span<const std::vector<Tensor>> micro_batches,
                                                OptimizerState& state) {
  NoGradGuard no_grad;
  AutocastPause plain;
  Interpreter run(g, state);
  run.run([](Section s) { return s == Section::kOnceBefore; });
  std::vector<std::vector<Tensor>> outputs(micro_batches.size());
  // What is there once per step is an output of every micro-batch, and known after the last one.
  std::vector<bool> once(g.n_outputs(), false);
  std::vector<NodeId> made_by = producers(g);
  for (size_t o = 0; o < g.n_outputs(); ++o) {
    NodeId by = at_index(made_by, g.only().outputs[o]);
    once[o] = by >= 0 &&
        (at_index(g.nodes, by).section == Section::kOnceAfter || at_index(g.nodes, by).kind == NodeKind::kAccumulate);
  }
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    run.give(micro_batches[m]);
    run.run([](Section s) { return s != Section::kOnceBefore && s != Section::kOnceAfter; });
    run.next_micro_batch();
    outputs[m] = run.outputs(once);
  }
  run.run([](Section s) { return s == Section::kOnceAfter; });
  std::vector<Tensor> last = run.outputs();
  for (auto& of_one : outputs)
    for (size_t o = 0; o < once.size(); ++o)
      if (once[o]) of_one[o] = last[o];
  return outputs;
}

}  // namespace holon::graph
