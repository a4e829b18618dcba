#include "holon/boxing/host_traffic.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>

#include "holon/base/index.h"
#include "holon/comm/hosts/crossings.h"

namespace holon::boxing {

HostLoad host_load(std::span<const Transfer> transfers, bool two_phase, const HostMap& hosts) {
  int last = 0;
  for (const Transfer& t : transfers) last = std::max(last, t.members.back());
  std::vector<int> host_of(to_size(last + 1));
  for (int r = 0; r <= last; ++r) at_index(host_of, r) = hosts.host(r);

  std::vector<HostLoad> of(to_size(1 + *std::max_element(host_of.begin(), host_of.end())));  // by host
  auto add_phase = [&](std::vector<Pull> Transfer::*pulls) {
    comm::Crossings crossings(host_of);
    for (const Transfer& t : transfers) crossings.add(at_index(t.members, t.me), t.*pulls, t.members);
    for (const comm::Crossing& c : crossings.list()) {
      const int64_t elements = c.shape.numel();
      HostLoad& sender = at_index(of, at_index(host_of, c.addends[0]));
      at_index(of, c.to_host).in_elements += elements;
      sender.out_elements += elements;
      if (c.addends.size() > 1) sender.summed_elements += elements * std::ssize(c.addends);
    }
  };
  if (two_phase) {
    add_phase(&Transfer::sums);
    add_phase(&Transfer::shares);
  } else {
    add_phase(&Transfer::pulls);
  }
  HostLoad most;
  for (const HostLoad& load : of) {
    most.in_elements = std::max(most.in_elements, load.in_elements);
    most.out_elements = std::max(most.out_elements, load.out_elements);
    most.summed_elements = std::max(most.summed_elements, load.summed_elements);
  }
  return most;
}

struct HostTraffic::Impl {
  static constexpr int kSeveral = 64;

  // A part, from lo to hi along each axis of the tensor, and the place of a rank that holds it.
  struct Part {
    Dims lo, hi;
    Dims at;
    int64_t elements;
    int64_t common_elements(const Part& other) const {
      int64_t n = 1;
      for (int d = 0; d < lo.size(); ++d) {
        const int64_t length = std::min(hi[d], other.hi[d]) - std::max(lo[d], other.lo[d]);
        if (length <= 0) return 0;
        n *= length;
      }
      return n;
    }
  };
  // Of the parts that a host's ranks hold, those that are different along some axes of the hierarchy.
  struct Different {
    size_t place;
    unsigned axes;
    std::vector<const Part*> parts;
  };
  struct Layout {
    GlobalSpec spec;
    bool on_target;
    std::vector<std::vector<Part>> held = {};  // by host, of its ranks
    std::vector<Different> different = {};
    std::vector<Part> pieces = {};  // of all ranks, each once: that of the first copy and addend
  };
  // On how many other hosts the addends of an element are, and how many of them are summed there.
  struct Addends {
    int64_t hosts = -1, summed = 0;
  };

  Placement placements[2];
  Dims shape;
  const HostMap& hosts;
  bool one_placement;
  std::vector<int> looked;                   // the hosts that are looked at
  std::vector<size_t> places[2];             // those in `looked` that represent a placement's
  std::vector<std::vector<int>> indices[2];  // of their ranks in each placement, by place in `looked`
  std::vector<Layout> layouts;
  // Of each line of a placement's ranks along the axes that are summed, by its first one's index.
  struct Lines {
    bool on_target;
    size_t place;  // in `looked`
    unsigned summed;
    std::vector<Addends> addends;
  };
  std::deque<Lines> known_lines;
  Dims strides[2];  // of the placements' hierarchies
  struct FirstHost {
    int from = -1, to = -1;
    HostLoad load = {};
  };
  FirstHost first_host[2];  // of the last step, by two_phase

  Impl(const Placement& source, const Placement& target, const Dims& s, const HostMap& h)
      : placements{source, target},
        shape(s),
        hosts(h),
        one_placement(source == target),
        strides{contiguous_strides(source.hierarchy()), contiguous_strides(target.hierarchy())} {
    for (int side = one_placement ? 1 : 0; side < 2; ++side) {
      const Placement& p = placements[side];
      for (int i : {0, p.size() / 2, p.size() - 1}) {
        const int host = hosts.host(at_index(p.ranks(), i));
        const auto place = to_size(std::find(looked.begin(), looked.end(), host) - looked.begin());
        if (place == looked.size()) looked.push_back(host);
        if (std::find(places[side].begin(), places[side].end(), place) == places[side].end())
          places[side].push_back(place);
        if (p.size() > kSeveral) break;
      }
    }
    for (int side = 0; side < 2; ++side) {
      indices[side].resize(looked.size());
      for (int i = 0; i < placements[side].size(); ++i) {
        const int host = hosts.host(at_index(placements[side].ranks(), i));
        const auto place = std::find(looked.begin(), looked.end(), host) - looked.begin();
        if (to_size(place) < looked.size()) at_index(indices[side], place).push_back(i);
      }
    }
  }

