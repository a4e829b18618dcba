#include <algorithm>
#include <limits>
#include <unordered_map>

#include "holon/base/index.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/passes/rewrite.h"

namespace holon::graph {

namespace {

// The way of a gradient: the boxing, and what follows it up to the update (sums over micro-batches, views).
struct Way {
  NodeId boxing = -1;
  std::vector<NodeId> after;
};

class Buckets {
 public:
  Buckets(Graph& g, int64_t bytes)
      : g_(g), most_bytes_(bytes), edit_(g), made_by_(producers(g)), uses_(use_counts(g)) {}

  void run() {
    std::vector<Way> ways = find();
    std::sort(ways.begin(), ways.end(), [](const Way& a, const Way& b) { return a.boxing < b.boxing; });
    for (Way& way : ways) {
      const Node& n = at_index(g_.nodes, way.boxing);
      Key key{g_.value(n.in[0]).spec, g_.value(n.out[0]).spec, g_.value(n.in[0]).dtype, n.section, n.stage};
      auto open = std::find_if(open_.begin(), open_.end(), [&](const Open& o) { return o.key == key; });
      if (open == open_.end()) open = open_.insert(open_.end(), Open{key, {}, 0});
      open->bytes += local_bytes(g_.value(n.in[0]));
      open->ways.push_back(std::move(way));
      if (open->bytes < most_bytes_) continue;
      close(*open);
      open_.erase(open);
    }
    for (Open& o : open_) close(o);
    edit_.commit();
  }

 private:
  struct Key {
    const GlobalSpec *from, *to;
    DType dtype;
    Section section;
    int16_t stage;
    bool operator==(const Key&) const = default;
  };
  struct Open {
    Key key;
    std::vector<Way> ways;
    int64_t bytes;
  };

  // What may run later than its place: a sum over micro-batches, a view, one input and one reader each.
  bool may_wait(const Node& n) const {
    return n.in.size() == 1 && n.out.size() == 1 && (n.kind == NodeKind::kAccumulate || (is_op(n) && n.op->view));
  }

  std::vector<Way> find() {
    std::vector<Way> ways;
    for (auto& update : g_.nodes) {
      if (update.kind != NodeKind::kUpdate) continue;
      for (ValueId v : update.in) {
        Way way;
        while (v != kNoValue) {
          NodeId by = at_index(made_by_, v);
          if (by < 0 || at_index(uses_, v) != 1) break;
          const Node& n = at_index(g_.nodes, by);
          if (is_single_boxing(n)) {
            const Value &from = g_.value(n.in[0]), &to = g_.value(n.out[0]);
            if (from.spec->nd_sbp.has_partial() && !to.spec->nd_sbp.has_partial() &&
                from.spec->placement == to.spec->placement)
              way.boxing = by;
            break;
          }
          if (!may_wait(n)) break;
          way.after.push_back(by);
          v = n.in[0];
        }
        if (way.boxing >= 0) ways.push_back(std::move(way));
      }
    }
    return ways;
  }

  void close(Open& o) {
    if (o.ways.size() < 2) return;
    const NodeId last = o.ways.back().boxing;
    Node together = node_like(at_index(g_.nodes, last), NodeKind::kBoxing);
    for (Way& way : o.ways) {
      const Node& n = at_index(g_.nodes, way.boxing);
      together.in.push_back(n.in[0]);
      together.out.push_back(n.out[0]);
      edit_.drop(way.boxing);
    }
    edit_.insert_after(last, std::move(together));
    for (Way& way : o.ways)
      for (size_t k = way.after.size(); k-- > 0;) {
        edit_.insert_after(last, at_index(g_.nodes, way.after[k]));
        edit_.drop(way.after[k]);
      }
  }

  Graph& g_;
  const int64_t most_bytes_;
  Rewrite edit_;
  std::vector<NodeId> made_by_;
  std::vector<int32_t> uses_;
  std::vector<Open> open_;  // in the order in which they were begun, so that ranks agree
};

}  // namespace

void bucket_gradients(Graph& g, const CompileOptions& options) {
  if (options.bucket_bytes > 0) Buckets(g, options.bucket_bytes).run();
}

}  // namespace holon::graph
