#include <string_view>
#include <unordered_set>

#include "holon/base/context.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/dispatch/signature.h"
#include "holon/graph/ir/graph.h"
#include "holon/graph/ir/signatures.h"

namespace holon::graph {

bool has_signature(const OpDef& op, const Attrs& attrs, std::span<const Meta> in, std::span<const Meta> out,
                   std::span<const GlobalSpec* const> in_specs, std::span<const GlobalSpec* const> out_specs) {
  if (op.schema.n_inputs == 0) {
    if (op.placement_attr < 0 || !attrs.has(op.placement_attr) || !attrs.has(op.sbp_attr)) return false;
    const GlobalSpec* made = intern_spec(attrs.as_placement(op.placement_attr), attrs.as_nd_sbp(op.sbp_attr));
    for (auto* s : out_specs)
      if (s != made) return false;
    return true;
  }
  const std::vector<Signature> all = signatures_of(op, attrs, in, out);
  const Placement placement = out_specs[0]->placement;
  const int axes = placement.hierarchy().size();
  struct Taken {
    int factor;
    int64_t ranks;
  };
  SmallVec<Taken, 3> taken;
  for (int a = 0; a < axes; ++a) {
    bool found = false;
    for (auto& s : all) {
      bool fits = true;
      for (size_t i = 0; i < in.size() && fits; ++i) fits = !in_specs[i] || in_specs[i]->nd_sbp[a] == s.in[i];
      for (size_t o = 0; o < out.size() && fits; ++o) fits = out_specs[o]->nd_sbp[a] == s.out[o];
      if (fits && s.even_units) {
        int64_t ranks = placement.hierarchy()[a];
        for (auto& t : taken)
          if (t.factor == s.factor) ranks *= t.ranks;
        fits = s.even_units % ranks == 0;
      }
      if (!fits) continue;
      taken.push_back({s.factor, placement.hierarchy()[a]});
      found = true;
      break;
    }
    if (!found) return false;
  }
  return true;
}

bool has_signature(const Graph& g, const Node& n) {
  if (!g.value(n.out[0]).spec) return true;
  SmallVec<Meta, 4> in, out;
  SmallVec<const GlobalSpec*, 4> in_specs, out_specs;
  for (ValueId v : n.in) {
    in.push_back(v == kNoValue ? Meta{} : Meta{g.value(v).shape, g.value(v).dtype});
    in_specs.push_back(v == kNoValue ? nullptr : g.value(v).spec);
  }
  for (ValueId v : n.out) {
    out.push_back({g.value(v).shape, g.value(v).dtype});
    out_specs.push_back(g.value(v).spec);
  }
  return has_signature(*n.op, n.attrs, in, out, in_specs, out_specs);
}

namespace {

// Calls that were found right. Passes leave most nodes as they are, and models repeat their blocks, so that a look-up
// is all that most nodes take.
struct RightCalls {
  std::unordered_set<uint64_t> keys;
  static constexpr size_t kMost = 1 << 18;
};

class Verifier {
 public:
  Verifier(const Graph& g, const char* after) : g_(g), after_(after), right_(Context::current().part<RightCalls>()) {
    if (right_.keys.size() > RightCalls::kMost) right_.keys.clear();
  }

  void run() {
    check_ends();
    for (auto& n : g_.nodes) accumulates_ |= n.kind == NodeKind::kAccumulate;
    made_.assign(g_.values.size(), 0);
    section_.assign(g_.values.size(), Section::kOnceBefore);
    stage_.assign(g_.values.size(), -1);
    variant_.assign(g_.values.size(), -1);
    for (int f = 0; f < g_.variants(); ++f)
      for (ValueId v : g_.inputs_of(f)) at_index(variant_, v) = static_cast<int8_t>(f);
    for (size_t v = 0; v < g_.values.size(); ++v) made_[v] = g_.values[v].kind != ValueKind::kNode;
    for (auto& n : g_.nodes) check(n);
    for (int f = 0; f < g_.variants(); ++f)
      for (ValueId v : g_.outputs_of(f))
        if (!exists(v) || !at_index(made_, v)) broken("no node computes output %{}", v);
  }

 private:
  template <class... Args>
  [[noreturn]] void broken(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::kInternal, "graph after {}: {}.", after_, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  [[noreturn]] void wrong(const Node& n, fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::kInternal, "graph after {}: {}. The node: {}", after_,
         fmt::format(format, std::forward<Args>(args)...), str(g_, n));
  }

