#include "holon/dispatch/signature.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include "holon/base/log.h"
#include "holon/boxing/planner.h"
#include "holon/cost/machine.h"

namespace holon {

std::vector<Signature> signatures_of(const OpDef& op, const Attrs& attrs, std::span<const Meta> in,
                                     std::span<const Meta> out) {
  Rule rule(in.size(), out.size());
  HOLON_CHECK(op.rule, "op {} has neither a sharding rule nor a reason for none", op.name());
  RuleCall call(op, attrs, in, out, rule);
  op.rule(call);
  std::vector<Signature> all = rule.signatures(op.joint, op.each);
  // Bools have no sum: an addition of them is "or", which loses what a partial sum must keep.
  auto adds_bools = [](const SmallVec<Sbp, 4>& sbps, std::span<const Meta> metas) {
    for (size_t i = 0; i < sbps.size(); ++i)
      if (sbps[i].is_partial() && metas[i].dtype == boolean) return true;
    return false;
  };
  std::erase_if(all, [&](const Signature& s) { return adds_bools(s.in, in) || adds_bools(s.out, out); });
  return all;
}

namespace {

class Chooser {
 public:
  Chooser(const OpDef& op, const Attrs& attrs, std::span<const Meta> in, std::span<const Meta> out,
          std::span<const GlobalSpec* const> specs)
      : op_(op), in_(in), out_(out), specs_(specs), signatures_(signatures_of(op, attrs, in, out)) {
    for (auto* s : specs)
      if (s) placement_ = s->placement;
    n_axes_ = placement_.hierarchy().size();
    pick_.resize(static_cast<size_t>(n_axes_));
  }

  ChosenSignature run() {
    if (!matches_as_is()) {
      search(0);
      HOLON_CHECK(!candidates_.empty(), "op {} has no signature that can be reached", op_.name());
      choose();
    }
    ChosenSignature chosen;
    for (size_t i = 0; i < in_.size(); ++i) chosen.in.push_back(specs_[i] ? spec_of(best_, i, true) : nullptr);
    for (size_t o = 0; o < out_.size(); ++o) chosen.out.push_back(spec_of(best_, o, false));
    if (log::enabled(log::Channel::kDispatch)) {
      std::string text = fmt::format("{}:", op_.name());
      for (size_t i = 0; i < in_.size(); ++i)
        if (specs_[i]) text += fmt::format(" {} -> {},", specs_[i]->nd_sbp, chosen.in[i]->nd_sbp);
      text += " gives";
      for (auto* s : chosen.out) text += " " + s->nd_sbp.str();
      log::line(log::Channel::kDispatch, text);
    }
    return chosen;
  }

 private:
  using Pick = SmallVec<const Signature*, 3>;

  const GlobalSpec* spec_of(const Pick& pick, size_t operand, bool input) const {
    std::vector<Sbp> list;
    for (auto* s : pick) list.push_back(input ? s->in[operand] : s->out[operand]);
    return intern_spec(placement_, NdSbp(list));
  }

  // A factor that only divides in whole units needs their number to be a multiple of the ranks that share it.
  bool units_fit(const Pick& pick, int upto) const {
    for (int a = 0; a < upto; ++a) {
      auto* s = pick[static_cast<size_t>(a)];
      if (!s->even_units) continue;
      int64_t ranks = 1;
      for (int b = 0; b < upto; ++b)
        if (pick[static_cast<size_t>(b)]->factor == s->factor) ranks *= placement_.hierarchy()[b];
      if (s->even_units % ranks) return false;
    }
    return true;
  }

  // Inputs that fit a signature as they are run as they are, at no cost.
  bool matches_as_is() {
    for (int a = 0; a < n_axes_; ++a) {
      const Signature* found = nullptr;
      for (auto& s : signatures_) {
        bool fits = true;
        for (size_t i = 0; i < in_.size() && fits; ++i) fits = !specs_[i] || specs_[i]->nd_sbp[a] == s.in[i];
        if (fits) {
          found = &s;
          break;
        }
      }
      if (!found) return false;
      pick_[static_cast<size_t>(a)] = found;
    }
    if (!units_fit(pick_, n_axes_)) return false;
    best_ = pick_;
    return true;
  }

