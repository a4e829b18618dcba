#include <algorithm>
#include <unordered_set>

#include "holon/base/index.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/passes/rewrite.h"

namespace holon::graph {

namespace {

constexpr size_t kMostRanks = 64;

// The first rank of each placement, whose parts are never smaller than the others'; -1 represents ranks of a local
// graph.
std::vector<int> busiest_ranks(const Graph& g) {
  std::vector<int> ranks;
  std::unordered_set<const void*> seen;
  for (auto& v : g.values)
    if (v.spec && seen.insert(v.spec->placement.id()).second) ranks.push_back(v.spec->placement.ranks()[0]);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  if (ranks.size() > kMostRanks) ranks.resize(kMostRanks);
  if (ranks.empty()) ranks.push_back(-1);
  return ranks;
}

// The same memory under another shape or name.
bool shares_memory(const Graph& g, const Node& n) {
  if (n.kind == NodeKind::kRelabel || (is_op(n) && n.op->view)) return true;
  if (!is_single_boxing(n)) return false;
  const NdSbp &from = g.value(n.in[0]).spec->nd_sbp, &to = g.value(n.out[0]).spec->nd_sbp;
  if (!(g.value(n.in[0]).spec->placement == g.value(n.out[0]).spec->placement)) return false;
  for (int a = 0; a < from.size(); ++a)
    if (!(from[a] == to[a]) && !(from[a].is_broadcast() && to[a].is_split())) return false;
  return true;
}

struct Life {
  int32_t begin = -1, end = -1;        // places in the order of the nodes
  bool forward = false, kept = false;  // made in forward, read in backward
  int16_t stage = 0;
};

}  // namespace

int64_t estimate_peak_bytes(const Graph& g) {
  std::vector<NodeId> order;
  order.reserve(g.nodes.size());
  int32_t batch_end = 0;
  for (int s = 0; s <= static_cast<int>(Section::kOnceAfter); ++s) {
    for (size_t i = 0; i < g.nodes.size(); ++i)
      if (g.nodes[i].section == static_cast<Section>(s)) order.push_back(static_cast<NodeId>(i));
    if (static_cast<Section>(s) == Section::kWeight) batch_end = static_cast<int32_t>(order.size());
  }
  const bool often = g.micro_batches > 1;
  std::vector<ValueId> owner(g.values.size());
  for (size_t v = 0; v < owner.size(); ++v) owner[v] = static_cast<ValueId>(v);
  std::vector<Life> lives(g.values.size());
  for (size_t at = 0; at < order.size(); ++at) {
    const Node& n = at_index(g.nodes, order[at]);
    const auto now = static_cast<int32_t>(at);
    for (ValueId v : n.in) {
      if (v == kNoValue) continue;
      Life& life = at_index(lives, at_index(owner, v));
      life.end = std::max(life.end, now);
      if (n.section == Section::kBackward || n.section == Section::kWeight) life.kept = true;
      // What is there once per step is there until the last micro-batch is through.
      const Value& value = g.value(v);
      if (often && is_per_batch(n.section) && value.kind == ValueKind::kNode && !life.forward && life.begin >= 0 &&
          at_index(g.nodes, at_index(order, life.begin)).section == Section::kOnceBefore)
        life.end = std::max(life.end, batch_end);
    }
    for (size_t o = 0; o < n.out.size(); ++o) {
      if (shares_memory(g, n)) {
        at_index(owner, n.out[o]) = at_index(owner, n.in[n.kind == NodeKind::kBoxing ? o : 0]);
        continue;
      }
      Life& life = at_index(lives, n.out[o]);
      life.begin = n.kind == NodeKind::kAccumulate && often ? 0 : now;
      life.end = now;
      life.forward = n.section == Section::kForward;
      life.stage = std::max<int16_t>(n.stage, 0);
    }
  }
  for (ValueId v : g.only().outputs) at_index(lives, at_index(owner, v)).end = static_cast<int32_t>(order.size());
  int64_t peak = 0;
  std::vector<int64_t> change(order.size() + 2);
  for (int rank : busiest_ranks(g)) {
    std::fill(change.begin(), change.end(), 0);
    int64_t in_flight = 0;
    for (size_t v = 0; v < lives.size(); ++v) {
      const Life& life = lives[v];
      if (life.begin < 0) continue;
      const Value& value = g.values[v];
      if (value.spec && !value.spec->placement.contains(rank)) continue;
      const int64_t bytes = local_bytes(value);
      at_index(change, life.begin) += bytes;
      change[to_size(life.end) + 1] -= bytes;
      // Later micro-batches run forward before the first is back.
      if (life.forward && life.kept)
        in_flight += bytes * (std::min(g.micro_batches, std::max(1, g.stages - life.stage)) - 1);
    }
    int64_t now = in_flight;
    for (int64_t c : change) peak = std::max(peak, now += c);
  }
  return peak;
}

}  // namespace holon::graph