  bool exists(ValueId v) const { return v >= 0 && v < static_cast<ValueId>(g_.values.size()); }

  void check_ends() const {
    if (!g_.variant_of.empty() && static_cast<int>(g_.variant_of.size()) != g_.micro_batches)
      broken("it has {} micro-batches, but {} have a variant", g_.micro_batches, g_.variant_of.size());
    for (int8_t f : g_.variant_of)
      if (f < 0 || f >= g_.variants()) broken("a micro-batch has variant {} of {}", f, g_.variants());
    for (int f = 0; f < g_.variants(); ++f) {
      auto& inputs = g_.inputs_of(f);
      if (inputs.size() != g_.inputs.size() || g_.outputs_of(f).size() != g_.outputs.size())
        broken("variant {} has {} inputs and {} outputs instead of {} and {}", f, inputs.size(),
               g_.outputs_of(f).size(), g_.inputs.size(), g_.outputs.size());
      for (size_t i = 0; i < inputs.size(); ++i) {
        ValueId v = inputs[i];
        if (!exists(v) || g_.value(v).kind != ValueKind::kInput || g_.value(v).index != static_cast<int32_t>(i))
          broken("input {} is value %{}, which is not marked as one", i, v);
      }
    }
    for (size_t i = 0; i < g_.externals.size(); ++i) {
      ValueId v = g_.externals[i].value;
      if (!exists(v) || g_.value(v).kind != ValueKind::kExternal || g_.value(v).index != static_cast<int32_t>(i))
        broken("external {} (\"{}\") is value %{}, which is not marked as one", i, g_.externals[i].name, v);
    }
    for (auto& u : g_.updates) {
      if (u.shards.size() != u.externals.size())
        broken("an update has {} slots, but {} shards", u.externals.size(), u.shards.size());
      for (int32_t e : u.externals)
        if (e < 0 || e >= static_cast<int32_t>(g_.externals.size()))
          broken("an update names external {}, which does not exist", e);
    }
  }

  void check(const Node& n) {
    for (ValueId v : n.out)
      if (!exists(v)) broken("a node {} computes value %{}, which does not exist", name(n.kind), v);
    for (ValueId v : n.in) {
      if (v == kNoValue) continue;
      if (!exists(v)) broken("a node {} reads value %{}, which does not exist", name(n.kind), v);
      if (!at_index(made_, v)) wrong(n, "it reads %{} before it is computed", v);
      check_order(n, v);
    }
    for (ValueId v : n.out) {
      auto at = to_size(v);
      const bool adds = n.kind == NodeKind::kAccumulate && made_[at] == 2 && variant_[at] != n.variant;
      if (made_[at] && !adds) wrong(n, "%{} is computed twice, or is an input or external", v);
      made_[at] = n.kind == NodeKind::kAccumulate ? 2 : 1;
      variant_[at] = n.section == Section::kOnceBefore || n.section == Section::kOnceAfter ? -1 : n.variant;
      section_[at] = n.section;
      stage_[at] = n.stage;
    }
    if (n.variant < 0 || n.variant >= g_.variants()) wrong(n, "its variant is {} of {}", n.variant, g_.variants());
    if (n.stage < -1 || (g_.stages > 1 && n.stage >= g_.stages)) wrong(n, "its stage is {} of {}", n.stage, g_.stages);
    switch (n.kind) {
      case NodeKind::kOp: return check_op(n);
      case NodeKind::kBoxing: return check_boxing(n);
      case NodeKind::kRelabel:
      case NodeKind::kAgree: return check_relabel(n);
      case NodeKind::kAccumulate: return check_accumulate(n);
      case NodeKind::kAssign: return check_assign(n);
      case NodeKind::kUpdate: return check_update(n);
      case NodeKind::kFused: return check_fused(n);
      case NodeKind::kClip: return check_clip(n);
    }
    wrong(n, "its kind is unknown");
  }

