#include "holon/boxing/price.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <span>

#include "holon/base/ceil_div.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/boxing/host_traffic.h"
#include "holon/boxing/regions.h"
#include "holon/comm/core/communicator.h"

namespace holon::boxing {

namespace {

// In placements of more ranks a search looks at some of them.
constexpr int kEveryRank = 256;
// A step over several hosts is priced by the pulls of all its ranks up to this many, beyond by those of one host.
constexpr int kEveryPull = 512;
constexpr int kEveryPullInSearch = 8;
constexpr int64_t kPerAxis = 6;

std::vector<int> sample(const Placement& p, bool every_rank) {
  std::vector<int> at = {0};
  const Dims& h = p.hierarchy();
  for (int a = 0; a < h.size(); ++a) {
    std::vector<int> next;
    for (int before : at) {
      auto add = [&](int64_t i) { next.push_back(static_cast<int>(before * h[a] + i)); };
      if (every_rank || p.size() <= kEveryRank || h[a] <= kPerAxis)
        for (int64_t i = 0; i < h[a]; ++i) add(i);
      else
        for (int64_t i : {int64_t{0}, int64_t{1}, h[a] / 4, h[a] / 2, h[a] - 2, h[a] - 1}) add(i);
    }
    at = std::move(next);
  }
  return at;
}

StepKind kind_of_move(const GlobalSpec& from, const GlobalSpec& to, unsigned fixed) {
  if (from.placement == to.placement) {
    int changed = -1, changes = 0, free = 0;
    bool all_reduce = true;
    for (int a = 0; a < from.nd_sbp.size(); ++a) {
      if (from.placement.hierarchy()[a] == 1) continue;
      if (!(fixed >> a & 1)) ++free;
      if (from.nd_sbp[a] == to.nd_sbp[a]) continue;
      changed = a, ++changes;
      all_reduce &= from.nd_sbp[a].is_partial() && to.nd_sbp[a].is_broadcast();
    }
    if (all_reduce && changes && free == changes) return StepKind::kAllReduce;
    if (changes == 1 && free == 1) {
      Sbp before = from.nd_sbp[changed], after = to.nd_sbp[changed];
      if (before.is_split()) return after.is_split() ? StepKind::kAllToAll : StepKind::kAllGather;
      if (before.is_partial()) return StepKind::kReduceScatter;
    }
  }
  return addends(from, fixed) > 1 ? StepKind::kReduceExchange : StepKind::kExchange;
}

// True if `to` follows from `from` by filling with zeros: on one placement, axes turn from S or B to P, and each rank's
// part is a region of its new one (so no inner axis goes on cutting what an outer one did).
bool is_zero_fill(const GlobalSpec& from, const GlobalSpec& to) {
  if (from.placement != to.placement) return false;
  unsigned joined = 0;
  for (int a = 0; a < from.nd_sbp.size(); ++a) {
    Sbp before = from.nd_sbp[a], after = to.nd_sbp[a];
    if (before == after) {
      if (before.is_split() && joined >> before.axis & 1) return false;
      continue;
    }
    if (!after.is_partial()) return false;
    if (before.is_split()) joined |= 1u << before.axis;
  }
  return true;
}

// A rank's place among the ranks that hold its addends.
int64_t addend_place(const GlobalSpec& from, unsigned fixed, int index) {
  Dims at = from.placement.coordinate(index);
  int64_t place = 0;
  for (int a = 0; a < at.size(); ++a)
    if (!(fixed >> a & 1)) place = place * from.placement.hierarchy()[a] + at[a];
  return place;
}

int union_size(const Placement& a, const Placement& b) {
  int n = a.size();
  for (int r : b.ranks()) n += !a.contains(r);
  return n;
}

}  // namespace

struct Pricer::Impl {
  // Where the parts of the ranks in question are along the axes of `cut`: [lo, hi), axis by axis.
  struct Cells {
    std::vector<int64_t> lo, hi;
    std::vector<int64_t> elements;  // of each part
    std::vector<char> absent;       // ranks without a part; empty: none
  };
  struct Layout {
    bool on_target;
    GlobalSpec spec;
    Dims part;  // of index 0, which is never smaller than others
    int64_t numel;
    std::unique_ptr<Cells> here, there;  // at the source placement's ranks, and at those of the target's
  };

