#include "holon/ops/sequence_choice.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/log.h"
#include "holon/base/settings.h"
#include "holon/boxing/events.h"
#include "holon/boxing/planner.h"
#include "holon/contract/moves.h"
#include "holon/cost/machine.h"
#include "holon/ops/sequence_shares.h"
#include "holon/ops/to_global.h"
#include "holon/tensor/tracer.h"

namespace holon::ops {

namespace {

constexpr int kHeadAxis = 1, kSequence = 2;

bool is_sequence_axis(const SequenceCall& c, int a) { return c.query.nd_sbp()[a].is_split(kSequence); }

// x's layout with what splits the sequence splitting another axis (or, below 0, nothing).
const GlobalSpec* with_axis(const Tensor& x, const SequenceCall& c, int axis) {
  NdSbp sbp = x.nd_sbp();
  for (int a = 0; a < sbp.size(); ++a)
    if (is_sequence_axis(c, a)) sbp = sbp.with(a, axis < 0 ? sbp::broadcast() : sbp::split(axis));
  return intern_spec(x.placement(), sbp);
}

double seconds_to(const Tensor& x, const GlobalSpec* to) { return boxing::cost(x.spec(), to, x.shape(), x.dtype()); }

double bytes_of(const Tensor& x) { return static_cast<double>(x.numel()) * static_cast<double>(size_bytes(x.dtype())); }

struct Choice {
  const char* name;
  SequenceAttention what;
  double seconds = std::numeric_limits<double>::infinity();
};

Tensor moved(const Tensor& x, const GlobalSpec* to, const char* op) {
  if (x.spec() == to) return x;
  boxing::record_implicit(boxing::implicit_event(op, contract::plan_of(x.spec(), to, x.shape(), x.dtype())));
  return to_global(x, to->placement, to->nd_sbp);
}

}  // namespace

bool sequence_is_split(const SequenceCall& c) {
  for (const Tensor* t : {&c.query, &c.key, &c.value})
    if (!t->is_global() || t->placement() != c.query.placement()) return false;
  bool any = false;
  for (int a = 0; a < c.query.nd_sbp().size(); ++a) {
    const bool q = c.query.nd_sbp()[a].is_split(kSequence), k = c.key.nd_sbp()[a].is_split(kSequence),
               v = c.value.nd_sbp()[a].is_split(kSequence);
    if (q != k || q != v) return false;
    any = any || q;
  }
  return any;
}

namespace {

// What a contract in force has for the call; what is chosen becomes a part of one that is recorded.
const Choice* frozen(std::span<const Choice> choices, const char* op) {
  if (capturing_tracer()) return nullptr;
  const auto name = contract::frozen_choice(op);
  const auto found = std::find_if(choices.begin(), choices.end(), [&](auto& x) { return name == x.name; });
  return found == choices.end() ? nullptr : &*found;
}

}  // namespace

SequenceAttention choose_sequence_attention(const SequenceCall& c, const char* op) {
  static constexpr Choice kNamed[] = {
      {"ring", SequenceAttention::kRing}, {"heads", SequenceAttention::kHeads}, {"gather", SequenceAttention::kGather}};
  if (const Choice* choice = frozen(kNamed, op)) {
    contract::note_choice(op, choice->name);
    return choice->what;
  }
  const Dims &q = c.query.shape(), &k = c.key.shape(), &v = c.value.shape(), &grid = c.query.placement().hierarchy();
  const MachineCosts& m = machine_costs();
  int64_t n = 1, split_heads = 1, others = 1;
  for (int a = 0; a < grid.size(); ++a) {
    if (is_sequence_axis(c, a))
      n *= grid[a];
    else
      others *= c.query.nd_sbp()[a].is_split() ? grid[a] : 1;
    if (c.query.nd_sbp()[a].is_split(kHeadAxis)) split_heads *= grid[a];
  }
  const bool divides = q[1] % (n * split_heads) == 0 && k[1] % (n * split_heads) == 0;

  const double pair_s = 2.0 * static_cast<double>(q[0] * q[1]) * static_cast<double>(q[3] + v[3]) /
      static_cast<double>(others) / kPairFlopsPerSecond;
  std::vector<Interval> queries, keys;
  for (int64_t i = 0; i < n; ++i) {
    queries.push_back(balanced_split(q[2], n, i));
    keys.push_back(balanced_split(k[2], n, i));
  }
  const double part_bytes =
      (2 * bytes_of(c.query) + bytes_of(c.key) + bytes_of(c.value)) / static_cast<double>(n * others);
  const SequenceShares shares = share_out(queries, keys, c.causal, c.window, true, pair_s, part_bytes / m.copy.far);
  int64_t most = 0, all = 0;
  for (const Interval& part : queries) {
    const int64_t pairs = seen_pairs(part, {0, k[2]}, c.causal, c.window);
    most = std::max(most, pairs), all += pairs;
  }

  // Backward has two and a half times the work, and what goes one way forward goes the other way there; a ring's keys
  // and values pass by again, with their gradients.
  const double work = c.gradients ? 3.5 : 1, moves = c.gradients ? 2 : 1, passes = c.gradients ? 3 : 1;
  const double keys_s = seconds_to(c.key, with_axis(c.key, c, -1)) + seconds_to(c.value, with_axis(c.value, c, -1));
  const double syncs_s = static_cast<double>(n - 1) * (m.sync_s + m.sync_rank_s * static_cast<double>(n) + m.step_s);
  Choice ring{"ring", SequenceAttention::kRing}, heads{"heads", SequenceAttention::kHeads},
      gather{"gather", SequenceAttention::kGather};
  ring.seconds = work * static_cast<double>(shares.pairs()) * pair_s + passes * (keys_s + syncs_s) +
      (shares.moved ? moves * part_bytes / m.copy.far : 0);
  if (divides)
    heads.seconds = work * static_cast<double>(all) * pair_s / static_cast<double>(n) +
        moves *
            (2 * seconds_to(c.query, with_axis(c.query, c, kHeadAxis)) +
             seconds_to(c.key, with_axis(c.key, c, kHeadAxis)) + seconds_to(c.value, with_axis(c.value, c, kHeadAxis)));
  // Whole keys on each rank would take memory that does not fall with the number of ranks.
  if ((bytes_of(c.key) + bytes_of(c.value)) / static_cast<double>(others) <= m.cache_bytes)
    gather.seconds = work * static_cast<double>(most) * pair_s + moves * keys_s;

  const Choice choices[] = {ring, heads, gather};
  const Choice* best =
      std::min_element(std::begin(choices), std::end(choices), [](auto& a, auto& b) { return a.seconds < b.seconds; });
  if (const std::string asked = settings::text("HOLON_SEQUENCE_ATTENTION"); !asked.empty()) {
    best = std::find_if(std::begin(choices), std::end(choices), [&](auto& x) { return asked == x.name; });
    if (best == std::end(choices))
      fail_value("{}: HOLON_SEQUENCE_ATTENTION is \"{}\"; it is ring, heads, gather, or empty for the fastest.", op,
                 asked);
    if (best->what == SequenceAttention::kHeads && !divides)
      fail_value(
          "{}: HOLON_SEQUENCE_ATTENTION is heads, but {} ranks do not divide the {} heads of query and {} of key. "
          "Leave it empty, or choose ring.",
          op, n * split_heads, q[1], k[1]);
  }
  if (log::enabled(log::Channel::kDispatch)) {
    std::string text = fmt::format("{}: sequence of {} on {} ranks:", op, k[2], n);
    for (auto& x : choices) text += fmt::format(" {} {:.3g} s,", x.name, x.seconds);
    log::line(log::Channel::kDispatch, text + " takes " + best->name);
  }
  if (!capturing_tracer()) contract::note_choice(op, best->name);
  return best->what;
}

Tensor instead_of_sequence(const Tensor& x, const SequenceCall& c, int axis, const char* op) {
  return moved(x, with_axis(x, c, axis), op);
}

Tensor back_to_sequence(const Tensor& y, const SequenceCall& c, const char* op) {
  NdSbp sbp = y.nd_sbp();
  for (int a = 0; a < sbp.size(); ++a)
    if (is_sequence_axis(c, a)) sbp = sbp.with(a, sbp::split(kSequence));
  return moved(y, intern_spec(y.placement(), sbp), op);
}

}  // namespace holon::ops