  // A micro-batch is through with a section before the next one begins, and a stage needs nothing of what comes after
  // it.
  void check_order(const Node& n, ValueId v) const {
    auto at = to_size(v);
    if (g_.values[at].kind == ValueKind::kInput && n.section == Section::kOnceBefore)
      wrong(n, "it runs before the micro-batches, but reads input %{}", v);
    if (n.section != Section::kOnceAfter && variant_[at] >= 0 && variant_[at] != n.variant)
      wrong(n, "it is of variant {}, but reads %{} of variant {}", n.variant, v, variant_[at]);
    if (g_.values[at].kind != ValueKind::kNode) return;
    if (section_[at] > n.section)
      wrong(n, "it is {}, but reads %{}, which is {}", name(n.section), v, name(section_[at]));
    if (g_.micro_batches > 1) {
      if (made_[at] == 2 && n.section != Section::kOnceAfter)
        wrong(n, "it is {}, but reads the sum %{}, which exists after the micro-batches", name(n.section), v);
      if (accumulates_ && made_[at] == 1 && n.section == Section::kOnceAfter && section_[at] != Section::kOnceBefore &&
          section_[at] != Section::kOnceAfter)
        wrong(n, "it runs once per step, but reads %{} of a single micro-batch", v);
    }
    if (g_.stages > 1 && n.stage >= 0 && stage_[at] >= 0 && section_[at] == n.section) {
      if (n.section == Section::kForward && stage_[at] > n.stage)
        wrong(n, "stage {} forward reads %{} of stage {}", n.stage, v, stage_[at]);
      if (n.section == Section::kBackward && stage_[at] < n.stage)
        wrong(n, "stage {} backward reads %{} of stage {}", n.stage, v, stage_[at]);
    }
  }

  void alike(const Node& n, const Value& a, const Value& b, const char* what) const {
    if (!(a.shape == b.shape) || a.dtype != b.dtype)
      wrong(n, "{} is {} {}, not {} {}", what, holon::name(a.dtype), a.shape, holon::name(b.dtype), b.shape);
  }

  void counts(const Node& n, size_t in, size_t out) const {
    if (n.in.size() != in || n.out.size() != out)
      wrong(n, "it has {} inputs and {} outputs instead of {} and {}", n.in.size(), n.out.size(), in, out);
    for (ValueId v : n.in)
      if (v == kNoValue) wrong(n, "an input is absent");
  }

  void check_op(const Node& n) {
    if (!n.op) wrong(n, "it has no op");
    const OpDef& op = *n.op;
    if (!op.kernel && !op.view) wrong(n, "{} has neither a kernel nor a view", op.name());
    if (n.out.empty()) wrong(n, "it has no outputs");
    if (static_cast<int>(n.attrs.size()) != op.schema.n_attrs)
      wrong(n, "it has {} attributes, {} takes {}", n.attrs.size(), op.name(), op.schema.n_attrs);
    Hasher key;
    key.add(&op);
    for (uint16_t s : n.attrs.starts()) key.add(s);
    for (int64_t w : n.attrs.words()) key.add(w);
    auto add = [&](ValueId id) {
      if (id == kNoValue) return void(key.add(~0ull));
      const Value& v = g_.value(id);
      key.add(v.spec);
      key.add(static_cast<uint64_t>(v.dtype) << 8 | static_cast<uint64_t>(v.shape.size()));
      for (int64_t x : v.shape) key.add(x);
    };
    for (ValueId v : n.in) add(v);
    key.add(n.in.size());
    for (ValueId v : n.out) add(v);
    if (right_.keys.count(key.value())) return;
    infer(n);
    right_.keys.insert(key.value());
  }

  void infer(const Node& n) const {
    const OpDef& op = *n.op;
    SmallVec<Meta, 4> in;
    SmallVec<const GlobalSpec*, 4> in_specs, out_specs;
    uint32_t present = 0;
    const bool global = g_.value(n.out[0]).is_global();
    for (size_t i = 0; i < n.in.size(); ++i) {
      if (n.in[i] == kNoValue) {
        in.emplace_back();
        in_specs.push_back(nullptr);
        continue;
      }
      const Value& v = g_.value(n.in[i]);
      in.push_back({v.shape, v.dtype});
      in_specs.push_back(v.spec);
      present |= 1u << std::min<size_t>(i, 31);
      if (v.is_global() != global)
        wrong(n, "%{} is {}, its output {}", n.in[i], v.is_global() ? "global" : "local", global ? "global" : "local");
    }
    if (!op.schema.input_list && static_cast<int>(n.in.size()) != op.schema.n_inputs)
      wrong(n, "it has {} inputs, {} takes {}", n.in.size(), op.name(), op.schema.n_inputs);
    Infer infer(op, n.attrs, in, present);
    op.infer(infer);
    if (infer.out_.size() != n.out.size())
      wrong(n, "it has {} outputs, {} returns {}", n.out.size(), op.name(), infer.out_.size());
    for (size_t o = 0; o < n.out.size(); ++o) {
      const Value& v = g_.value(n.out[o]);
      if (!(v.shape == infer.out_[o].shape) || v.dtype != infer.out_[o].dtype)
        wrong(n, "%{} is {} {}, where {} infers {} {}", n.out[o], holon::name(v.dtype), v.shape, op.name(),
              holon::name(infer.out_[o].dtype), infer.out_[o].shape);
      if (v.is_global() != global) wrong(n, "some outputs are global, some local");
      out_specs.push_back(v.spec);
    }
    if (!global) return;
    for (auto* s : in_specs)
      if (s && !(s->placement == out_specs[0]->placement)) wrong(n, "an input is on {}", s->placement);
    for (auto* s : out_specs)
      if (!(s->placement == out_specs[0]->placement)) wrong(n, "an output is on {}", s->placement);
    if (!has_signature(op, n.attrs, in, infer.out_, in_specs, out_specs))
      wrong(n, "{} has no signature of these layouts", op.name());
  }

