#include <map>
#include <vector>

#include "holon/base/index.h"
#include "holon/graph/ir/gradients.h"
#include "holon/graph/ir/readers.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/passes/rewrite.h"
#include "holon/op_names/cast.h"

namespace holon::graph {
namespace {

Device device_of(const Value& v) { return v.spec ? v.spec->placement.device() : v.device; }

// The gradients whose updates may multiply them by what a clipping finds, in float32, or that stay as they are: what is
// changed in place is rounded.
class Unchanged {
 public:
  explicit Unchanged(const Graph& g) {
    const auto gradients = taken_gradients(g);
    for (const GradClip& clip : g.clips) {
      const bool by_update = clip.how.by == optim::Clip::By::kNorm && !clip_device(clip, gradients).is_host();
      for (const GradClip::Of& at : clip.of) changes_[at] += by_update ? 1 : 2;
    }
  }
  bool operator()(const GradClip::Of& at) const {
    const auto found = changes_.find(at);
    return found == changes_.end() || found->second == 1;
  }

 private:
  std::map<GradClip::Of, int> changes_;
};

}  // namespace

void narrow_gradients(Graph& g, const CompileOptions&) {
  if (g.updates.empty() || g.scaled) return;
  const Unchanged unchanged(g);
  const Readers readers(g);
  const std::vector<int32_t> outside = alias_roots(g);
  Rewrite edit(g);
  for (const Node& update : g.nodes) {
    if (update.kind != NodeKind::kUpdate) continue;
    const Update& u = at_index(g.updates, update.target);
    for (size_t i = 0; i < update.in.size(); ++i) {
      const ValueId v = update.in[i];
      if (v == kNoValue || u.shards[i] || !unchanged({update.target, static_cast<int32_t>(i)})) continue;
      const NodeId by = readers.producer(v);
      if (by < 0 || readers.only(v) < 0 || device_of(g.value(v)).is_host()) continue;
      const Node& cast = at_index(g.nodes, by);
      if (!is_op(cast) || cast.op != op::cast || cast.pinned) continue;
      const Value &from = g.value(cast.in[0]), &to = g.value(v);
      const bool narrow = from.dtype == DType::kBFloat16 || from.dtype == DType::kFloat16;
      // Memory from outside may have been updated by then.
      if (!narrow || to.dtype != DType::kFloat32 || readers.producer(cast.in[0]) < 0 ||
          at_index(outside, cast.in[0]) >= 0)
        continue;
      edit.replace(v, cast.in[0]);
      edit.drop(by);
    }
  }
  edit.commit();
}

}  // namespace holon::graph
