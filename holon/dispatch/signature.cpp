#include "holon/dispatch/signature.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/base/log.h"
#include "holon/boxing/planner.h"
#include "holon/contract/compilation.h"
#include "holon/contract/entry.h"
#include "holon/contract/moves.h"
#include "holon/cost/machine.h"
#include "holon/dispatch/layout_free.h"
#include "holon/tensor/tracer.h"

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
  if (Context::current().layout_free()) keep_layout_free(op, attrs, in, out, &all);
  return all;
}

SmallVec<const GlobalSpec*, 4> read_as(std::span<const Signature* const> along,
                                       std::span<const GlobalSpec* const> in_specs) {
  SmallVec<const GlobalSpec*, 4> as(in_specs);
  bool reads = false;
  for (size_t i = 0; i < as.size(); ++i)
    for (int a = 0; as[i] && a < as[i]->nd_sbp.size(); ++a) {
      const bool brings = along[to_size(a)]->reads >> std::min<size_t>(i, 31) & 1;
      if (!brings || as[i]->placement.hierarchy()[a] < 2) continue;
      as[i] = intern_spec(as[i]->placement, as[i]->nd_sbp.with(a, sbp::broadcast()));
      reads = true;
    }
  if (!reads) as.clear();
  return as;
}

SmallVec<const GlobalSpec*, 4> read_as(std::span<const Signature> signatures,
                                       std::span<const GlobalSpec* const> in_specs,
                                       std::span<const GlobalSpec* const> out_specs) {
  if (std::none_of(signatures.begin(), signatures.end(), [](const Signature& s) { return s.reads; })) return {};
  SmallVec<const Signature*, 3> along;
  for (int a = 0; a < out_specs[0]->nd_sbp.size(); ++a) {
    auto fits = [&](const Signature& s) {
      for (size_t i = 0; i < in_specs.size(); ++i)
        if (in_specs[i] && !(in_specs[i]->nd_sbp[a] == s.in[i])) return false;
      for (size_t o = 0; o < out_specs.size(); ++o)
        if (!(out_specs[o]->nd_sbp[a] == s.out[o])) return false;
      return true;
    };
    const auto found = std::find_if(signatures.begin(), signatures.end(), fits);
    if (found == signatures.end()) return {};
    along.push_back(&*found);
  }
  return read_as(along, in_specs);
}

namespace {

class Chooser {
 public:
  Chooser(const OpDef& op, const Attrs& attrs, std::span<const Meta> in, std::span<const Meta> out,
          std::span<const GlobalSpec* const> specs, const InputRoles& roles)
      : op_(op), in_(in), out_(out), specs_(specs), roles_(roles), signatures_(signatures_of(op, attrs, in, out)) {
    for (auto* s : specs)
      if (s) placement_ = s->placement;
    if (Context::current().layout_free()) require_layout_free(placement_, op.public_name());
    n_axes_ = placement_.hierarchy().size();
    pick_.resize(to_size(n_axes_));
  }

  // Inputs that fit a signature as they are run as they are, at no cost.
  bool as_they_are() { return matches(sbps(), false); }
  // They may be called something else along an axis of one rank.
  bool without_moving() { return matches(sbps(), true); }

