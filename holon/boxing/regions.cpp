#include "holon/boxing/regions.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/small_vec.h"

namespace holon::boxing {

namespace {

bool is_fixed(unsigned fixed, int axis) { return fixed >> axis & 1; }

// Calls f(offset) for every point of a grid in row-major order; offset is the sum of coordinate * stride.
template <class F>
void for_each_point(const Dims& extents, const Dims& strides, F&& f) {
  if (extents.numel() == 0) return;
  Dims at = Dims::filled(extents.size(), 0);
  int64_t offset = 0;
  while (true) {
    f(offset);
    int axis = extents.size() - 1;
    for (; axis >= 0; --axis) {
      offset += strides[axis];
      if (++at[axis] < extents[axis]) break;
      offset -= extents[axis] * strides[axis];
      at[axis] = 0;
    }
    if (axis < 0) return;
  }
}

// The source's hierarchy, its free axes told apart by what they mean.
struct SourceGrid {
  Dims strides;
  Dims keys, replicas, addends;  // extents; 1 along the axes of the others
  SourceGrid(const GlobalSpec& from, unsigned fixed) : strides(contiguous_strides(from.placement.hierarchy())) {
    const Dims& h = from.placement.hierarchy();
    keys = replicas = addends = Dims::filled(h.size(), 1);
    for (int a = 0; a < h.size(); ++a) {
      if (is_fixed(fixed, a)) continue;
      Sbp s = from.nd_sbp[a];
      (s.is_split() ? keys : s.is_broadcast() ? replicas : addends)[a] = h[a];
    }
  }
  // The part of an index along the axes of one meaning.
  int64_t part(const Dims& coordinate, const Dims& extents) const {
    int64_t offset = 0;
    for (int a = 0; a < coordinate.size(); ++a)
      if (extents[a] > 1) offset += coordinate[a] * strides[a];
    return offset;
  }
};

// The rank's place in the source if it is among the sources of the target's index-th rank, else -1.
int own_index(const GlobalSpec& from, const GlobalSpec& to, unsigned fixed, int index) {
  int own = from.placement.index_of(at_index(to.placement.ranks(), index));
  if (own < 0 || !fixed || from.placement == to.placement) return own;
  Dims here = from.placement.coordinate(own), there = to.placement.coordinate(index);
  for (int a = 0; a < here.size(); ++a)
    if (is_fixed(fixed, a) && here[a] != there[a]) return -1;
  return own;
}

// How far `offset` is behind `begin` in memory.
int64_t linear(const Dims& offset, const Dims& begin, const Dims& strides) {
  int64_t at = 0;
  for (int i = 0; i < offset.size(); ++i) at += (offset[i] - begin[i]) * strides[i];
  return at;
}

// What has been asked of whom so far.
struct Asked {
  // A part of the source, and its strides in memory.
  struct Part {
    Region region;
    Dims strides;
  };