  void check_boxing(const Node& n) const {
    if (n.in.empty()) wrong(n, "it has no inputs to redistribute");
    counts(n, n.in.size(), n.in.size());
    for (size_t i = 0; i < n.in.size(); ++i) {
      const Value &a = g_.value(n.in[i]), &b = g_.value(n.out[i]);
      alike(n, b, a, "the redistributed value");
      if (!a.spec || !b.spec) wrong(n, "a local value is redistributed");
      if (a.spec != g_.value(n.in[0]).spec || b.spec != g_.value(n.out[0]).spec || a.dtype != g_.value(n.in[0]).dtype)
        wrong(n, "the values that it redistributes together differ in layout or dtype");
    }
  }

  void check_relabel(const Node& n) const {
    counts(n, 1, 1);
    const Value &a = g_.value(n.in[0]), &b = g_.value(n.out[0]);
    if (a.dtype != b.dtype || a.shape.size() != b.shape.size())
      wrong(n, "its dtype or number of axes differs from %{}", n.in[0]);
    if (a.is_global() && b.is_global() && !(a.spec->placement == b.spec->placement))
      wrong(n, "it is on other ranks than %{}", n.in[0]);
  }

  void check_accumulate(const Node& n) const {
    counts(n, 1, 1);
    const Value &a = g_.value(n.in[0]), &b = g_.value(n.out[0]);
    alike(n, b, a, "the sum");
    if (a.spec != b.spec) wrong(n, "the sum is in another layout than %{}", n.in[0]);
    if (n.section == Section::kOnceBefore || n.section == Section::kOnceAfter)
      wrong(n, "it accumulates outside the micro-batches");
  }

  void check_assign(const Node& n) const {
    counts(n, 1, 0);
    if (n.target < 0 || n.target >= static_cast<int32_t>(g_.externals.size()))
      wrong(n, "it writes to external {}, which does not exist", n.target);
    const External& e = at_index(g_.externals, n.target);
    if (!e.assigned) wrong(n, "external {} is not marked as assigned", n.target);
    const Value &a = g_.value(n.in[0]), &b = g_.value(e.value);
    alike(n, a, b, "the assigned value");
    if (a.spec != b.spec) wrong(n, "it writes to an external with another layout");
  }

  void check_update(const Node& n) const {
    if (n.target < 0 || n.target >= static_cast<int32_t>(g_.updates.size()))
      wrong(n, "it belongs to update {}, which does not exist", n.target);
    const Update& u = at_index(g_.updates, n.target);
    size_t shards = 0;
    for (auto* s : u.shards) shards += s != nullptr;
    if (n.in.size() != u.externals.size() || n.out.size() != shards)
      wrong(n, "it has {} gradients and {} new values for {} slots, {} of them in shards", n.in.size(), n.out.size(),
            u.externals.size(), shards);
    size_t next = 0;
    for (size_t i = 0; i < n.in.size(); ++i) {
      const External& e = at_index(g_.externals, u.externals[i]);
      const Value& p = g_.value(e.value);
      const GlobalSpec* at = u.shards[i];
      if (at) {
        const Value& v = g_.value(n.out[next++]);
        alike(n, v, p, "a new value");
        if (v.spec != at) wrong(n, "the new value of \"{}\" does not have its shard's layout", e.name);
      }
      if (n.in[i] == kNoValue) continue;
      const Value& d = g_.value(n.in[i]);
      alike(n, d, p, "a gradient");
      bool fits =
          d.spec == (at ? at : p.spec) || (!at && d.spec && p.spec && d.spec == optim::state_spec(u.rule, e.tensor));
      if (!fits) wrong(n, "the gradient of \"{}\" does not have the layout in which it is updated", e.name);
    }
  }