  Placement placements[2];
  Dims shape;
  int64_t item;
  const Machine& machine;
  std::vector<int> cut;
  bool one_placement, one_host, every_rank;
  int64_t rest = 1;            // elements along the axes that nobody cuts
  std::vector<int> looked[2];  // indices in the placements
  int hosts_of[2] = {1, 1};    // how many a placement is on
  int both = 0;                // ranks of the two placements
  double best_rate;
  std::vector<Layout> layouts;
  std::optional<HostTraffic> traffic;  // of several hosts

  Impl(const Placement& source, const Placement& target, const Dims& s, DType dtype, const Machine& m,
       std::vector<int> cut_axes, bool all)
      : placements{source, target},
        shape(s),
        item(static_cast<int64_t>(size_bytes(dtype))),
        machine(m),
        cut(std::move(cut_axes)),
        one_placement(source == target),
        one_host(m.hosts.one_host()),
        every_rank(all) {
    for (int d = 0; d < shape.size(); ++d)
      if (std::find(cut.begin(), cut.end(), d) == cut.end()) rest *= shape[d];
    for (int side = 0; side < (one_placement ? 1 : 2); ++side) {
      looked[side] = sample(placements[side], every_rank);
      if (one_host) continue;
      std::vector<int> hosts;
      for (int r : placements[side].ranks()) hosts.push_back(m.hosts.host(r));
      std::sort(hosts.begin(), hosts.end());
      hosts_of[side] = static_cast<int>(std::unique(hosts.begin(), hosts.end()) - hosts.begin());
    }
    both = one_placement ? source.size() : union_size(source, target);
    if (!one_host) traffic.emplace(source, target, shape, m.hosts);
    auto& c = m.costs;
    best_rate = std::max({c.copy.near, c.copy.mid, c.copy.far, c.reduce.near, c.reduce.mid, c.reduce.far, c.fill.near,
                          c.fill.mid, c.fill.far});
  }

  std::unique_ptr<Cells> make_cells(const Layout& l, bool at_target) const {
    auto cells = std::make_unique<Cells>();
    const auto& list = looked[at_target];
    const Placement& p = l.spec.placement;
    const bool elsewhere = at_target != l.on_target;
    const size_t n = list.size(), k = cut.size();
    cells->lo.resize(n * k);
    cells->hi.resize(n * k);
    cells->elements.resize(n);
    if (elsewhere) cells->absent.resize(n);
    for (size_t j = 0; j < n; ++j) {
      int index = list[j];
      if (elsewhere) {
        index = p.index_of(at_index(placements[1].ranks(), index));
        cells->absent[j] = index < 0;
        if (index < 0) continue;
      }
      Region s = region_of(shape, p, l.spec.nd_sbp, index);
      cells->elements[j] = s.shape.numel();
      for (size_t d = 0; d < k; ++d) {
        cells->lo[d * n + j] = s.offset[cut[d]];
        cells->hi[d * n + j] = s.offset[cut[d]] + s.shape[cut[d]];
      }
    }
    return cells;
  }
  const Cells& cells(Layout& l, bool at_target) {
    auto& slot = at_target == l.on_target ? l.here : l.there;
    if (!slot) slot = make_cells(l, at_target);
    return *slot;
  }

  // How many elements are next to each other both in a part of `from` and in one of `to`.
  int64_t run(const Layout& from, const Layout& to) const {
    int64_t n = 1;
    for (int d = shape.size() - 1; d >= 0; --d) {
      bool alike = from.spec.placement == to.spec.placement;
      for (int a = 0; alike && a < from.spec.nd_sbp.size(); ++a)
        alike = from.spec.nd_sbp[a].is_split(d) == to.spec.nd_sbp[a].is_split(d);
      n *= std::min(from.part[d], to.part[d]);
      if (!alike && !(from.part[d] == shape[d] && to.part[d] == shape[d])) break;
    }
    return std::max<int64_t>(n, 1);
  }

  // Whether a part of `to` is not in a row within one of `from`.
  static bool scattered(const Layout& from, const Layout& to) {
    bool several = false;
    for (int d = 0; d < to.part.size(); ++d) {
      if (several && to.part[d] != from.part[d]) return to.numel > 0;
      several |= to.part[d] > 1;
    }
    return false;
  }

