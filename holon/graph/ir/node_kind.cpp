#include "holon/graph/ir/node_kind.h"

#include "holon/graph/ir/kinds.h"

namespace holon::graph {

using K = NodeKind;
using namespace kinds;

constexpr KindDef kKinds[kNodeKinds] = {
    {K::kOp, "op", Target::kNone, {.computes = true}, op_text, nullptr, verify_op, interpret_op},
    {K::kBoxing, "boxing", Target::kNone, {.moves = true}, nullptr, nullptr, verify_boxing, interpret_boxing},
    {K::kRelabel, "relabel", Target::kNone, {.moves = true}, nullptr, nullptr, verify_relabel, interpret_relabel},
    {K::kAgree, "agree", Target::kNone, {.moves = true}, nullptr, nullptr, verify_relabel, interpret_agree},
    {K::kAccumulate,
     "accumulate",
     Target::kNone,
     {.computes = true},
     nullptr,
     nullptr,
     verify_accumulate,
     interpret_accumulate},
    {K::kAssign, "assign", Target::kExternal, {.effects = true}, assign_text, nullptr, verify_assign, interpret_assign},
    {K::kUpdate,
     "update",
     Target::kUpdate,
     {.effects = true, .gradients = true},
     update_text,
     nullptr,
     verify_update,
     interpret_update},
    {K::kFused, "fused", Target::kBody, {.computes = true}, fused_text, hash_fused, verify_fused, interpret_fused},
    {K::kClip,
     "clip",
     Target::kClip,
     {.effects = true, .gradients = true},
     clip_text,
     nullptr,
     verify_clip,
     interpret_clip},
};

static_assert(
    [] {
      for (size_t i = 0; i < kNodeKinds; ++i)
        if (kKinds[i].kind != static_cast<NodeKind>(i)) return false;
      return true;
    }(),
    "the entries are not in the order of NodeKind");

const char* name(NodeKind kind) { return def(kind).name; }

size_t target_count(const Graph& g, const Node& n) {
  switch (def(n.kind).target) {
    case Target::kNone: return 0;
    case Target::kExternal: return g.externals.size();
    case Target::kUpdate: return g.updates.size();
    case Target::kBody: return g.bodies.size();
    case Target::kClip: return g.clips.size();
  }
  return 0;
}

}  // namespace holon::graph