  explicit Asked(const GlobalSpec& from) {
    give.resize(to_size(*std::max_element(from.placement.ranks().begin(), from.placement.ranks().end()) + 1));
  }
  std::vector<int64_t> give;  // elements, by rank
  // That of the source's index-th rank.
  const Part& part(const GlobalSpec& from, const Dims& shape, int64_t index) {
    if (parts.empty()) parts.resize(to_size(from.placement.size()));
    std::optional<Part>& known = at_index(parts, index);
    if (!known) {
      const Region region = region_of(shape, from.placement, from.nd_sbp, static_cast<int>(index));
      known = {region, contiguous_strides(region.shape)};
    }
    return *known;
  }
  std::vector<std::optional<Part>> parts;
  // By host, source part and region: the replica of it that a rank of that host takes from another host. The next one
  // that wants the region takes the same, so that it crosses once.
  std::map<std::tuple<int, int64_t, std::vector<int64_t>>, int64_t> crossing;
};

// What the target's index-th rank pulls. Owners are ranks.
std::vector<Pull> pulls_of(const GlobalSpec& from, const GlobalSpec& to, unsigned fixed, const SourceGrid& grid,
                           const Dims& shape, int index, const HostMap& hosts, Asked& asked) {
  std::vector<int64_t>& give = asked.give;
  Region dst = region_of(shape, to.placement, to.nd_sbp, index);
  std::vector<Pull> pulls;
  if (dst.shape.numel() == 0) return pulls;
  Dims dst_strides = contiguous_strides(dst.shape);
  pulls.reserve(to_size(grid.keys.numel()));
  const int64_t replicas = grid.replicas.numel(), addends = grid.addends.numel();

  int64_t base = 0;
  if (fixed) {
    Dims at = to.placement.coordinate(index);
    for (int a = 0; a < at.size(); ++a)
      if (is_fixed(fixed, a)) base += at[a] * grid.strides[a];
  }
  int own = own_index(from, to, fixed, index);
  int64_t own_key = -1, own_replica = -1;
  if (own >= 0) {
    Dims at = from.placement.coordinate(own);
    own_key = grid.part(at, grid.keys);
    own_replica = grid.part(at, grid.replicas);
  }
  auto ranks = from.placement.ranks();
  for_each_point(grid.keys, grid.strides, [&](int64_t key) {
    const Asked::Part& part = asked.part(from, shape, base + key);
    Region region;
    if (!intersect(part.region, dst, &region)) return;

    const int me = at_index(to.placement.ranks(), index);
    // How many other hosts a replica's addends are on, and how much has been requested of its ranks.
    auto price = [&](int64_t r) {
      int64_t load = 0;
      SmallVec<int, 16> others;
      for_each_point(grid.addends, grid.strides, [&](int64_t a) {
        int owner = at_index(ranks, base + key + r + a);
        load += at_index(give, owner);
        if (hosts.host(owner) != hosts.host(me)) others.push_back(hosts.host(owner));
      });
      std::sort(others.begin(), others.end());
      return std::pair{std::unique(others.begin(), others.end()) - others.begin(), load};
    };
    int64_t replica = own_replica;
    if (key != own_key && replicas == 1) {
      replica = 0;
    } else if (key != own_key) {
      std::pair<ptrdiff_t, int64_t> least{PTRDIFF_MAX, 0};
      for_each_point(grid.replicas, grid.strides, [&](int64_t r) {
        auto p = price(r);
        if (p < least) least = p, replica = r;
      });
    }
    if (replicas > 1 && !hosts.host_of_rank.empty() && price(replica).first > 0) {
      std::vector<int64_t> of(region.offset.begin(), region.offset.end());
      of.insert(of.end(), region.shape.begin(), region.shape.end());
      replica = asked.crossing.try_emplace({hosts.host(me), base + key, std::move(of)}, replica).first->second;
    }
    Pull& pull = pulls.emplace_back();
    pull.shape = region.shape;
    pull.src_strides = part.strides;
    pull.dst_strides = dst_strides;
    pull.src_start = linear(region.offset, part.region.offset, part.strides);
    pull.dst_start = linear(region.offset, dst.offset, dst_strides);
    pull.owners.reserve(to_size(addends));
    const int64_t elements = region.shape.numel();
    for_each_point(grid.addends, grid.strides, [&](int64_t a) {
      int64_t i = base + key + replica + a;
      int owner = at_index(ranks, i);
      pull.owners.push_back(owner);
      if (i != own) at_index(give, owner) += elements;
    });
  });
  return pulls;
}

// The place of each of the members, by rank.
std::vector<int> places_of(const std::vector<int>& members) {
  std::vector<int> places(to_size(members.back() + 1));
  for (size_t i = 0; i < members.size(); ++i) at_index(places, members[i]) = static_cast<int>(i);
  return places;
}

// Owners, which were ranks, become places among the members.
void place(Transfer& t, int rank, std::span<const int> places) {
  t.me = at_index(places, rank);
  for (auto& pull : t.pulls)
    for (int& owner : pull.owners) owner = at_index(places, owner);
  t.whole_own = t.pulls.size() == 1 && t.pulls[0].owners.size() == 1 && t.pulls[0].owners[0] == t.me;
}

}  // namespace

std::vector<int> ranks_of(const GlobalSpec& from, const GlobalSpec& to) {
  std::vector<int> ranks(from.placement.ranks().begin(), from.placement.ranks().end());
  if (from.placement != to.placement)
    ranks.insert(ranks.end(), to.placement.ranks().begin(), to.placement.ranks().end());
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

bool intersect(const Region& a, const Region& b, Region* out) {
  out->offset = a.offset;
  out->shape = a.shape;
  for (int i = 0; i < a.offset.size(); ++i) {
    int64_t begin = std::max(a.offset[i], b.offset[i]);
    int64_t end = std::min(a.offset[i] + a.shape[i], b.offset[i] + b.shape[i]);
    if (end <= begin) return false;
    out->offset[i] = begin;
    out->shape[i] = end - begin;
  }
  return true;
}

unsigned fixed_axes(const GlobalSpec& from, const GlobalSpec& to) {
  const Dims& h = from.placement.hierarchy();
  unsigned fixed = 0;
  if (from.placement != to.placement) {
    if (!(h == to.placement.hierarchy())) return 0;
    for (int a = 0; a < h.size(); ++a)
      if (from.nd_sbp[a].is_partial() && to.nd_sbp[a].is_partial()) fixed |= 1u << a;
    return fixed;
  }
  unsigned recut = 0;  // tensor axes whose cut has changed along an outer axis
  for (int a = 0; a < h.size(); ++a) {
    Sbp before = from.nd_sbp[a], after = to.nd_sbp[a];
    bool stays = before == after && !(before.is_split() && recut >> before.axis & 1);
    // Whatever a rank needs of copies, it finds among the ranks with the same index.
    if (stays || h[a] == 1 || before.is_broadcast()) fixed |= 1u << a;
    if (stays || h[a] == 1) continue;
    if (before.is_split()) recut |= 1u << before.axis;
    if (after.is_split()) recut |= 1u << after.axis;
  }
  return fixed;
}

bool one_move(const GlobalSpec& from, const GlobalSpec& to) {
  if (!to.nd_sbp.has_partial()) return true;
  unsigned fixed = fixed_axes(from, to);
  auto one_rank = [&](int a) { return from.placement.hierarchy()[a] == 1; };
  for (int a = 0; a < to.nd_sbp.size(); ++a)
    if (to.nd_sbp[a].is_partial() && !(is_fixed(fixed, a) && (from.nd_sbp[a].is_partial() || one_rank(a))))
      return false;
  return true;
}

int64_t addends(const GlobalSpec& from, unsigned fixed) {
  int64_t n = 1;
  for (int a = 0; a < from.nd_sbp.size(); ++a)
    if (from.nd_sbp[a].is_partial() && !is_fixed(fixed, a)) n *= from.placement.hierarchy()[a];
  return n;
}

std::vector<int> members(const GlobalSpec& from, const GlobalSpec& to, unsigned fixed, int rank) {
  std::vector<int> all;
  auto ranks = from.placement.ranks();
  if (from.placement == to.placement) {
    Dims here = from.placement.coordinate(from.placement.index_of(rank));
    for (int i = 0; i < from.placement.size(); ++i) {
      Dims there = from.placement.coordinate(i);
      bool takes_part = true;
      for (int a = 0; a < here.size(); ++a) takes_part &= !is_fixed(fixed, a) || here[a] == there[a];
      if (takes_part) all.push_back(at_index(ranks, i));
    }
  } else {
    all.assign(ranks.begin(), ranks.end());
    for (int r : to.placement.ranks())
      if (!from.placement.contains(r)) all.push_back(r);
  }
  std::sort(all.begin(), all.end());
  return all;
}

Transfer transfer_of(const GlobalSpec& from, const GlobalSpec& to, const Dims& shape, int rank, const HostMap& hosts) {
  HOLON_CHECK(one_move(from, to), "{} to {} is not a single step", from, to);
  unsigned fixed = fixed_axes(from, to);
  Transfer t;
  t.members = members(from, to, fixed, rank);
  const int index = to.placement.index_of(rank);
  const std::vector<int> places = places_of(t.members);
  if (index < 0) {
    place(t, rank, places);
    return t;
  }
  t.shape = region_of(shape, to.placement, to.nd_sbp, index).shape;

  SourceGrid grid(from, fixed);
  Asked asked(from);
  // The choice among replicas depends on what the ranks before this one have chosen.
  if (grid.replicas.numel() > 1)
    for (int before = 0; before < index; ++before) pulls_of(from, to, fixed, grid, shape, before, hosts, asked);
  t.pulls = pulls_of(from, to, fixed, grid, shape, index, hosts, asked);
  place(t, rank, places);
  return t;
}

std::vector<Transfer> transfers_of(const GlobalSpec& from, const GlobalSpec& to, const Dims& shape,
                                   const HostMap& hosts) {
  HOLON_CHECK(one_move(from, to), "{} to {} is not a single step", from, to);
  const unsigned fixed = fixed_axes(from, to);
  const SourceGrid grid(from, fixed);
  Asked asked(from);
  const std::vector<int> ranks = ranks_of(from, to);
  std::vector<std::vector<Pull>> pulls(to_size(to.placement.size()));  // the choices of each depend on those before
  for (int i = 0; i < to.placement.size(); ++i)
    at_index(pulls, i) = pulls_of(from, to, fixed, grid, shape, i, hosts, asked);

  struct Group {
    std::vector<int> members, places;
  };
  std::vector<Transfer> transfers;
  transfers.reserve(ranks.size());
  std::map<int64_t, Group> groups;  // by the index of the first rank with the same coordinates along the fixed axes
  for (int rank : ranks) {
    int64_t first = 0;
    if (from.placement == to.placement) {
      const Dims at = from.placement.coordinate(from.placement.index_of(rank));
      for (int a = 0; a < at.size(); ++a)
        if (is_fixed(fixed, a)) first += at[a] * grid.strides[a];
    }
    Group& group = groups[first];
    if (group.members.empty()) {
      group.members = members(from, to, fixed, rank);
      group.places = places_of(group.members);
    }
    Transfer& t = transfers.emplace_back();
    t.members = group.members;
    if (const int index = to.placement.index_of(rank); index >= 0) {
      t.shape = region_of(shape, to.placement, to.nd_sbp, index).shape;
      t.pulls = std::move(at_index(pulls, index));
    }
    place(t, rank, group.places);
  }
  return transfers;
}

void split_in_phases(Transfer& t) {
  const int64_t n = t.shape.numel();
  if (n == 0) return;
  const comm::Owners& owners = t.pulls[0].owners;
  const auto parts = static_cast<int64_t>(owners.size());
  const auto place = std::find(owners.begin(), owners.end(), t.me) - owners.begin();
  for (int64_t p = 0; p < parts; ++p) {
    const Interval piece = balanced_split(n, parts, p);
    if (piece.size == 0) continue;
    if (p == place)
      t.sums.push_back(comm::row_pull(owners, piece.begin, piece.begin, piece.size));
    else
      t.shares.push_back(comm::row_pull({at_index(owners, p)}, piece.begin, piece.begin, piece.size));
  }
}

}  // namespace holon::boxing
