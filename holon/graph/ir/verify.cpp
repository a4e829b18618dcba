#include "holon/base/index.h"
#include "holon/graph/ir/kinds.h"

namespace holon::graph {

void NodeCheck::alike(const Node& n, const Value& a, const Value& b, const char* what) const {
  if (!(a.shape == b.shape) || a.dtype != b.dtype)
    wrong(n, "{} is {} {}, not {} {}", what, holon::name(a.dtype), a.shape, holon::name(b.dtype), b.shape);
}

void NodeCheck::counts(const Node& n, size_t in, size_t out) const {
  if (n.in.size() != in || n.out.size() != out)
    wrong(n, "it has {} inputs and {} outputs instead of {} and {}", n.in.size(), n.out.size(), in, out);
  for (ValueId v : n.in)
    if (v == kNoValue) wrong(n, "an input is absent");
}

namespace {

class Verifier : private NodeCheck {
 public:
  Verifier(const Graph& g, const char* after) : NodeCheck(g, after) {}

  void run() {
    check_ends();
    for (auto& n : g.nodes) accumulates_ |= n.kind == NodeKind::kAccumulate;
    made_.assign(g.values.size(), 0);
    section_.assign(g.values.size(), Section::kOnceBefore);
    stage_.assign(g.values.size(), -1);
    variant_.assign(g.values.size(), -1);
    for (int f = 0; f < g.variants(); ++f)
      for (ValueId v : g.inputs_of(f)) at_index(variant_, v) = static_cast<int8_t>(f);
    for (size_t v = 0; v < g.values.size(); ++v) made_[v] = g.values[v].kind != ValueKind::kNode;
    for (auto& n : g.nodes) check(n);
    for (int f = 0; f < g.variants(); ++f)
      for (ValueId v : g.outputs_of(f))
        if (!exists(v) || !at_index(made_, v)) broken("no node computes output %{}", v);
  }

 private:
  bool exists(ValueId v) const { return v >= 0 && v < static_cast<ValueId>(g.values.size()); }

  void check_ends() const {
    if (!g.variant_of.empty() && static_cast<int>(g.variant_of.size()) != g.micro_batches)
      broken("it has {} micro-batches, but {} have a variant", g.micro_batches, g.variant_of.size());
    for (int8_t f : g.variant_of)
      if (f < 0 || f >= g.variants()) broken("a micro-batch has variant {} of {}", f, g.variants());
    for (int f = 0; f < g.variants(); ++f) {
      auto& inputs = g.inputs_of(f);
      if (inputs.size() != g.n_inputs() || g.outputs_of(f).size() != g.n_outputs())
        broken("variant {} has {} inputs and {} outputs instead of {} and {}", f, inputs.size(), g.outputs_of(f).size(),
               g.n_inputs(), g.n_outputs());
      for (size_t i = 0; i < inputs.size(); ++i) {
        ValueId v = inputs[i];
        if (!exists(v) || g.value(v).kind != ValueKind::kInput || g.value(v).index != static_cast<int32_t>(i))
          broken("input {} is value %{}, which is not marked as one", i, v);
      }
    }
    for (size_t i = 0; i < g.externals.size(); ++i) {
      ValueId v = g.externals[i].value;
      if (!exists(v) || g.value(v).kind != ValueKind::kExternal || g.value(v).index != static_cast<int32_t>(i))
        broken("external {} (\"{}\") is value %{}, which is not marked as one", i, g.externals[i].name, v);
    }
    for (auto& u : g.updates) {
      if (u.shards.size() != u.externals.size())
        broken("an update has {} slots, but {} shards", u.externals.size(), u.shards.size());
      for (int32_t e : u.externals)
        if (e < 0 || e >= static_cast<int32_t>(g.externals.size()))
          broken("an update names external {}, which does not exist", e);
    }
  }

  void check(const Node& n) {
    if (static_cast<size_t>(n.kind) >= kNodeKinds)
      broken("a node has the kind {}, which is unknown", static_cast<int>(n.kind));
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
    if (n.variant < 0 || n.variant >= g.variants()) wrong(n, "its variant is {} of {}", n.variant, g.variants());
    if (n.stage < -1 || (g.stages > 1 && n.stage >= g.stages)) wrong(n, "its stage is {} of {}", n.stage, g.stages);
    def(n.kind).verify(*this, n);
  }

  // A micro-batch is through with a section before the next one begins, and a stage needs nothing of what comes after
  // it.
  void check_order(const Node& n, ValueId v) const {
    auto at = to_size(v);
    if (g.values[at].kind == ValueKind::kInput && n.section == Section::kOnceBefore)
      wrong(n, "it runs before the micro-batches, but reads input %{}", v);
    if (n.section != Section::kOnceAfter && variant_[at] >= 0 && variant_[at] != n.variant)
      wrong(n, "it is of variant {}, but reads %{} of variant {}", n.variant, v, variant_[at]);
    if (g.values[at].kind != ValueKind::kNode) return;
    if (section_[at] > n.section)
      wrong(n, "it is {}, but reads %{}, which is {}", name(n.section), v, name(section_[at]));
    if (g.micro_batches > 1) {
      if (made_[at] == 2 && n.section != Section::kOnceAfter)
        wrong(n, "it is {}, but reads the sum %{}, which exists after the micro-batches", name(n.section), v);
      if (accumulates_ && made_[at] == 1 && n.section == Section::kOnceAfter && section_[at] != Section::kOnceBefore &&
          section_[at] != Section::kOnceAfter)
        wrong(n, "it runs once per step, but reads %{} of a single micro-batch", v);
    }
    if (g.stages > 1 && n.stage >= 0 && stage_[at] >= 0 && section_[at] == n.section) {
      if (n.section == Section::kForward && stage_[at] > n.stage)
        wrong(n, "stage {} forward reads %{} of stage {}", n.stage, v, stage_[at]);
      if (n.section == Section::kBackward && stage_[at] < n.stage)
        wrong(n, "stage {} backward reads %{} of stage {}", n.stage, v, stage_[at]);
    }
  }

  bool accumulates_ = false;
  std::vector<uint8_t> made_;  // 2: by kAccumulate
  std::vector<Section> section_;
  std::vector<int16_t> stage_;
  std::vector<int8_t> variant_;  // -1: there once per step
};

}  // namespace

void verify(const Graph& g, const char* after) { Verifier(g, after).run(); }

}  // namespace holon::graph