  Part part_of(const GlobalSpec& spec, int index) const {
    const Region s = region_of(shape, spec.placement, spec.nd_sbp, index);
    Part p{s.offset, s.offset, spec.placement.coordinate(index), s.shape.numel()};
    for (int d = 0; d < p.hi.size(); ++d) p.hi[d] += s.shape[d];
    return p;
  }

  const std::vector<Part>& held(Layout& l, size_t place) {
    auto& by_host = l.held;
    if (by_host.empty()) {
      by_host.resize(looked.size());
      for (size_t h = 0; h < looked.size(); ++h)
        for (int i : indices[l.on_target][h]) by_host[h].push_back(part_of(l.spec, i));
    }
    return by_host[place];
  }

  // Those that a host's ranks hold, copies once unless they are apart. Valid until the next call for this layout.
  const std::vector<const Part*>& different(Layout& l, size_t place, unsigned apart) {
    unsigned axes = apart;
    for (int a = 0; a < l.spec.nd_sbp.size(); ++a)
      if (!l.spec.nd_sbp[a].is_broadcast()) axes |= 1u << a;
    for (const Different& known : l.different)
      if (known.place == place && known.axes == axes) return known.parts;
    std::vector<const Part*> parts;
    for (const Part& p : held(l, place))
      if (std::none_of(parts.begin(), parts.end(), [&](const Part* known) { return alike(known->at, p.at, axes); }))
        parts.push_back(&p);
    l.different.push_back({place, axes, std::move(parts)});
    return l.different.back().parts;
  }

  const std::vector<Part>& pieces(Layout& l) {
    if (!l.pieces.empty()) return l.pieces;
    const Dims& h = l.spec.placement.hierarchy();
    const Dims strides = contiguous_strides(h);
    Dims at = Dims::filled(h.size(), 0);
    while (true) {
      int64_t index = 0;
      for (int a = 0; a < h.size(); ++a) index += at[a] * strides[a];
      l.pieces.push_back(part_of(l.spec, static_cast<int>(index)));
      int a = h.size() - 1;
      for (; a >= 0; --a) {
        if (!l.spec.nd_sbp[a].is_split()) continue;
        if (++at[a] < h[a]) break;
        at[a] = 0;
      }
      if (a < 0) return l.pieces;
    }
  }

  int64_t index_of(bool on_target, const Dims& at) const {
    int64_t index = 0;
    for (int a = 0; a < at.size(); ++a) index += at[a] * strides[on_target][a];
    return index;
  }

  Lines& lines_of(bool on_target, size_t place, unsigned summed) {
    for (Lines& l : known_lines)
      if (l.on_target == on_target && l.place == place && l.summed == summed) return l;
    known_lines.push_back({on_target, place, summed, std::vector<Addends>(to_size(placements[on_target].size()))});
    return known_lines.back();
  }

  // Of the ranks that differ from the index-th along the summed axes, where its coordinate is 0.
  const Addends& addends_at(Lines& lines, int64_t index) const {
    Addends& found = at_index(lines.addends, index);
    if (found.hosts >= 0) return found;
    const Placement& p = placements[lines.on_target];
    const Dims& step = strides[lines.on_target];
    std::vector<int64_t> line = {index};
    for (int a = 0; a < step.size(); ++a) {
      if (!(lines.summed >> a & 1)) continue;
      std::vector<int64_t> longer;
      for (int64_t i : line)
        for (int64_t c = 0; c < p.hierarchy()[a]; ++c) longer.push_back(i + c * step[a]);
      line = std::move(longer);
    }
    std::vector<int> on;
    for (int64_t i : line) on.push_back(hosts.host(at_index(p.ranks(), i)));
    std::sort(on.begin(), on.end());
    found.hosts = 0;
    for (size_t i = 0; i < on.size();) {
      const size_t end = to_size(std::upper_bound(on.begin() + static_cast<int64_t>(i), on.end(), on[i]) - on.begin());
      if (on[i] != looked[lines.place]) {
        ++found.hosts;
        if (end - i > 1) found.summed += static_cast<int64_t>(end - i);
      }
      i = end;
    }
    return found;
  }

