#include "holon/base/index.h"
#include "holon/dispatch/autocast.h"
#include "holon/dispatch/dispatch.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/passes/rewrite.h"

namespace holon::graph {

namespace {

// Computed from nothing, without a message between ranks. What is read of tensors from outside is not a constant: the
// program may write to them between two steps.
bool foldable(const Node& n) {
  if (!is_op(n) || n.op->random || n.pinned || n.section == Section::kOnceAfter) return false;
  return std::string_view(n.op->name()) != "empty";
}

}  // namespace

void fold_constants(Graph& g, const CompileOptions& options) {
  std::vector<bool> known(g.values.size(), false), chosen(g.nodes.size(), false);
  bool any = false;
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& n = g.nodes[i];
    bool folds = foldable(n);
    for (ValueId v : n.in) folds = folds && (v == kNoValue || at_index(known, v));
    for (ValueId v : n.out) folds = folds && logical_bytes(g.value(v)) <= options.fold_bytes;
    if (!folds) continue;
    chosen[i] = any = true;
    for (ValueId v : n.out) at_index(known, v) = true;
  }
  if (!any) return;
  // Values that are read by what stays.
  std::vector<bool> read(g.values.size(), false);
  for (ValueId v : g.only().outputs) at_index(read, v) = true;
  for (size_t i = 0; i < g.nodes.size(); ++i)
    for (ValueId v : g.nodes[i].in)
      if (v != kNoValue && !chosen[i]) at_index(read, v) = true;
  NoGradGuard no_grad;
  AutocastPause plain;
  std::vector<Tensor> of(g.values.size());
  Rewrite edit(g);
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    if (!chosen[i]) continue;
    const Node& n = g.nodes[i];
    TensorVec in;
    for (ValueId v : n.in) in.push_back(v == kNoValue ? Tensor() : at_index(of, v));
    TensorVec out = dispatch(*n.op, std::move(in), n.attrs);
    edit.drop(static_cast<NodeId>(i));
    for (size_t o = 0; o < n.out.size(); ++o) {
      Tensor t = out[o].detach();
      HOLON_CHECK(t.spec() == g.value(n.out[o]).spec, "eager gives another layout than: {}", str(g, n));
      at_index(of, n.out[o]) = t;
      if (!at_index(read, n.out[o])) continue;
      Value& v = g.value(n.out[o]);
      v.kind = ValueKind::kExternal;
      v.index = static_cast<int32_t>(g.externals.size());
      External e;
      e.tensor = t;
      e.value = n.out[o];
      g.externals.push_back(std::move(e));
    }
  }
  edit.commit();
}

}  // namespace holon::graph
