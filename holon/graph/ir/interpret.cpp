#include "holon/graph/ir/interpret.h"

#include <map>

#include "holon/base/context.h"
#include "holon/base/index.h"
#include "holon/boxing/executor.h"
#include "holon/dispatch/autocast.h"
#include "holon/dispatch/dispatch.h"
#include "holon/dispatch/draw_seed.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/optim.h"
#include "holon/ops.h"
#include "holon/optim/update.h"

namespace holon::graph {

namespace {

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

class Interpreter {
 public:
  Interpreter(Graph& g, OptimizerState& state) : g_(g), state_(state), of_(g.values.size()), before_(random_state()) {
    state_.of_update.resize(g.updates.size());
    for (size_t u = 0; u < g.updates.size(); ++u) state_.of_update[u].resize(g.updates[u].externals.size());
    for (auto& e : g.externals) at_index(of_, e.value) = e.tensor.detach();
    if (!g.clips.empty()) late_ = after_gradients(g);
  }
  ~Interpreter() {
    RandomState& r = random_state();
    r.local_counter = before_.local_counter + micro_batch_ * g_.local_draws;
    r.global_counter = before_.global_counter + micro_batch_ * g_.global_draws;
  }
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  void give(std::span<const Tensor> inputs) {
    if (inputs.size() != g_.inputs.size())
      fail_value("interpret: {} inputs were passed, the graph takes {}. Pass them in build()'s order.", inputs.size(),
                 g_.inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Value& v = g_.value(g_.inputs[i]);
      if (inputs[i].spec() != v.spec || inputs[i].dtype() != v.dtype || (v.spec && !(inputs[i].shape() == v.shape)))
        fail_value("interpret: input {} is {} {}{}, the graph takes {} {}{}. Convert it first.", i,
                   holon::name(inputs[i].dtype()), inputs[i].shape(),
                   inputs[i].spec() ? " " + inputs[i].spec()->str() : "", holon::name(v.dtype), v.shape,
                   v.spec ? " " + v.spec->str() : "");
      at_index(of_, g_.inputs[i]) = inputs[i].detach();
    }
  }

  template <class Wanted>
  void run(Wanted wanted) {
    for (size_t i = 0; i < g_.nodes.size(); ++i)
      if (wanted(g_.nodes[i].section) && (late_.empty() || !late_[i])) node(g_.nodes[i]);
    for (size_t i = 0; i < late_.size(); ++i)
      if (wanted(g_.nodes[i].section) && late_[i]) node(g_.nodes[i]);
  }
  void next_micro_batch() { ++micro_batch_; }

  // Those that are left out are undefined.
  std::vector<Tensor> outputs(const std::vector<bool>& left_out = {}) const {
    std::vector<Tensor> all;
    for (size_t o = 0; o < g_.outputs.size(); ++o)
      all.push_back(o < left_out.size() && left_out[o] ? Tensor() : at(g_.outputs[o]));
    return all;
  }

 private:
  const Tensor& at(ValueId v) const {
    const Tensor& t = at_index(of_, v);
    HOLON_CHECK(t.defined(), "%{} has no value yet", v);
    return t;
  }

  void make(const Node& n, size_t o, Tensor t) {
    const Value& v = g_.value(n.out[o]);
    HOLON_CHECK(t.is_global() == v.is_global() && t.dtype() == v.dtype && (!v.spec || t.shape() == v.shape),
                "eager gives {} {} for: {}", holon::name(t.dtype()), t.shape(), str(g_, n));
    if (v.spec && t.spec() != v.spec) t = redistributed(t, v.spec);
    at_index(of_, n.out[o]) = std::move(t);
  }

  void node(const Node& n) {
    switch (n.kind) {
      case NodeKind::kOp: return op(n);
      case NodeKind::kBoxing:
        for (size_t i = 0; i < n.in.size(); ++i) make(n, i, redistributed(at(n.in[i]), g_.value(n.out[i]).spec));
        return;
      case NodeKind::kRelabel: return relabel(n);
      case NodeKind::kAgree: return agree(n);
      case NodeKind::kAccumulate: {
        Tensor& sum = at_index(of_, n.out[0]);
        sum = sum.defined() ? add(sum, at(n.in[0])) : copied(at(n.in[0]));
        return;
      }
      case NodeKind::kAssign: return write(at_index(g_.externals, n.target).tensor, at(n.in[0]));
      case NodeKind::kUpdate: return update(n);
      case NodeKind::kFused: return fused(n);
      case NodeKind::kClip: return clip(n);
    }
  }

  void op(const Node& n) {
    TensorVec in;
    for (ValueId v : n.in) in.push_back(v == kNoValue ? Tensor() : at(v));
    TensorVec out = dispatch(*n.op, std::move(in), n.draw >= 0 ? drawn(n) : n.attrs);
    HOLON_CHECK(out.size() == n.out.size(), "eager gives {} outputs for: {}", out.size(), str(g_, n));
    for (size_t o = 0; o < out.size(); ++o) make(n, o, out[o]);
  }