  Edge move(int from_number, int to_number, InPlan where, EdgeDetails* details) {
    Layout &from = at_index(layouts, from_number), &to = at_index(layouts, to_number);
    std::vector<int64_t>* const reads = details ? &details->read_bytes : nullptr;
    const unsigned fixed = fixed_axes(from.spec, to.spec);
    const bool cross = !one_placement && from.on_target != to.on_target;
    const Placement &source = from.spec.placement, &target = to.spec.placement;
    const bool same_device = source.device_type() == target.device_type();
    const int64_t summed = addends(from.spec, fixed);
    const Cells &had = cells(from, to.on_target), &wanted = cells(to, to.on_target);
    const auto& list = looked[to.on_target];
    const size_t n = list.size(), k = cut.size();

    std::vector<char> apart = had.absent;
    if (cross && fixed)
      for (size_t j = 0; j < n; ++j) {
        if (apart[j]) continue;
        Dims here = target.coordinate(list[j]);
        Dims there = source.coordinate(source.index_of(at_index(target.ranks(), list[j])));
        for (int a = 0; a < here.size(); ++a)
          if (fixed >> a & 1 && here[a] != there[a]) apart[j] = 1;
      }

    Edge e;
    bool local = true;
    double all_elements = 0, all_copied = 0;
    int64_t most_copied = 0, most_read = 0, most_new = 0;
    for (size_t j = 0; j < n; ++j) {
      const int64_t elements = wanted.elements[j];
      int64_t own = !apart.empty() && apart[j] ? 0 : rest;
      for (size_t i = j; i < n * k; i += n)
        own *= std::max<int64_t>(0, std::min(wanted.hi[i], had.hi[i]) - std::max(wanted.lo[i], had.lo[i]));
      const int64_t read = elements * summed - own;
      const bool has_all = elements == 0 || (summed == 1 && own == elements);
      local &= has_all;
      all_elements += static_cast<double>(elements);
      most_read = std::max(most_read, read);
      if (reads) reads->push_back(read * item);
      if (has_all && same_device) continue;
      most_new = std::max(most_new, elements);
      if (summed > 1) continue;
      most_copied = std::max(most_copied, elements);
      all_copied += static_cast<double>(elements);
    }
    const auto bytes = static_cast<double>(item);
    // All ranks of a host, where those looked at represent every one.
    const double scale = static_cast<double>(target.size()) / static_cast<double>(n) /
        static_cast<double>(hosts_of[to.on_target]) * bytes;
    e.kind = local ? StepKind::kSlice : kind_of_move(from.spec, to.spec, fixed);
    e.out_bytes = most_new * item;
    e.read_bytes = most_read * item;

    Work work;
    work.copy = {static_cast<double>(most_copied) * bytes, all_copied * scale};
    if (local) {
      work.views = 1;
      if (!where.last && scattered(from, to)) {
        e.out_bytes = to.numel * item;
        work.copy = {static_cast<double>(e.out_bytes), all_elements * scale};
        work.rows.most = static_cast<double>(to.numel / run(from, to));
        work.rows.all = work.rows.most * static_cast<double>(target.size()) / hosts_of[to.on_target];
      }
      e.predicted_s = seconds(work, machine.costs);
      return e;
    }
    work.step = true;
    work.fresh = !where.first;
    work.members = both;
    if (!cross) {
      work.members = 1;
      for (int a = 0; a < source.hierarchy().size(); ++a)
        if (!(fixed >> a & 1)) work.members *= static_cast<int>(source.hierarchy()[a]);
    }
    const auto inline_bytes = static_cast<int64_t>(comm::Communicator::kInlineBytes);
    work.syncs = from.numel * item <= inline_bytes ? 1 : 2;
    work.addends = static_cast<int>(summed);
    const double largest = static_cast<double>(to.numel);
    if (summed > 1)
      work.reduce = {largest * static_cast<double>(summed) * bytes, all_elements * static_cast<double>(summed) * scale};
    const double stretches = largest / static_cast<double>(run(from, to)) * static_cast<double>(summed) - 1;
    work.rows.most = std::max(0.0, stretches);
    work.rows.all = work.rows.most * static_cast<double>(target.size()) / hosts_of[to.on_target];
    double peers = static_cast<double>(summed);
    for (int d = 0; d < shape.size(); ++d)
      if (from.part[d] > 0) peers *= static_cast<double>(ceil_div(to.part[d], from.part[d]));
    work.pulls = std::min(peers, static_cast<double>(work.members)) - 1;
    std::vector<Transfer> transfers;  // of both kinds of all_reduce
    e.predicted_s = finish(work, from_number, to_number, fixed, false, e, transfers);
    if (details) count_reads(transfers, target, details->read_bytes);

    if (e.kind != StepKind::kAllReduce || summed < 2) {
      if (details) details->transfers = std::move(transfers);
      return e;
    }
    Edge other = e;
    other.two_phase = true;
    // Two works one after the other: what the second touches is not what the first has.
    const int64_t piece = balanced_split(to.numel, summed, 0).size;
    Work sum = work, gather = work;
    sum.syncs = 1;
    sum.reduce = {static_cast<double>(piece * summed) * bytes, all_elements * scale};
    sum.pulls = static_cast<double>(summed - 1);
    sum.rows = {};
    gather.step = false;
    gather.fresh = true;
    gather.syncs = to.numel * item > inline_bytes ? 2 : 1;
    gather.reduce = {};
    gather.copy = {static_cast<double>(to.numel - piece) * bytes,
                   all_elements * scale * (1 - 1.0 / static_cast<double>(summed))};
    gather.pulls = sum.pulls;
    gather.rows = {};
    other.read_bytes = (piece * (summed - 1) + to.numel - piece) * item;
    other.predicted_s =
        finish(sum, from_number, to_number, fixed, true, other, transfers) + seconds(gather, machine.costs);
    const bool in_phases = other.predicted_s < e.predicted_s;
    if (details) {
      if (!in_phases)
        for (Transfer& t : transfers) t.sums = {}, t.shares = {};
      details->transfers = std::move(transfers);
    }
    if (!in_phases) return e;
    if (reads)
      for (int i = 0; i < target.size(); ++i) {
        int64_t elements = region_of(shape, target, to.spec.nd_sbp, i).shape.numel();
        int64_t mine = balanced_split(elements, summed, addend_place(from.spec, fixed, i)).size;
        (*reads)[to_size(i)] = (mine * (summed - 1) + elements - mine) * item;
      }
    return other;
  }

