// Sums over micro-batches, and what a step does once: writes, clips and updates.
#include "holon/graph/ir/kinds.h"

#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/on_device.h"
#include "holon/kernels/optim.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/optim/update.h"

namespace holon::graph::kinds {

void verify_accumulate(NodeCheck& check, const Node& n) {
  const Graph& g = check.g;
  check.counts(n, 1, 1);
  const Value &a = g.value(n.in[0]), &b = g.value(n.out[0]);
  check.alike(n, b, a, "the sum");
  if (a.spec != b.spec) check.wrong(n, "the sum is in another layout than %{}", n.in[0]);
  if (n.section == Section::kOnceBefore || n.section == Section::kOnceAfter)
    check.wrong(n, "it accumulates outside the micro-batches");
}

void interpret_accumulate(Interpreter& run, const Node& n) {
  Tensor& sum = run.slot_of(n.out[0]);
  sum = sum.defined() ? add(sum, run.at(n.in[0])) : copied(run.at(n.in[0]));
}

std::string assign_text(const Graph& g, const Node& n, std::string args) {
  return fmt::format("{} = {}", has_target(g, n) ? reference(g, at_index(g.externals, n.target).value) : "?", args);
}

void verify_assign(NodeCheck& check, const Node& n) {
  const Graph& g = check.g;
  check.counts(n, 1, 0);
  if (!has_target(g, n)) check.wrong(n, "it writes to external {}, which does not exist", n.target);
  const External& e = at_index(g.externals, n.target);
  if (!e.assigned) check.wrong(n, "external {} is not marked as assigned", n.target);
  const Value &a = g.value(n.in[0]), &b = g.value(e.value);
  check.alike(n, a, b, "the assigned value");
  if (a.spec != b.spec) check.wrong(n, "it writes to an external with another layout");
}

void interpret_assign(Interpreter& run, const Node& n) {
  const Tensor &into = at_index(run.g.externals, n.target).tensor, &value = run.at(n.in[0]);
  if (!into.array().defined() || !value.array().defined()) return;
  Array& to = into.impl()->array;
  // A view of what is written to would change under the copy.
  Array from = value.array().storage == to.storage ? copied(value).array() : value.array();
  kernels::copy(from, to);
  ++to.storage->version;
}

std::string update_text(const Graph& g, const Node& n, std::string args) {
  std::string of;
  if (has_target(g, n))
    for (int32_t e : at_index(g.updates, n.target).externals)
      of += (of.empty() ? "" : ", ") +
          (e >= 0 && e < static_cast<int32_t>(g.externals.size()) ? at_index(g.externals, e).name : "?");
  const bool idle = has_target(g, n) && at_index(g.updates, n.target).idle;
  return fmt::format("{} {} [{}] by ({})", idle ? "no update" : "update", n.target, of, args);
}

void verify_update(NodeCheck& check, const Node& n) {
  const Graph& g = check.g;
  if (!has_target(g, n)) check.wrong(n, "it belongs to update {}, which does not exist", n.target);
  const Update& u = at_index(g.updates, n.target);
  size_t shards = 0;
  for (auto* s : u.shards) shards += s != nullptr;
  if (n.in.size() != u.externals.size() || n.out.size() != shards)
    check.wrong(n, "it has {} gradients and {} new values for {} slots, {} of them in shards", n.in.size(),
                n.out.size(), u.externals.size(), shards);
  size_t next = 0;
  for (size_t i = 0; i < n.in.size(); ++i) {
    const External& e = at_index(g.externals, u.externals[i]);
    const Value& p = g.value(e.value);
    const GlobalSpec* at = u.shards[i];
    if (at) {
      const Value& v = g.value(n.out[next++]);
      check.alike(n, v, p, "a new value");
      if (v.spec != at) check.wrong(n, "the new value of \"{}\" does not have its shard's layout", e.name);
    }
    if (n.in[i] == kNoValue) continue;
    const Value& d = g.value(n.in[i]);
    const bool narrow = size_bytes(d.dtype) == 2 && is_floating(d.dtype) && p.dtype == float32;
    if (d.shape != p.shape || (d.dtype != p.dtype && !narrow)) check.alike(n, d, p, "a gradient");
    bool fits =
        d.spec == (at ? at : p.spec) || (!at && d.spec && p.spec && d.spec == optim::state_spec(u.rule, e.tensor));
    if (!fits) check.wrong(n, "the gradient of \"{}\" does not have the layout in which it is updated", e.name);
  }
}

// In the parameter's dtype.
Tensor gradient_at(Interpreter& run, const Node& update, size_t slot) {
  const Update& u = at_index(run.g.updates, update.target);
  const DType dtype = at_index(run.g.externals, u.externals[slot]).tensor.dtype();
  const Tensor& found = run.at(update.in[slot]);
  return found.dtype() == dtype ? found : cast(found, dtype);
}

void interpret_update(Interpreter& run, const Node& n) {
  const Update& u = at_index(run.g.updates, n.target);
  auto& slots = at_index(run.state.of_update, n.target);
  if (u.idle) return;
  for (size_t i = 0; i < slots.size(); ++i) {
    const Tensor& whole = at_index(run.g.externals, u.externals[i]).tensor;
    slots[i].param = u.shards[i] ? copied(redistributed(whole.detach(), u.shards[i])) : whole.detach();
    slots[i].grad = n.in[i] == kNoValue ? Tensor() : gradient_at(run, n, i);
    if (auto it = run.clipped.find({n.target, static_cast<int32_t>(i)}); it != run.clipped.end())
      slots[i].grad = it->second;
  }
  optim::update(u.rule, slots);
  size_t next = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (u.shards[i]) run.make(n, next++, slots[i].param);
    slots[i].grad = {};
  }
}

