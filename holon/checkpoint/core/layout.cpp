#include "holon/checkpoint/core/layout.h"

#include <map>
#include <utility>

#include "holon/base/index.h"
#include "holon/global/region_at.h"

namespace holon::checkpoint {

SavedLayout layout_of(const GlobalSpec& spec) {
  const Placement& p = spec.placement;
  return {name(p.device_type()),
          {p.hierarchy().begin(), p.hierarchy().end()},
          {p.ranks().begin(), p.ranks().end()},
          {spec.nd_sbp.begin(), spec.nd_sbp.end()}};
}

std::vector<HeldRegion> held_regions(const Dims& shape, const SavedLayout& layout) {
  const Dims hierarchy(layout.hierarchy);
  std::map<std::vector<int64_t>, HeldRegion> found;  // by the coordinates along the axes that split
  for (size_t i = 0; i < layout.ranks.size(); ++i) {
    Dims at = hierarchy;
    int64_t rest = static_cast<int64_t>(i);
    for (int a = hierarchy.size() - 1; a >= 0; --a) at[a] = rest % hierarchy[a], rest /= hierarchy[a];
    std::vector<int64_t> key;
    for (int a = 0; a < at.size(); ++a)
      if (at_index(layout.nd_sbp, a).is_split()) key.push_back(at[a]);
    auto [it, fresh] = found.try_emplace(std::move(key));
    if (fresh) it->second.region = region_at(shape, hierarchy, layout.nd_sbp, at);
    it->second.ranks.push_back(static_cast<int>(layout.ranks[i]));
  }
  std::vector<HeldRegion> out;
  for (auto& [key, held] : found)
    if (held.region.shape.numel() > 0) out.push_back(std::move(held));
  return out;
}

}  // namespace holon::checkpoint