  ChosenSignature run() {
    if (!as_they_are() && !matches_contract()) {
      const contract::Compilation::Search searching;
      search(0);
      HOLON_CHECK(!candidates_.empty(), "op {} has no signature that can be reached", op_.name());
      choose();
      if (auto* compilation = contract::Compilation::current()) {
        std::vector<NdSbp> taken;
        for (size_t i = 0; i < in_.size(); ++i) taken.push_back(specs_[i] ? spec_of(best_, i, true)->nd_sbp : NdSbp());
        compilation->note(call_text(), contract::text_of(taken));
      }
    }
    ChosenSignature chosen;
    for (size_t i = 0; i < in_.size(); ++i) chosen.in.push_back(specs_[i] ? spec_of(best_, i, true) : nullptr);
    for (size_t o = 0; o < out_.size(); ++o) chosen.out.push_back(spec_of(best_, o, false));
    chosen.read_as = read_as(best_, chosen.in);
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

  std::vector<NdSbp> sbps() const {
    std::vector<NdSbp> list;
    for (auto* s : specs_) list.push_back(s ? s->nd_sbp : NdSbp());
    return list;
  }

  const GlobalSpec* spec_of(const Pick& pick, size_t operand, bool input) const {
    std::vector<Sbp> list;
    for (auto* s : pick) list.push_back(input ? s->in[operand] : s->out[operand]);
    return intern_spec(placement_, NdSbp(list));
  }

  // A factor that only divides in whole units needs their number to be a multiple of the ranks that share it.
  bool units_fit(const Pick& pick, int upto) const {
    if (Context::current().layout_free() && !sums_on_one_axis({pick.data(), to_size(upto)}, placement_.hierarchy()))
      return false;
    for (int a = 0; a < upto; ++a) {
      auto* s = at_index(pick, a);
      if (!s->even_units) continue;
      int64_t ranks = 1;
      for (int b = 0; b < upto; ++b)
        if (at_index(pick, b)->factor == s->factor) ranks *= placement_.hierarchy()[b];
      if (s->even_units % ranks) return false;
    }
    return true;
  }

  // A contract in force decides, if it knows the call. Of several calls that it knows the planner finds the right one,
  // as it did when they were recorded.
  bool matches_contract() {
    if (auto* compilation = contract::Compilation::current()) {
      if (!compilation->is_frozen()) return false;
      const auto taken = compilation->next(call_text());
      return taken && matches(contract::parse_operands(*taken), false);
    }
    if (tracer()) return false;
    Pick pick;
    SmallVec<contract::OpInput, 4> inputs;
    for (size_t i = 0; i < in_.size(); ++i) inputs.push_back({specs_[i], in_[i].shape, in_[i].dtype});
    for (auto& targets : contract::frozen_inputs(op_.name(), inputs)) {
      if (!matches(targets, false)) continue;
      if (!pick.empty()) return false;
      pick = best_;
    }
    return !pick.empty();
  }

  // "linear float32 [4, 8] S(0) cpu:0-1, float32 [16, 8] B cpu:0-1, -".
  std::string call_text() const {
    std::string text(op_.name());
    for (size_t i = 0; i < in_.size(); ++i)
      text += (i ? ", " : " ") +
          (specs_[i] ? fmt::format("{} {} {}", name(in_[i].dtype), in_[i].shape, contract::text_of(*specs_[i])) : "-");
    return text;
  }

  // Whether a signature takes inputs of these layouts, which becomes the best one. lenient: of an axis of one rank any
  // does.
  bool matches(const std::vector<NdSbp>& sbps, bool lenient) {
    if (sbps.size() != in_.size()) return false;
    for (size_t i = 0; i < in_.size(); ++i)
      if (specs_[i] && sbps[i].size() != n_axes_) return false;
    for (int a = 0; a < n_axes_; ++a) {
      const Signature* found = nullptr;
      for (auto& s : signatures_) {
        bool fits = true;
        const bool any = lenient && placement_.hierarchy()[a] == 1;
        for (size_t i = 0; i < in_.size() && fits; ++i) fits = any || !specs_[i] || sbps[i][a] == s.in[i];
        if (fits) {
          found = &s;
          break;
        }
      }
      if (!found) return false;
      at_index(pick_, a) = found;
    }
    if (!units_fit(pick_, n_axes_)) return false;
    best_ = pick_;
    return true;
  }

  void search(int axis) {
    if (axis == n_axes_) return price();
    for (auto& s : signatures_) {
      at_index(pick_, axis) = &s;
      // An op never makes partial sums out of whole values by itself.
      bool reachable = true;
      for (size_t i = 0; i < in_.size() && reachable; ++i)
        reachable = !specs_[i] || !s.in[i].is_partial() || specs_[i]->nd_sbp[axis].is_partial();
      if (Context::current().layout_free()) reachable = reachable && splits_what_is(s, axis);
      if (reachable && units_fit(pick_, axis + 1)) search(axis + 1);
    }
  }

  // Whether an input is split as the signature says already, if it splits any: rows that this axis' ranks have alike
  // would come apart otherwise, and those of micro-batches would be added up in another order than those of a batch.
  bool splits_what_is(const Signature& s, int axis) const {
    bool splits = false;
    for (size_t i = 0; i < in_.size(); ++i) {
      if (!specs_[i] || !s.in[i].is_split()) continue;
      if (specs_[i]->nd_sbp[axis] == s.in[i]) return true;
      splits = true;
    }
    return !splits;
  }

  // Where boxing takes about as long, what moves fewer bytes wins (there, and back as a gradient), and then what holds
  // fewer.
  static constexpr double kAbout = 1.1;

  void price() {
    double total = 0, held = 0;
    int64_t moved = 0;
    int parameters = 0;
    for (size_t i = 0; i < in_.size() && total <= most_s(parameters); ++i) {
      if (!specs_[i]) continue;
      const GlobalSpec* to = spec_of(pick_, i, true);
      const BoxingCost& c = boxing_cost(i, to);
      total += c.s;
      moved += c.bytes;
      parameters += c.moves && has(roles_.parameters, i);
      if (to == specs_[i]) continue;
      if (has(roles_.grads, i)) total += gradient_cost(i, to);
      if (c.moves) held += part_bytes(in_[i], [&](int a) { return to->nd_sbp[a]; });
    }
    if (total > most_s(parameters)) return;
    if (parameters < least_parameters_) {
      least_parameters_ = parameters;
      least_s_ = std::numeric_limits<double>::infinity();
      candidates_.clear();
    }
    total += read_inside();
    // A partial sum must be paid for by whoever reads it.
    for (size_t o = 0; o < out_.size(); ++o) {
      auto sbp_of = [&](int a) { return at_index(pick_, a)->out[o]; };
      for (int a = 0; a < n_axes_; ++a)
        if (sbp_of(a).is_partial()) total += pending_sum(out_[o]);
      held += part_bytes(out_[o], sbp_of);
    }
    least_s_ = std::min(least_s_, total);
    candidates_.push_back({total, moved, held, pick_});
  }

  // What the kernel reads of other ranks' parts.
  double read_inside() const {
    if (std::none_of(pick_.begin(), pick_.end(), [](const Signature* s) { return s->reads; })) return 0;
    SmallVec<const GlobalSpec*, 4> in;
    for (size_t i = 0; i < in_.size(); ++i) in.push_back(specs_[i] ? spec_of(pick_, i, true) : nullptr);
    double s = 0;
    const auto as = read_as(pick_, in);
    for (size_t i = 0; i < as.size(); ++i)
      if (in[i] && as[i] != in[i]) s += boxing::cost(in[i], as[i], in_[i].shape, in_[i].dtype);
    return s;
  }

  void choose() {
    const Candidate* best = nullptr;
    for (auto& c : candidates_)
      if (c.s <= least_s_ * kAbout &&
          (!best || std::tie(c.moved, c.held, c.s) < std::tie(best->moved, best->held, best->s)))
        best = &c;
    if (best) best_ = best->pick;
  }

  static bool has(uint32_t mask, size_t input) { return mask >> std::min<size_t>(input, 31) & 1; }
  // What a candidate that moves so many parameters may take.
  double most_s(int parameters) const {
    return parameters > least_parameters_ ? -1
        : parameters < least_parameters_  ? std::numeric_limits<double>::infinity()
                                          : least_s_ * kAbout;
  }
  static double bytes_of(const Meta& m) {
    return static_cast<double>(m.shape.numel()) * static_cast<double>(size_bytes(m.dtype));
  }
  static double pending_sum(const Meta& m) { return 0.5 * bytes_of(m) / machine_costs().reduce.mid; }
  template <class SbpOf>
  double part_bytes(const Meta& m, SbpOf sbp_of) const {
    double part = bytes_of(m);
    for (int a = 0; a < n_axes_; ++a)
      if (sbp_of(a).is_split()) part /= static_cast<double>(placement_.hierarchy()[a]);
    return part;
  }

  struct BoxingCost {
    double s = 0;
    int64_t bytes = 0;  // the most that a rank reads, there and back
    bool moves = false;
  };
  const BoxingCost& boxing_cost(size_t input, const GlobalSpec* to) {
    auto [it, fresh] = costs_.try_emplace({input, to});
    if (fresh && specs_[input] != to) {
      const Meta& in = in_[input];
      auto plan = boxing::plan(specs_[input], to, in.shape, in.dtype);
      it->second = {plan.predicted_s(), plan.max_read_bytes(), plan.max_read_bytes() > 0};
      if (is_floating(in.dtype))
        it->second.bytes += boxing::plan(to, specs_[input], in.shape, in.dtype).max_read_bytes();
    }
    return it->second;
  }

  // Of bringing the gradient of an input that is redistributed back to what made it. That of a part is a part and that
  // of an addend is whole; one of what is whole on every rank is addends where the ranks compute different things with
  // it.
  double gradient_cost(size_t input, const GlobalSpec* redistributed) {
    std::vector<Sbp> from, to;
    double pending = 0;
    for (int a = 0; a < n_axes_; ++a) {
      const Signature& s = *at_index(pick_, a);
      bool divided = false;
      for (auto* list : {&s.in, &s.out})
        for (Sbp x : *list) divided |= !x.is_broadcast();
      auto dual = [&](Sbp x) {
        return x.is_split() ? x : x.is_partial() || !divided ? sbp::broadcast() : sbp::partial_sum();
      };
      from.push_back(dual(redistributed->nd_sbp[a]));
      const Sbp source = specs_[input]->nd_sbp[a];
      if (source.is_broadcast() && !has(roles_.leaves, input)) {
        // What made a value that is whole takes its gradient in any layout.
        to.push_back(from.back());
        if (from.back().is_partial()) pending += pending_sum(in_[input]);
      } else {
        to.push_back(source.is_partial() ? sbp::broadcast() : source);
      }
    }
    const GlobalSpec *of = intern_spec(placement_, NdSbp(from)), *wanted = intern_spec(placement_, NdSbp(to));
    return pending + (of == wanted ? 0 : boxing::cost(of, wanted, in_[input].shape, in_[input].dtype));
  }

  struct Candidate {
    double s;
    int64_t moved;
    double held;  // bytes of a rank's results, and of copies of its inputs
    Pick pick;
  };

  const OpDef& op_;
  std::span<const Meta> in_, out_;
  std::span<const GlobalSpec* const> specs_;
  const InputRoles roles_;
  std::vector<Signature> signatures_;
  Placement placement_;
  int n_axes_ = 0;
  Pick pick_, best_;
  double least_s_ = std::numeric_limits<double>::infinity();
  int least_parameters_ = std::numeric_limits<int>::max();
  std::vector<Candidate> candidates_;
  std::map<std::pair<size_t, const GlobalSpec*>, BoxingCost> costs_;
};

}  // namespace

ChosenSignature choose_signature(const OpDef& op, const Attrs& attrs, std::span<const Meta> in,
                                 std::span<const Meta> out, std::span<const GlobalSpec* const> in_specs,
                                 const InputRoles& roles) {
  return Chooser(op, attrs, in, out, in_specs, roles).run();
}

bool takes_without_moving(const OpDef& op, const Attrs& attrs, std::span<const Meta> in, std::span<const Meta> out,
                          std::span<const GlobalSpec* const> in_specs) {
  return Chooser(op, attrs, in, out, in_specs, {}).without_moving();
}

}  // namespace holon