  void search(int axis) {
    if (axis == n_axes_) return price();
    for (auto& s : signatures_) {
      pick_[static_cast<size_t>(axis)] = &s;
      // An op never makes partial sums out of whole values by itself.
      bool reachable = true;
      for (size_t i = 0; i < in_.size() && reachable; ++i)
        reachable = !specs_[i] || !s.in[i].is_partial() || specs_[i]->nd_sbp[axis].is_partial();
      if (reachable && units_fit(pick_, axis + 1)) search(axis + 1);
    }
  }

  // Where boxing takes about as long, what moves fewer bytes wins (there, and back as a gradient), and then what holds
  // fewer.
  static constexpr double kAbout = 1.1;

  void price() {
    double total = 0;
    int64_t moved = 0;
    for (size_t i = 0; i < in_.size() && total <= least_s_ * kAbout; ++i) {
      if (!specs_[i]) continue;
      auto [s, bytes] = boxing_cost(i, spec_of(pick_, i, true));
      total += s;
      moved += bytes;
    }
    if (total > least_s_ * kAbout) return;
    // A partial sum must be paid for by whoever reads it.
    double held = 0;
    for (size_t o = 0; o < out_.size(); ++o) {
      double bytes = static_cast<double>(out_[o].shape.numel()) * static_cast<double>(size_bytes(out_[o].dtype)),
             part = bytes;
      for (int a = 0; a < n_axes_; ++a) {
        Sbp sbp = pick_[static_cast<size_t>(a)]->out[o];
        if (sbp.is_partial()) total += 0.5 * bytes / machine_costs().reduce.mid;
        if (sbp.is_split()) part /= static_cast<double>(placement_.hierarchy()[a]);
      }
      held += part;
    }
    least_s_ = std::min(least_s_, total);
    candidates_.push_back({total, moved, held, pick_});
  }

  void choose() {
    const Candidate* best = nullptr;
    for (auto& c : candidates_)
      if (c.s <= least_s_ * kAbout &&
          (!best || std::tie(c.moved, c.held, c.s) < std::tie(best->moved, best->held, best->s)))
        best = &c;
    if (best) best_ = best->pick;
  }

  // Seconds, and the most bytes that a rank reads, there and back.
  std::pair<double, int64_t> boxing_cost(size_t input, const GlobalSpec* to) {
    auto [it, fresh] = costs_.try_emplace({input, to});
    if (fresh && specs_[input] != to) {
      const Meta& in = in_[input];
      auto plan = boxing::plan(specs_[input], to, in.shape, in.dtype);
      it->second = {plan.predicted_s(), plan.max_read_bytes()};
      if (is_floating(in.dtype))
        it->second.second += boxing::plan(to, specs_[input], in.shape, in.dtype).max_read_bytes();
    }
    return it->second;
  }

  struct Candidate {
    double s;
    int64_t moved;
    double held;  // bytes of a rank's results
    Pick pick;
  };

  const OpDef& op_;
  std::span<const Meta> in_, out_;
  std::span<const GlobalSpec* const> specs_;
  std::vector<Signature> signatures_;
  Placement placement_;
  int n_axes_ = 0;
  Pick pick_, best_;
  double least_s_ = std::numeric_limits<double>::infinity();
  std::vector<Candidate> candidates_;
  std::map<std::pair<size_t, const GlobalSpec*>, std::pair<double, int64_t>> costs_;
};

}  // namespace

ChosenSignature choose_signature(const OpDef& op, const Attrs& attrs, std::span<const Meta> in,
                                 std::span<const Meta> out, std::span<const GlobalSpec* const> in_specs) {
  return Chooser(op, attrs, in, out, in_specs).run();
}

}  // namespace holon