  HostLoad of_host(size_t place, Layout& from, Layout& to, unsigned fixed, bool two_phase) {
    const Placement& source = from.spec.placement;
    const bool stays = source == to.spec.placement;
    // Axes along which a rank takes sums, and along which it takes only of ranks with the same index.
    unsigned summed = 0, apart = 0;
    for (int a = 0; a < from.spec.nd_sbp.size(); ++a) {
      const Sbp had = from.spec.nd_sbp[a];
      if (had.is_partial()) (fixed >> a & 1 ? apart : summed) |= 1u << a;
      if (had.is_broadcast() && stays) apart |= 1u << a;
    }
    HostLoad load;
    Lines& lines = lines_of(from.on_target, place, summed);
    if (two_phase) {
      std::map<int64_t, int64_t> groups;  // by the index of their first members: how many members are here
      for (int i : indices[to.on_target][place]) {
        Dims first = source.coordinate(i);
        for (int a = 0; a < first.size(); ++a)
          if (summed >> a & 1) first[a] = 0;
        ++groups[index_of(from.on_target, first)];
      }
      const int64_t members = addends(from.spec, fixed);
      for (auto [index, here] : groups) {
        const int64_t elements = part_of(to.spec, static_cast<int>(index)).elements;
        const int64_t pieces = elements * here / members, others = elements - pieces;
        load.in_elements += pieces * addends_at(lines, index).hosts + others;
        if (here == members) load.in_elements -= others;
        if (here > 1 && here < members) load.summed_elements += others * here;
      }
    } else if (summed == 0) {
      const auto& parts = different(from, place, apart);
      for (const Part* wanted : different(to, place, apart)) {
        load.in_elements += wanted->elements;
        for (const Part* had : parts)
          if (apart == 0 || alike(had->at, wanted->at, apart)) load.in_elements -= had->common_elements(*wanted);
      }
    } else {
      // Of copies, those that the host has itself, if it has any.
      Dims copy = Dims::filled(source.hierarchy().size(), 0);
      if (auto& own = indices[from.on_target][place]; !own.empty()) copy = source.coordinate(own[0]);
      for (const Part* wanted : different(to, place, apart))
        for (const Part& piece : pieces(from)) {
          const int64_t elements = piece.common_elements(*wanted);
          if (elements == 0) continue;
          Dims first = piece.at;
          for (int a = 0; a < first.size(); ++a) {
            if (from.spec.nd_sbp[a].is_broadcast()) first[a] = copy[a];
            if (apart >> a & 1) first[a] = wanted->at[a];
          }
          const Addends& on = addends_at(lines, index_of(from.on_target, first));
          load.in_elements += elements * on.hosts;
          load.summed_elements += elements * on.summed;
        }
    }
    load.out_elements = load.in_elements;
    return load;
  }

  // Kept for the next call: a search asks for it before it asks for all.
  const HostLoad& of_first_host(int from, int to, unsigned fixed, bool two_phase) {
    FirstHost& known = first_host[two_phase];
    if (known.from != from || known.to != to) {
      Layout &a = at_index(layouts, from), &b = at_index(layouts, to);
      known = {from, to, of_host(places[b.on_target][0], a, b, fixed, two_phase)};
    }
    return known.load;
  }

  static bool alike(const Dims& a, const Dims& b, unsigned axes) {
    for (int i = 0; i < a.size(); ++i)
      if (axes >> i & 1 && a[i] != b[i]) return false;
    return true;
  }
};

HostTraffic::HostTraffic(const Placement& source, const Placement& target, const Dims& shape, const HostMap& hosts)
    : impl_(std::make_unique<Impl>(source, target, shape, hosts)) {}
HostTraffic::~HostTraffic() = default;

void HostTraffic::add(const GlobalSpec& layout, bool on_target) {
  impl_->layouts.push_back({layout, on_target || impl_->one_placement});
}

HostLoad HostTraffic::estimate(int from, int to, unsigned fixed, bool two_phase) {
  auto &a = at_index(impl_->layouts, from), &b = at_index(impl_->layouts, to);
  HostLoad most = impl_->of_first_host(from, to, fixed, two_phase);
  const std::vector<size_t>& places = impl_->places[b.on_target];
  for (size_t i = 1; i < places.size(); ++i) {
    const HostLoad load = impl_->of_host(places[i], a, b, fixed, two_phase);
    most.in_elements = std::max(most.in_elements, load.in_elements);
    most.summed_elements = std::max(most.summed_elements, load.summed_elements);
  }
  most.out_elements = most.in_elements;
  return most;
}

int64_t HostTraffic::into_first_host(int from, int to, unsigned fixed, bool two_phase) {
  return impl_->of_first_host(from, to, fixed, two_phase).in_elements;
}

}  // namespace holon::boxing