std::string clip_text(const Graph& g, const Node& n, std::string) {
  if (!has_target(g, n)) return "clip ?";
  const GradClip& c = at_index(g.clips, n.target);
  return fmt::format("clip {} gradients to {} {:g}", c.of.size(),
                     c.how.by == optim::Clip::By::kNorm ? "the norm" : "values of", c.how.limit);
}

void verify_clip(NodeCheck& check, const Node& n) {
  const Graph& g = check.g;
  if (!has_target(g, n)) check.wrong(n, "it belongs to clipping {}, which does not exist", n.target);
  const GradClip& c = at_index(g.clips, n.target);
  check.counts(n, 0, c.how.by == optim::Clip::By::kNorm ? 1 : 0);
  if (n.section != Section::kOnceAfter) check.wrong(n, "it clips before all gradients exist");
  for (auto& at : c.of)
    if (at.update < 0 || at.update >= static_cast<int32_t>(g.updates.size()) || at.slot < 0 ||
        at.slot >= static_cast<int32_t>(at_index(g.updates, at.update).externals.size()))
      check.wrong(n, "it clips the gradient of slot {} of update {}, which does not exist", at.slot, at.update);
  for (ValueId v : n.out)
    if (const Value& norm = g.value(v); norm.spec || norm.dtype != float32 || norm.shape.size() != 0)
      check.wrong(n, "its norm is not a local float32 without axes");
}

void interpret_clip(Interpreter& run, const Node& n) {
  const GradClip& c = at_index(run.g.clips, n.target);
  std::vector<Array> parts;
  std::vector<const GlobalSpec*> specs;
  bool wide = false;
  for (auto& own : c.of) {
    Tensor& grad = run.clipped[own];
    if (!grad.defined())
      for (auto& update : run.g.nodes)
        if (update.kind == NodeKind::kUpdate && update.target == own.update)
          grad = copied(gradient_at(run, update, to_size(own.slot)));
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
  run.make(n, 0, Tensor::local(kernels::on_device(value, run.g.value(n.out[0]).device)));
}

}  // namespace holon::graph::kinds