  // The seconds, after what crosses between hosts has been put in.
  double finish(Work& work, int from, int to, unsigned fixed, bool two_phase, Edge& e,
                std::vector<Transfer>& transfers) {
    work.net_syncs = 0;
    if (!one_host) {
      const HostLoad load = crossing(from, to, fixed, two_phase, transfers);
      e.host_bytes = load.in_elements * item;
      work.net_bytes = static_cast<double>(std::max(load.in_elements, load.out_elements) * item);
      work.net_both_bytes =
          one_placement ? static_cast<double>((load.in_elements + load.out_elements) * item) : work.net_bytes;
      if (load.crosses()) work.net_syncs = two_phase ? 3 : work.syncs;
      if (load.summed_elements > 0) {
        // By all ranks of the host, who then synchronize once more.
        const auto summed = static_cast<double>(load.summed_elements * item);
        work.reduce.most += summed * hosts_of[0] / work.members;
        work.reduce.all += summed;
        ++work.syncs;
      }
    }
    return seconds(work, machine.costs);
  }

  // No step's share of time between hosts is less.
  double least_between_hosts(int from_number, int to_number) {
    const GlobalSpec &from = at_index(layouts, from_number).spec, &to = at_index(layouts, to_number).spec;
    if (one_host || both <= kEveryPullInSearch || !one_move(from, to)) return 0;
    const unsigned fixed = fixed_axes(from, to);
    int64_t least = traffic->into_first_host(from_number, to_number, fixed, false);
    if (least > 0 && kind_of_move(from, to, fixed) == StepKind::kAllReduce && addends(from, fixed) > 1)
      least = std::min(least, traffic->into_first_host(from_number, to_number, fixed, true));
    if (least == 0) return 0;
    Work work;
    work.net_syncs = 1;
    work.net_bytes = static_cast<double>(least * item);
    work.net_both_bytes = one_placement ? 2 * work.net_bytes : work.net_bytes;
    return seconds(work, machine.costs);
  }

  // transfers: of the step, found here where they are needed and not there yet.
  HostLoad crossing(int from, int to, unsigned fixed, bool two_phase, std::vector<Transfer>& transfers) {
    if (both > (every_rank ? kEveryPull : kEveryPullInSearch)) return traffic->estimate(from, to, fixed, two_phase);
    if (transfers.empty())
      transfers = transfers_of(at_index(layouts, from).spec, at_index(layouts, to).spec, shape, machine.hosts);
    if (two_phase)
      for (Transfer& t : transfers) split_in_phases(t);
    return host_load(transfers, two_phase, machine.hosts);
  }

