#include "holon/boxing/host_load.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <vector>

#include "holon/base/index.h"
#include "holon/boxing/regions.h"

namespace holon::boxing {

namespace {

bool is_fixed(unsigned fixed, int axis) { return fixed >> axis & 1; }

// The source's ranks of a group, grouped by what they hold.
struct Piece {
  Slice slice;
  Dims apart;  // coordinates along fixed axes
  // By copy: the hosts of the addends, with how many each has. One host with one if nothing is summed.
  std::vector<std::vector<std::pair<int, int64_t>>> senders;
};

std::vector<Piece> pieces_of(const GlobalSpec& from, unsigned fixed, const Dims& shape, const HostMap& hosts) {
  std::map<std::vector<int64_t>, std::map<std::vector<int64_t>, std::map<int, int64_t>>>
      held;  // by place, then by copy
  std::map<std::vector<int64_t>, int> index;
  for (int i = 0; i < from.placement.size(); ++i) {
    Dims at = from.placement.coordinate(i);
    std::vector<int64_t> place, copy;
    for (int a = 0; a < at.size(); ++a) {
      if (from.nd_sbp[a].is_split() || is_fixed(fixed, a))
        place.push_back(at[a]);
      else if (from.nd_sbp[a].is_broadcast())
        copy.push_back(at[a]);
    }
    ++held[place][copy][hosts.host(at_index(from.placement.ranks(), i))];
    index.emplace(place, i);
  }
  std::vector<Piece> pieces;
  for (auto& [place, copies] : held) {
    int i = index[place];
    Piece piece{slice_of(shape, from.placement, from.nd_sbp, i), {}, {}};
    Dims at = from.placement.coordinate(i);
    for (int a = 0; a < at.size(); ++a)
      if (is_fixed(fixed, a)) piece.apart.push_back(at[a]);
    for (auto& [copy, on] : copies) piece.senders.emplace_back(on.begin(), on.end());
    std::sort(piece.senders.begin(), piece.senders.end());
    piece.senders.erase(std::unique(piece.senders.begin(), piece.senders.end()), piece.senders.end());
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

// Groups of an all_reduce: members by host.
HostLoad load_of_two_phases(const GlobalSpec& from, const GlobalSpec& to, unsigned fixed, const Dims& shape,
                            const HostMap& hosts) {
  struct Group {
    int64_t elements = 0;
    std::vector<int> host_of;  // of each member
  };
  std::map<std::vector<int64_t>, Group> groups;
  for (int i = 0; i < from.placement.size(); ++i) {
    Dims at = from.placement.coordinate(i);
    std::vector<int64_t> key;
    for (int a = 0; a < at.size(); ++a)
      if (is_fixed(fixed, a)) key.push_back(at[a]);
    Group& g = groups[key];
    g.elements = slice_of(shape, to.placement, to.nd_sbp, i).shape.numel();
    g.host_of.push_back(hosts.host(at_index(from.placement.ranks(), i)));
  }
  HostLoad load;
  std::map<int, int64_t> in, summed;
  for (auto& [key, g] : groups) {
    struct Share {
      int64_t members = 0, pieces = 0;
    };
    std::map<int, Share> shares;
    const auto n = static_cast<int64_t>(g.host_of.size());
    for (int64_t m = 0; m < n; ++m) {
      Share& s = shares[at_index(g.host_of, m)];
      ++s.members;
      s.pieces += balanced_split(g.elements, n, m).size;
    }
    load.crosses |= shares.size() > 1;
    for (auto [host, s] : shares) {
      in[host] += s.pieces * static_cast<int64_t>(shares.size() - 1) + g.elements - s.pieces;
      if (s.members > 1) summed[host] += (g.elements - s.pieces) * s.members;
    }
  }
  for (auto [host, elements] : in) load.in_elements = std::max(load.in_elements, elements);
  for (auto [host, elements] : summed) load.summed_elements = std::max(load.summed_elements, elements);
  load.out_elements = load.in_elements;
  return load;
}

}  // namespace

HostLoad load_of_first_host(const GlobalSpec& from, const GlobalSpec& to, unsigned fixed, const Dims& shape,
                            const HostMap& hosts) {
  const int host = hosts.host(to.placement.ranks()[0]);
  struct Part {
    Slice slice;
    std::vector<int64_t> apart;
  };
  // The host's parts, each once.
  auto parts_of = [&](const GlobalSpec& s) {
    std::map<std::vector<int64_t>, Part> parts;
    for (int i = 0; i < s.placement.size(); ++i) {
      if (hosts.host(at_index(s.placement.ranks(), i)) != host) continue;
      Dims at = s.placement.coordinate(i);
      std::vector<int64_t> place, apart;
      for (int a = 0; a < at.size(); ++a) {
        const bool stays = s.nd_sbp[a].is_partial() && is_fixed(fixed, a);
        if (stays) apart.push_back(at[a]);
        if (stays || s.nd_sbp[a].is_split()) place.push_back(at[a]);
      }
      parts.try_emplace(place, Part{slice_of(shape, s.placement, s.nd_sbp, i), apart});
    }
    return parts;
  };
  auto wanted = parts_of(to);
  HostLoad load;
  if (addends(from, fixed) == 1) {
    auto had = parts_of(from);
    for (auto& [place, part] : wanted) {
      load.in_elements += part.slice.shape.numel();
      for (auto& [at, source] : had)
        if (Slice region; source.apart == part.apart && intersect(source.slice, part.slice, &region))
          load.in_elements -= region.shape.numel();
    }
  } else {
    const Dims& h = from.placement.hierarchy();
    const Dims strides = contiguous_strides(h);
    auto summed = [&](int a) { return from.nd_sbp[a].is_partial() && !is_fixed(fixed, a); };
    // Of copies, those that the host has itself, if it has any.
    Dims copy = Dims::filled(h.size(), 0);
    for (int i = 0; i < from.placement.size(); ++i)
      if (hosts.host(at_index(from.placement.ranks(), i)) == host) {
        copy = from.placement.coordinate(i);
        break;
      }
    std::vector<int64_t> line = {0};  // from one rank to its fellow addends
    for (int a = 0; a < h.size(); ++a) {
      if (!summed(a)) continue;
      std::vector<int64_t> longer;
      for (int64_t at : line)
        for (int64_t c = 0; c < h[a]; ++c) longer.push_back(at + c * strides[a]);
      line = std::move(longer);
    }
    for (int i = 0; i < from.placement.size(); ++i) {
      Dims at = from.placement.coordinate(i);
      bool stands = true;
      for (int a = 0; a < at.size(); ++a)
        stands &= summed(a) ? at[a] == 0 : !from.nd_sbp[a].is_broadcast() || at[a] == copy[a];
      if (!stands) continue;
      std::vector<int64_t> apart;
      for (int a = 0; a < at.size(); ++a)
        if (from.nd_sbp[a].is_partial() && is_fixed(fixed, a)) apart.push_back(at[a]);
      const Slice source = slice_of(shape, from.placement, from.nd_sbp, i);
      int64_t elements = 0;
      for (auto& [place, part] : wanted)
        if (Slice region; part.apart == apart && intersect(source, part.slice, &region))
          elements += region.shape.numel();
      if (elements == 0) continue;
      std::map<int, int64_t> senders;
      for (int64_t step : line) ++senders[hosts.host(at_index(from.placement.ranks(), i + step))];
      for (auto [sender, n] : senders) {
        if (sender == host) continue;
        load.in_elements += elements;
        if (n > 1) load.summed_elements += elements * n;
      }
    }
  }
  load.out_elements = load.in_elements;
  load.crosses = load.in_elements > 0;
  return load;
}

HostLoad host_load(const GlobalSpec& from, const GlobalSpec& to, unsigned fixed, const Dims& shape, bool two_phase,
                   const HostMap& hosts) {
  if (two_phase) return load_of_two_phases(from, to, fixed, shape, hosts);
  const auto pieces = pieces_of(from, fixed, shape, hosts);
  // What each host's ranks need, each part once within a group.
  std::map<int, std::map<std::vector<int64_t>, int>> wanted;
  for (int i = 0; i < to.placement.size(); ++i) {
    Dims at = to.placement.coordinate(i);
    std::vector<int64_t> place;
    for (int a = 0; a < at.size(); ++a)
      if (!to.nd_sbp[a].is_broadcast() || is_fixed(fixed, a)) place.push_back(at[a]);
    wanted[hosts.host(at_index(to.placement.ranks(), i))].emplace(place, i);
  }
  if (static_cast<int64_t>(from.placement.size()) * to.placement.size() > 1 << 18 && wanted.size() > 3) {
    std::map<int, std::map<std::vector<int64_t>, int>> some;
    for (size_t i : {size_t{0}, wanted.size() / 2, wanted.size() - 1})
      some.insert(*std::next(wanted.begin(), static_cast<int64_t>(i)));
    wanted = std::move(some);
  }
  std::map<int, int64_t> in, out, summed;
  for (auto& [host, parts] : wanted)
    for (auto& [place, index] : parts) {
      Slice dst = slice_of(shape, to.placement, to.nd_sbp, index), region;
      Dims at = to.placement.coordinate(index), apart;
      for (int a = 0; a < at.size(); ++a)
        if (is_fixed(fixed, a)) apart.push_back(at[a]);
      for (auto& piece : pieces) {
        if (!(piece.apart == apart) || !intersect(piece.slice, dst, &region)) continue;
        // The copy that takes the fewest hosts beside this one.
        const std::vector<std::pair<int, int64_t>>* best = nullptr;
        int64_t fewest = 0;
        for (auto& senders : piece.senders) {
          int64_t others = 0;
          for (auto [sender, n] : senders) others += sender != host;
          if (!best || others < fewest) best = &senders, fewest = others;
        }
        const int64_t elements = region.shape.numel();
        for (auto [sender, n] : *best) {
          if (sender == host) continue;
          in[host] += elements;
          out[sender] += elements;
          if (n > 1) summed[sender] += elements * n;
        }
      }
    }
  HostLoad load;
  for (auto [host, elements] : in) load.in_elements = std::max(load.in_elements, elements);
  for (auto [host, elements] : out) load.out_elements = std::max(load.out_elements, elements);
  for (auto [host, elements] : summed) load.summed_elements = std::max(load.summed_elements, elements);
  load.crosses = load.in_elements > 0;
  return load;
}

}  // namespace holon::boxing
