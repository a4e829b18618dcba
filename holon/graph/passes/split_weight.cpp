#include <algorithm>
#include <limits>

#include "holon/base/index.h"
#include "holon/graph/ir/stage_devices.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/passes/rewrite.h"
#include "holon/graph/schedule/scheme.h"

namespace holon::graph {

namespace {

// Where a rank has several stages they fill each other's gaps, and there is nothing to hurry for with one micro-batch.
bool waits_for_other_ranks(const Graph& g) {
  const std::vector<int> device = devices_of(ranks_of_stages(g));
  return g.micro_batches > 1 && *std::max_element(device.begin(), device.end()) == g.stages - 1;
}

}  // namespace

void split_weight(Graph& g, const CompileOptions& options) {
  if (g.stages < 2) return;
  if (options.schedule == kAutoSchedule ? !waits_for_other_ranks(g)
                                        : !find_scheme("config", options.schedule)->splits_backward)
    return;
  constexpr int16_t kNobody = std::numeric_limits<int16_t>::max();
  // Of each value: the earliest stage that reads it in backward, and whether a node that is needed does.
  std::vector<int16_t> read_by(g.values.size(), kNobody);
  std::vector<bool> read(g.values.size(), false), needed(g.nodes.size(), false), gives(to_size(g.stages), false);
  for (size_t i = g.nodes.size(); i-- > 0;) {
    const Node& n = g.nodes[i];
    if (n.section != Section::kBackward) continue;
    bool need = !is_pure(n);
    for (ValueId v : n.out) {
      const bool leaves = at_index(read_by, v) < n.stage;
      if (leaves && n.stage >= 0) at_index(gives, n.stage) = true;
      need = need || leaves || at_index(read, v);
    }
    needed[i] = need;
    for (ValueId v : n.in) {
      if (v == kNoValue) continue;
      auto at = to_size(v);
      read_by[at] = std::min(read_by[at], n.stage);
      if (need) read[at] = true;
    }
  }
  // A stage of which nobody waits for anything has nothing to hurry for, and less to keep if it does not split.
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    Node& n = g.nodes[i];
    if (n.section == Section::kBackward && !needed[i] && n.stage >= 0 && at_index(gives, n.stage))
      n.section = Section::kWeight;
  }
}

}  // namespace holon::graph