  // Ranks of a host that want the same sum take it of the same addends, which may not be those that they have.
  void count_reads(std::span<const Transfer> transfers, const Placement& target, std::vector<int64_t>& reads) const {
    for (const Transfer& t : transfers) {
      const int index = target.index_of(at_index(t.members, t.me));
      if (index < 0) continue;
      int64_t read = 0;
      for (const Pull& pull : t.pulls)
        read +=
            pull.shape.numel() * (std::ssize(pull.owners) - std::count(pull.owners.begin(), pull.owners.end(), t.me));
      at_index(reads, index) = read * item;
    }
  }

  Edge zero_fill(const Layout& from, const Layout& to, std::vector<int64_t>* reads) const {
    Edge e;
    e.kind = StepKind::kZeroFill;
    e.out_bytes = to.numel * item;
    Work work;
    work.views = 2;
    const double ranks = static_cast<double>(to.spec.placement.size()) / hosts_of[to.on_target];
    auto on_each = [&](int64_t bytes) {
      return Work::Bytes{static_cast<double>(bytes), static_cast<double>(bytes) * ranks};
    };
    work.fill = on_each(e.out_bytes);
    if (from.numel == to.numel) {
      // Of the ranks that hold copies one gives what it has.
      double copies = 1;
      for (int a = 0; a < to.spec.nd_sbp.size(); ++a)
        if (!from.spec.nd_sbp[a].is_partial() && to.spec.nd_sbp[a].is_partial())
          copies *= static_cast<double>(to.spec.placement.hierarchy()[a]);
      work.fill.all *= 1 - 1 / copies;
    } else {
      work.copy = on_each(from.numel * item);
      work.rows = on_each(from.numel / run(from, to));
    }
    e.predicted_s = seconds(work, machine.costs);
    if (reads) reads->assign(to_size(to.spec.placement.size()), 0);
    return e;
  }
};

Pricer::Pricer(const Placement& source, const Placement& target, const Dims& shape, DType dtype, const Machine& machine,
               std::vector<int> cut, bool every_rank)
    : impl_(std::make_unique<Impl>(source, target, shape, dtype, machine, std::move(cut), every_rank)) {}
Pricer::~Pricer() = default;

int Pricer::add(bool on_target, const NdSbp& nd_sbp) {
  on_target &= !impl_->one_placement;
  const Placement& p = impl_->placements[on_target];
  Dims part = region_of(impl_->shape, p, nd_sbp, 0).shape;
  int64_t numel = part.numel();
  impl_->layouts.push_back({on_target, {p, nd_sbp}, part, numel, nullptr, nullptr});
  if (impl_->traffic) impl_->traffic->add({p, nd_sbp}, on_target);
  return static_cast<int>(impl_->layouts.size()) - 1;
}

const GlobalSpec& Pricer::spec(int layout) const { return at_index(impl_->layouts, layout).spec; }

int64_t Pricer::part_bytes(int layout) const { return at_index(impl_->layouts, layout).numel * impl_->item; }

std::optional<Edge> Pricer::price(int from, int to, InPlan where, EdgeDetails* details) {
  auto &a = at_index(impl_->layouts, from), &b = at_index(impl_->layouts, to);
  if (a.on_target && !b.on_target) return std::nullopt;
  if (one_move(a.spec, b.spec)) return impl_->move(from, to, where, details);
  if (is_zero_fill(a.spec, b.spec)) return impl_->zero_fill(a, b, details ? &details->read_bytes : nullptr);
  return std::nullopt;
}

double Pricer::at_least(int from, int to) const {
  // A rank that has less than it needs gets a new part.
  int64_t had = part_bytes(from), wanted = part_bytes(to);
  auto& c = impl_->machine.costs;
  const double least = std::min(c.view_s, c.step_s);
  if (wanted <= had) return least;
  return least + static_cast<double>(wanted) / impl_->best_rate;
}

double Pricer::at_least_between_hosts(int from, int to) {
  // Added in another order, it must not be above the price itself by a rounding.
  constexpr double kBelow = 1 - 1e-9;
  return (at_least(from, to) + impl_->least_between_hosts(from, to)) * kBelow;
}

std::optional<Edge> price_step(const GlobalSpec& from, const GlobalSpec& to, const Dims& shape, DType dtype,
                               const Machine& machine, InPlan where) {
  std::vector<int> cut;
  for (int d = 0; d < shape.size(); ++d) cut.push_back(d);
  Pricer pricer(from.placement, to.placement, shape, dtype, machine, cut, true);
  int a = pricer.add(false, from.nd_sbp), b = pricer.add(true, to.nd_sbp);
  return pricer.price(a, b, where);
}

}  // namespace holon::boxing
