#include "holon/boxing/host_load.h"

#include <algorithm>
#include <map>
#include <set>

#include "holon/boxing/regions.h"

namespace holon::boxing {

namespace {

bool is_fixed(unsigned fixed, int axis) { return fixed >> axis & 1; }

// Ranks of a host with the same key hold the same part: the coordinates along S, and along P where addends stay apart.
std::vector<int64_t> key_of(const GlobalSpec& s, unsigned fixed, const Dims& at) {
  std::vector<int64_t> key;
  for (int a = 0; a < at.size(); ++a)
    if (s.nd_sbp[a].is_split() || (s.nd_sbp[a].is_partial() && is_fixed(fixed, a))) key.push_back(at[a]);
  return key;
}

// The hosts that hold the addends which the index-th rank of `from` has one of.
std::set<int> hosts_of_addends(const GlobalSpec& from, unsigned fixed, int index, const HostMap& hosts) {
  const Dims& h = from.placement.hierarchy();
  Dims strides = contiguous_strides(h), at = from.placement.coordinate(index);
  std::vector<int64_t> indices = {index};
  for (int a = 0; a < h.size(); ++a) {
    if (!from.nd_sbp[a].is_partial() || is_fixed(fixed, a)) continue;
    std::vector<int64_t> next;
    for (int64_t i : indices)
      for (int64_t c = 0; c < h[a]; ++c) next.push_back(i + (c - at[a]) * strides[a]);
    indices = std::move(next);
  }
  std::set<int> result;
  for (int64_t i : indices) result.insert(hosts.host(from.placement.ranks()[static_cast<size_t>(i)]));
  return result;
}

// Groups of an all_reduce: members by host.
HostLoad load_of_two_phases(const GlobalSpec& from, const GlobalSpec& to, unsigned fixed, const Dims& shape,
                            const HostMap& hosts) {
  struct Group {
    int64_t elements = 0, members = 0;
    std::map<int, int64_t> on_host;
  };
  std::map<std::vector<int64_t>, Group> groups;
  for (int i = 0; i < from.placement.size(); ++i) {
    Dims at = from.placement.coordinate(i);
    std::vector<int64_t> key;
    for (int a = 0; a < at.size(); ++a)
      if (is_fixed(fixed, a)) key.push_back(at[a]);
    Group& g = groups[key];
    if (!g.members++) g.elements = slice_of(shape, to.placement, to.nd_sbp, i).shape.numel();
    ++g.on_host[hosts.host(from.placement.ranks()[static_cast<size_t>(i)])];
  }
  HostLoad load;
  std::map<int, int64_t> in;
  for (auto& [key, g] : groups) {
    load.meet |= g.on_host.size() > 1;
    for (auto [host, k] : g.on_host) {
      int64_t mine = g.elements * k / g.members;
      in[host] += mine * static_cast<int64_t>(g.on_host.size() - 1) + g.elements - mine;
    }
  }
  for (auto [host, elements] : in) load.in_elements = std::max(load.in_elements, elements);
  load.out_elements = load.in_elements;
  return load;
}

}  // namespace

HostLoad host_load(const GlobalSpec& from, const GlobalSpec& to, unsigned fixed, const Dims& shape, bool two_phase,
                   const HostMap& hosts) {
  if (two_phase) return load_of_two_phases(from, to, fixed, shape, hosts);
  struct Part {
    Slice slice;
    std::vector<int64_t> apart;  // coordinates along fixed P axes
    int index;
  };
  using Parts = std::map<std::vector<int64_t>, Part>;
  auto parts_by_host = [&](const GlobalSpec& s) {
    std::map<int, Parts> result;
    for (int i = 0; i < s.placement.size(); ++i) {
      Dims at = s.placement.coordinate(i);
      Part part{slice_of(shape, s.placement, s.nd_sbp, i), {}, i};
      for (int a = 0; a < at.size(); ++a)
        if (is_fixed(fixed, a) && from.nd_sbp[a].is_partial()) part.apart.push_back(at[a]);
      result[hosts.host(s.placement.ranks()[static_cast<size_t>(i)])].emplace(key_of(s, fixed, at), std::move(part));
    }
    return result;
  };
  auto sources = parts_by_host(from), targets = parts_by_host(to);
  const int64_t summed = addends(from, fixed);

  HostLoad load;
  int64_t total = 0;
  for (auto& [host, wanted] : targets) {
    int64_t in = 0;
    auto here = sources.find(host);
    for (auto& [key, part] : wanted) {
      int64_t elements = part.slice.shape.numel();
      if (summed > 1) {
        int own = from.placement == to.placement ? part.index : 0;
        auto givers = hosts_of_addends(from, fixed, own, hosts);
        givers.erase(host);
        in += elements * static_cast<int64_t>(givers.size());
        load.meet |= !givers.empty();
        continue;
      }
      if (here != sources.end())
        for (auto& [k, had] : here->second) {
          Slice box;
          if (had.apart == part.apart && intersect(had.slice, part.slice, &box)) elements -= box.shape.numel();
        }
      in += elements;
    }
    load.in_elements = std::max(load.in_elements, in);
    total += in;
  }
  load.out_elements = total / static_cast<int64_t>(sources.size());
  load.meet |= total > 0;
  return load;
}

}  // namespace holon::boxing