  // With the seed and the counter that eager would have filled in at this place of the step.
  Attrs drawn(const Node& n) const {
    const bool global = g_.value(n.out[0]).is_global();
    Attrs attrs = n.attrs;
    attrs.set_int(n.op->seed_attr, static_cast<int64_t>(global ? before_.seed : seed_of_local_draws(before_)));
    attrs.set_int(n.op->counter_attr,
                  n.draw +
                      (global ? before_.global_counter + micro_batch_ * g_.global_draws
                              : before_.local_counter + micro_batch_ * g_.local_draws));
    return attrs;
  }

  void relabel(const Node& n) {
    const Value& v = g_.value(n.out[0]);
    const Array& part = at(n.in[0]).array();
    if (!v.spec) return make(n, 0, Tensor::local(part.defined() ? part : Array::empty({0}, v.dtype)));
    const bool member = v.spec->placement.contains(Context::current().rank());
    make(n, 0, Tensor::global(member ? part : Array(), v.shape, v.dtype, v.spec));
  }

  void agree(const Node& n) {
    const Value& v = g_.value(n.out[0]);
    const Tensor& x = at(n.in[0]);
    Tensor part = x.is_local() ? x : Tensor::local(x.array().defined() ? x.array() : Array::empty({0}, v.dtype));
    const bool member = v.spec->placement.contains(Context::current().rank());
    Array agreed;
    if (member) agreed = to_global(part, v.spec->placement, v.spec->nd_sbp, {.check_meta = false}).array();
    make(n, 0, Tensor::global(agreed, v.shape, v.dtype, v.spec));
  }

  static void write(const Tensor& into, const Tensor& value) {
    if (!into.array().defined() || !value.array().defined()) return;
    Array& to = into.impl()->array;
    // A view of what is written to would change under the copy.
    Array from = value.array().storage == to.storage ? copied(value).array() : value.array();
    kernels::copy(from, to);
    ++to.storage->version;
  }

  void update(const Node& n) {
    const Update& u = at_index(g_.updates, n.target);
    auto& slots = at_index(state_.of_update, n.target);
    if (u.idle) return;
    for (size_t i = 0; i < slots.size(); ++i) {
      const Tensor& whole = at_index(g_.externals, u.externals[i]).tensor;
      slots[i].param = u.shards[i] ? copied(redistributed(whole.detach(), u.shards[i])) : whole.detach();
      slots[i].grad = n.in[i] == kNoValue ? Tensor() : at(n.in[i]);
      if (auto it = clipped_.find({n.target, static_cast<int32_t>(i)}); it != clipped_.end())
        slots[i].grad = it->second;
    }
    optim::update(u.rule, slots);
    size_t next = 0;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (u.shards[i]) make(n, next++, slots[i].param);
      slots[i].grad = {};
    }
  }

  void clip(const Node& n) {
    const GradClip& c = at_index(g_.clips, n.target);
    std::vector<Array> parts;
    std::vector<const GlobalSpec*> specs;
    bool wide = false;
    for (auto& own : c.of) {
      Tensor& grad = clipped_[own];
      if (!grad.defined())
        for (auto& update : g_.nodes)
          if (update.kind == NodeKind::kUpdate && update.target == own.update)
            grad = copied(at(at_index(update.in, own.slot)));
      parts.push_back(grad.array());
      specs.push_back(grad.spec());
      wide = wide || grad.dtype() == float64;
    }
    std::vector<Array> present;
    for (auto& a : parts)
      if (a.defined()) present.push_back(a);
    if (c.how.by == optim::Clip::By::kValue) return kernels::clamp_all(present, -c.how.limit, c.how.limit);
    const auto [norm, factor] = optim::clipping_of(c.how, parts, specs, wide);
    if (factor < 1) kernels::scale_all(present, factor);
    Array value = Array::empty({}, float32);
    kernels::fill(value, Scalar(norm));
    make(n, 0, Tensor::local(std::move(value)));
  }

  void fused(const Node& n) {
    const FusedBody& body = at_index(g_.bodies, n.target);
    std::vector<Tensor> operands;
    for (ValueId v : n.in) operands.push_back(v == kNoValue ? Tensor() : at(v));
    for (auto& part : body.parts) {
      TensorVec in;
      for (int16_t i : part.in) in.push_back(i < 0 ? Tensor() : at_index(operands, i));
      operands.push_back(dispatch_one(*part.op, std::move(in), part.attrs));
    }
    for (size_t o = 0; o < n.out.size(); ++o) make(n, o, operands[n.in.size() + to_size(body.results[o])]);
  }

  Graph& g_;
  OptimizerState& state_;
  std::vector<Tensor> of_;
  std::vector<bool> late_;  // nodes that come when all gradients are there; empty: in their order
  std::map<GradClip::Of, Tensor> clipped_;
  const RandomState before_;
  int64_t micro_batch_ = 0;
};

}  // namespace

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
  std::vector<bool> once(g.outputs.size(), false);
  std::vector<NodeId> made_by = producers(g);
  for (size_t o = 0; o < g.outputs.size(); ++o) {
    NodeId by = at_index(made_by, g.outputs[o]);
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