  void check_clip(const Node& n) const {
    if (n.target < 0 || n.target >= static_cast<int32_t>(g_.clips.size()))
      wrong(n, "it belongs to clipping {}, which does not exist", n.target);
    const GradClip& c = at_index(g_.clips, n.target);
    counts(n, 0, c.how.by == optim::Clip::By::kNorm ? 1 : 0);
    if (n.section != Section::kOnceAfter) wrong(n, "it clips before all gradients exist");
    for (auto& at : c.of)
      if (at.update < 0 || at.update >= static_cast<int32_t>(g_.updates.size()) || at.slot < 0 ||
          at.slot >= static_cast<int32_t>(at_index(g_.updates, at.update).externals.size()))
        wrong(n, "it clips the gradient of slot {} of update {}, which does not exist", at.slot, at.update);
    for (ValueId v : n.out)
      if (const Value& norm = g_.value(v); norm.spec || norm.dtype != float32 || norm.shape.size() != 0)
        wrong(n, "its norm is not a local float32 without axes");
  }

  void check_fused(const Node& n) const {
    if (n.target < 0 || n.target >= static_cast<int32_t>(g_.bodies.size()))
      wrong(n, "its body is {}, which does not exist", n.target);
    const FusedBody& body = at_index(g_.bodies, n.target);
    if (body.results.size() != n.out.size() || n.out.empty())
      wrong(n, "it has {} outputs, its body {} results", n.out.size(), body.results.size());
    const GlobalSpec* spec = g_.value(n.out[0]).spec;
    SmallVec<Meta, 16> metas;
    for (ValueId v : n.in) {
      metas.push_back(v == kNoValue ? Meta{} : Meta{g_.value(v).shape, g_.value(v).dtype});
      if (v != kNoValue && g_.value(v).is_global() != (spec != nullptr))
        wrong(n, "some of its values are global, some local");
    }
    for (auto& part : body.parts) {
      if (!part.op || !part.op->kernel) wrong(n, "a part has no op with a kernel");
      SmallVec<Meta, 3> in;
      uint32_t present = 0;
      for (size_t i = 0; i < part.in.size(); ++i) {
        int16_t at = part.in[i];
        if (at >= static_cast<int>(metas.size()))
          wrong(n, "part {} reads operand {} before it is computed", part.op->name(), at);
        in.push_back(at < 0 ? Meta{} : at_index(metas, at));
        if (at >= 0) present |= 1u << i;
      }
      Infer infer(*part.op, part.attrs, in, present);
      part.op->infer(infer);
      if (infer.out_.size() != 1) wrong(n, "part {} has {} outputs", part.op->name(), infer.out_.size());
      metas.push_back(infer.out_[0]);
    }
    for (size_t o = 0; o < n.out.size(); ++o) {
      const Value& v = g_.value(n.out[o]);
      auto at = n.in.size() + to_size(body.results[o]);
      if (body.results[o] < 0 || at >= metas.size())
        wrong(n, "result {} names part {}, which does not exist", o, body.results[o]);
      if (!(metas[at].shape == v.shape) || metas[at].dtype != v.dtype)
        wrong(n, "%{} is {} {}, where its parts infer {} {}", n.out[o], holon::name(v.dtype), v.shape,
              holon::name(metas[at].dtype), metas[at].shape);
      if ((v.spec != nullptr) != (spec != nullptr) || (spec && !(v.spec->placement == spec->placement)))
        wrong(n, "its outputs are on different ranks");
    }
  }

  const Graph& g_;
  const char* after_;
  RightCalls& right_;
  bool accumulates_ = false;
  std::vector<uint8_t> made_;  // 2: by kAccumulate
  std::vector<Section> section_;
  std::vector<int16_t> stage_;
  std::vector<int8_t> variant_;  // -1: there once per step
};

}  // namespace

void verify(const Graph& g, const char* after) { Verifier(g, after).run(); }

}  // namespace holon::graph
