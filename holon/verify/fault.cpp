#include "holon/verify/fault.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "holon/base/fmt.h"
#include "holon/base/index.h"

namespace holon::verify {

std::string_view name(FaultKind kind) {
  switch (kind) {
    case FaultKind::kMissingSum: return "missing sum";
    case FaultKind::kSumTwice: return "sum twice";
    case FaultKind::kWrongScale: return "wrong scale";
    case FaultKind::kWrongSlice: return "wrong slice";
    case FaultKind::kStaleReplica: return "stale replica";
    case FaultKind::kRandomNumbers: return "unsynchronised random numbers";
    case FaultKind::kDriftedReplicas: return "drifted replicas";
    case FaultKind::kRankBranch: return "rank-dependent branch";
    case FaultKind::kData: return "data read twice or never";
    case FaultKind::kLocalOp: return "local op on a global meaning";
    case FaultKind::kDroppedGradient: return "dropped gradient";
    case FaultKind::kFails: return "fails under this layout";
    case FaultKind::kOther: return "differs";
  }
  return "";
}

std::string Fault::str() const {
  std::string text = fmt::format("{}: {}: {}: {}.", site.empty() ? "(line not known)" : site, op, name(kind), what);
  if (!seen.empty()) text += " It shows in " + seen + ".";
  return text;
}

namespace {

std::string op_text(const Record& r) {
  switch (r.kind) {
    case Kind::kBackward: return fmt::format("backward of {}, input {}", r.op, r.place);
    case Kind::kGradient: return fmt::format("the gradient that reaches {}", r.op);
    case Kind::kLeafGradient: return "the gradient " + r.label;
    case Kind::kUse: return fmt::format("{}: the {}", r.op, r.label);
    case Kind::kUpdate: return fmt::format("{}: {}", r.op, r.label);
    case Kind::kState: return "the module's " + r.label;
    case Kind::kRead: return "what is read of a tensor";
    case Kind::kInput: return r.op == "parameter" ? "a parameter" : "data";
    default: return r.op;
  }
}

std::string seen_text(const Record& r) { return op_text(r) + (r.site.empty() ? "" : ", " + r.site); }

std::string element_text(int64_t element, const Dims& shape) {
  if (shape.size() == 0) return "the value";
  Dims at = Dims::filled(shape.size(), 0);
  for (int d = shape.size() - 1; d >= 0; --d)
    at[d] = shape[d] ? element % shape[d] : 0, element /= std::max<int64_t>(shape[d], 1);
  return fmt::format("element {}", at);
}

class Classifier {
 public:
  Classifier(const Comparison& c, int outcome)
      : c_(c), outcome_(outcome), cause_(c.cause_of(outcome)), r_(c.record(cause_)), f_(c.finding(cause_)) {}

  Fault run() {
    fault_.site = r_.site;
    fault_.op = op_text(r_);
    if (outcome_ != cause_) fault_.seen = seen_text(c_.record(outcome_));
    if (dropped() || branched() || drifted() || random() || replicas() || scaled() || addend() || one_part() ||
        data() || slice() || stale() || local())
      return fault_;
    fault_.what = values();
    return fault_;
  }

 private:
  const Step& step(int s) const { return c_.steps()[to_size(s)]; }
  bool is(FaultKind kind, std::string what) {
    fault_.kind = kind;
    fault_.what = std::move(what);
    return true;
  }
  const Value* expected() const { return c_.expected(cause_, f_.value); }

  // "element [0, 1] is 2.5 on 2 ranks, and 1.25 on one".
  std::string values() const {
    const Value* e = expected();
    if (f_.match.element >= 0 && e)
      return fmt::format("{} is {:.6g} on {} ranks, and {:.6g} on one", element_text(f_.match.element, e->shape),
                         f_.match.found, c_.n_ranks(), f_.match.expected);
    if (!e) return "one rank does not run it, and what follows differs";
    for (const Value* v : c_.parts(cause_, f_.value))
      if (v && v->global && v->shape != e->shape)
        return fmt::format("it is {} on {} ranks, and {} on one", v->shape, c_.n_ranks(), e->shape);
    std::string text = "no sum, slice or copy of what the ranks have is the value of one rank";
    const auto found = c_.parts(cause_, f_.value);
    for (size_t r = 0; r < found.size(); ++r)
      if (found[r] && found[r]->here && !found[r]->part.empty())
        text += fmt::format("{} rank {} has {} {:.6g}", r ? "," : ":", r, found[r]->part_shape, found[r]->part[0]);
    if (!e->part.empty()) text += fmt::format("; one rank has {} {:.6g}", e->part_shape, e->part[0]);
    return text;
  }

  // A gradient that one rank has and that did not come here: where the value stopped requiring one.
  bool dropped() {
    const bool gradient = r_.kind == Kind::kLeafGradient || r_.kind == Kind::kGradient || r_.kind == Kind::kUse;
    const bool gone = step(cause_).on_none() ||
        (r_.kind == Kind::kUse && c_.reference(cause_) && c_.reference(cause_)->values.size() > r_.values.size());
    if (!gone && !(gradient && !step(cause_).missing.empty())) return false;
    if (step(cause_).on_none())
      for (int s = cause_ - 1; s >= 0 && c_.record(s).kind != Kind::kUpdate; --s)
        if (c_.record(s).kind == Kind::kMade && step(s).on_none()) {
          fault_.site = c_.record(s).site;
          fault_.op = op_text(c_.record(s));
          return is(FaultKind::kData,
                    "one rank reads this and goes on to an update, and under this layout there are fewer of them");
        }
    // Ops whose result has a gradient on one rank only, or that take one away.
    for (int s = 0; s < static_cast<int>(c_.steps().size()); ++s) {
      const Record& op = c_.record(s);
      if ((op.kind != Kind::kOp && op.kind != Kind::kWrite) || step(s).on_none() || op.values.empty() ||
          op.values[0].requires_grad)
        continue;
      const Value* e = c_.expected(s, 0);
      const bool lost = e && e->requires_grad;
      if (!lost) continue;
      const Record& first = c_.record(lost_before(s));
      fault_.site = first.site;
      fault_.op = op_text(first);
      fault_.seen = seen_text(c_.record(outcome_));
      return is(FaultKind::kDroppedGradient, "its result has a gradient on one rank and none under this layout");
    }
    for (int s : step(cause_).missing) {
      const Record& gave = c_.record(s);
      fault_.site = gave.site;
      fault_.op = op_text(gave);
      return is(FaultKind::kDroppedGradient, "on one rank a gradient comes from here, and under this layout none");
    }
    return is(FaultKind::kDroppedGradient, "there is a gradient on one rank, and none under this layout");
  }

  // Of an op without a gradient: the first of those before it that only several ranks run, and that have none either.
  int lost_before(int s) const {
    for (int in : step(s).inputs) {
      const Record& op = c_.record(in);
      if (!c_.reference(in) && op.kind == Kind::kOp && !op.values.empty() && !op.values[0].requires_grad)
        return lost_before(in);
    }
    return s;
  }

  // Which ranks run it.
  bool branched() {
    const Step& s = step(cause_);
    if (s.on_all() || s.on_none()) return false;
    std::string with, without;
    for (size_t r = 0; r < s.at.size(); ++r) (s.at[r] >= 0 ? with : without) += fmt::format(" {}", r);
    return is(FaultKind::kRankBranch, fmt::format("rank{} runs it, and rank{} does not", with, without));
  }

  // Whether copies on different ranks differ; and by what.
  bool drifted() {
    const Assembled& a = f_.assembled;
    if (a.drifted_rank < 0) return false;
    const std::string what = fmt::format(
        "copies of a broadcast tensor differ: element {} is {:.9g} on the first rank, and {:.9g} on rank {}",
        a.drifted_element, a.first, a.other, a.drifted_rank);
    if (any_random()) return is(FaultKind::kRandomNumbers, what);
    if (is_earlier_on_a_rank()) return is(FaultKind::kStaleReplica, what + ", where it is as before the update");
    return is(FaultKind::kDriftedReplicas, what);
  }

  bool any_random() const { return r_.random; }

  // Values of the same tensor before: of the steps before this one from the same line, or that it writes over.
  std::vector<const Value*> earlier() const {
    std::vector<const Value*> list;
    auto add = [&](int s) {
      if (const Value* e = c_.expected(s, f_.value)) list.push_back(e);
    };
    if (r_.kind == Kind::kWrite || r_.kind == Kind::kUpdate)
      for (int in : step(cause_).inputs) add(in);
    for (int s = cause_ - 1; s >= 0; --s) {
      const Record& before = c_.record(s);
      if (before.kind == r_.kind && before.op == r_.op && before.site == r_.site && before.label == r_.label &&
          before.place == r_.place) {
        add(s);
        break;
      }
    }
    return list;
  }

  bool equals(const std::vector<double>& found, const Value& e) const {
    return match(found, e.part, c_.tolerance(cause_, f_.value), {}).level == Match::Level::kSame;
  }

  bool is_earlier_on_a_rank() const {
    if (!expected()) return false;
    for (const Value* part : c_.parts(cause_, f_.value))
      if (part && part->here)
        for (const Value* e : earlier())
          if (part->part.size() == e->part.size() && equals(part->part, *e) && !equals(part->part, *expected()))
            return true;
    return false;
  }

  bool random() {
    if (!r_.random) return false;
    return is(FaultKind::kRandomNumbers,
              "each rank draws its own numbers: give it a global tensor, or all ranks the same seed; " + values());
  }

  // Local tensors of which some are what one rank has, and others are not.
  bool replicas() {
    const Value* e = expected();
    if (!e || !f_.assembled.value.empty() || f_.agreement != Agreement::kDiffers) return false;
    int right = -1, wrong = -1;
    const auto found = c_.parts(cause_, f_.value);
    for (size_t r = 0; r < found.size(); ++r) {
      if (!found[r] || found[r]->part_shape != e->part_shape || e->part.empty()) return false;
      (equals(found[r]->part, *e) ? right : wrong) = static_cast<int>(r);
    }
    if (right < 0 || wrong < 0) return false;
    const std::string what =
        fmt::format("rank {} has the value of one rank, and rank {} another: {:.9g} instead of {:.9g} first", right,
                    wrong, found[to_size(wrong)]->part[0], e->part[0]);
    return is(is_earlier_on_a_rank() ? FaultKind::kStaleReplica : FaultKind::kDriftedReplicas, what);
  }

  // Whether a step's value is a sum that is not made yet.
  bool reads_partial() const {
    for (int in : step(cause_).inputs)
      if (c_.finding(in).partial) return true;
    return false;
  }
  bool reads_mean() const {
    for (int in : step(cause_).inputs)
      if (auto& relation = c_.finding(in).relation; relation && relation->mean) return true;
    return false;
  }

  bool scaled() {
    if (f_.agreement != Agreement::kScaled) return false;
    const double factor = f_.match.factor;
    const auto numbers = factors_of(c_.n_ranks(), {});
    const double n = c_.n_ranks();
    std::string times = fmt::format("{:.6g} times what it is on one rank", factor);
    for (double k : numbers)
      if (std::abs(factor - k) < 1e-6 * k) {
        if (k == n) times = fmt::format("{} times, the number of ranks, what it is on one rank", n);
        if (k == 1 / n) times = fmt::format("1/{} of what it is on one rank, where {} is the number of ranks", n, n);
        if (k == std::sqrt(n))
          times = fmt::format("√{} times what it is on one rank, where {} is the number of ranks", n, n);
        if (k == 1 / std::sqrt(n))
          times = fmt::format("1/√{} of what it is on one rank, where {} is the number of ranks", n, n);
      }
    times += "; " + values();
    const bool whole_number = std::abs(factor - std::round(factor)) < 1e-6 && factor > 1.5;
    const bool sums = r_.converts || r_.kind == Kind::kBackward || r_.kind == Kind::kGradient;
    if (sums && whole_number && !reads_mean()) return is(FaultKind::kSumTwice, times);
    if (sums && factor < 1 && factor > 0 && std::abs(1 / factor - std::round(1 / factor)) < 1e-6 &&
        r_.kind != Kind::kOp)
      return is(FaultKind::kMissingSum, times);
    return is(FaultKind::kWrongScale,
              reads_mean() && whole_number ? times + ": means of the ranks are summed, not averaged" : times);
  }

  // An addend is used where the sum is meant.
  bool addend() {
    if (f_.agreement != Agreement::kSame || !f_.partial) return false;
    const std::string how = f_.relation->mean ? "the mean" : "the sum";
    return is(FaultKind::kMissingSum,
              fmt::format("each rank has its own addend, of which {} over the ranks is the value on one rank, and it "
                          "is used as it is",
                          how));
  }

  // What one rank has is used as the whole.
  bool one_part() {
    const Value* e = expected();
    if (!e) return false;
    const auto found = c_.parts(cause_, f_.value);
    const std::vector<double>* value = &f_.assembled.value;
    std::vector<double> local;
    if (value->empty()) {
      if (found.empty() || !found[0] || !found[0]->here) return false;
      value = &found[0]->part;
    }
    for (int in : step(cause_).inputs) {
      const Finding& from = c_.finding(in);
      if (!from.partial) continue;
      const auto parts = c_.parts(in, from.value);
      for (size_t rank = 0; rank < parts.size(); ++rank) {
        if (!parts[rank] || parts[rank]->part.size() != value->size()) continue;
        const double tol = c_.tolerance(in, from.value);
        if (match(*value, parts[rank]->part, tol, {}).level == Match::Level::kSame)
          return is(FaultKind::kMissingSum,
                    fmt::format("it is what rank {} alone has, of a value that is {} of what the ranks have; {}", rank,
                                from.relation->mean ? "the mean" : "the sum", values()));
      }
    }
    return false;
  }

  // Rows of the parts in the rows of the whole.
  bool data() {
    if (r_.kind == Kind::kUse && !c_.reference(cause_))
      return is(FaultKind::kData, "there are more updates than on one rank, which has come to its end");
    if (r_.kind == Kind::kMade && !c_.reference(cause_)) return is(FaultKind::kData, "one rank does not read this");
    const Value* e = expected();
    if (!e || e->part_shape.size() == 0) return false;
    if (r_.kind != Kind::kMade && r_.kind != Kind::kInput) return false;
    if (r_.op == "parameter") return false;
    const auto found = c_.parts(cause_, f_.value);
    const int64_t rows = e->part_shape[0];
    std::vector<int> times(to_size(rows), 0);
    const double tol = c_.tolerance(cause_, f_.value);
    int64_t read = 0, foreign = 0;
    for (const Value* part : found) {
      if (!part || !part->here || part->part_shape.size() != e->part_shape.size() || part->part_shape[0] == 0)
        return false;
      const int64_t n = part->part_shape[0];
      const size_t size = part->part.size() / to_size(n);
      Dims row = part->part_shape;
      row[0] = 1;
      for (int64_t i = 0; i < n; ++i, ++read) {
        const int64_t at =
            place_of(std::span(part->part).subspan(to_size(i) * size, size), row, e->part, e->part_shape, 0, tol);
        if (at < 0)
          ++foreign;
        else
          ++times[to_size(at)];
      }
    }
    std::string twice, never;
    for (size_t i = 0; i < times.size(); ++i) {
      if (times[i] > 1) twice += fmt::format(" {}", i);
      if (times[i] == 0) never += fmt::format(" {}", i);
    }
    std::string what = "of the rows that one rank reads here,";
    if (!twice.empty()) what += " row" + twice + " is read more than once";
    if (!never.empty()) what += fmt::format("{} row{} is never read", twice.empty() ? "" : ",", never);
    if (foreign > 0) what += fmt::format("{} {} rows are others", twice.empty() && never.empty() ? "" : ",", foreign);
    if (twice.empty() && never.empty() && foreign == 0) return false;
    return is(FaultKind::kData, what);
  }

  // Each part is somewhere in the whole, but not where it should be; or the whole has its rows in another order.
  bool slice() {
    const Value* e = expected();
    if (!e || e->part_shape.size() == 0) return false;
    const double tol = c_.tolerance(cause_, f_.value);
    const auto found = c_.parts(cause_, f_.value);
    if (!f_.assembled.value.empty()) {
      std::vector<double> a = f_.assembled.value, b = e->part;
      std::sort(a.begin(), a.end());
      std::sort(b.begin(), b.end());
      if (a.size() > 1 && match(a, b, tol, {}).level == Match::Level::kSame)
        return is(FaultKind::kWrongSlice, "it has the elements of the value on one rank in another order; " + values());
    }
    // What it cuts a slice of may be whole here.
    std::vector<const Value*> wholes{e};
    for (int in : step(cause_).inputs)
      if (const Value* of_input = c_.expected(in, 0); of_input && of_input->here) wholes.push_back(of_input);
    for (const Value* whole : wholes)
      for (int axis = 0; axis < whole->part_shape.size(); ++axis) {
        std::string places;
        bool all = !found.empty(), part_of_it = false;
        for (size_t r = 0; r < found.size() && all; ++r) {
          const Value* part = found[r];
          all = part && part->here && part->part_shape.size() == whole->part_shape.size() && !part->part.empty();
          if (!all) break;
          const int64_t at = place_of(part->part, part->part_shape, whole->part, whole->part_shape, axis, tol);
          all = at >= 0;
          part_of_it = part_of_it || part->part_shape != whole->part_shape;
          places += fmt::format("{} rank {} has {} to {}", r ? "," : "", r, at, at + part->part_shape[axis]);
        }
        if (all && part_of_it)
          return is(FaultKind::kWrongSlice,
                    fmt::format("along axis {} of {} of one rank,{}, which is not all of it once", axis,
                                whole->part_shape, places));
      }
    return false;
  }

  bool stale() {
    const std::vector<double>* value = &f_.assembled.value;
    std::vector<const Value*> parts = c_.parts(cause_, f_.value);
    for (const Value* e : earlier()) {
      if (!value->empty() && value->size() == e->part.size() && equals(*value, *e))
        return is(FaultKind::kStaleReplica, "it is what it was before; " + values());
      if (value->empty())
        for (size_t r = 0; r < parts.size(); ++r)
          if (parts[r] && parts[r]->part.size() == e->part.size() && equals(parts[r]->part, *e))
            return is(FaultKind::kStaleReplica, fmt::format("on rank {} it is what it was before; {}", r, values()));
    }
    return false;
  }

  // Its inputs are parts or addends of what one rank has, and its result is neither.
  bool local() {
    if (f_.assembled.whole || (r_.kind != Kind::kOp && r_.kind != Kind::kWrite) || r_.converts) return false;
    bool split = false;
    for (int in : step(cause_).inputs) {
      const Finding& from = c_.finding(in);
      if (from.agreement != Agreement::kSame) continue;
      // The local part of a global tensor may come here by its memory alone.
      std::vector<Sbp> nd_sbp;
      if (from.relation) nd_sbp = from.relation->nd_sbp;
      if (from.assembled.whole)
        for (const Value* part : c_.parts(in, from.value))
          if (part) nd_sbp = part->nd_sbp;
      auto any = [&](auto&& is) { return std::any_of(nd_sbp.begin(), nd_sbp.end(), is); };
      if (from.partial || any([](Sbp s) { return s.is_partial(); }))
        return is(FaultKind::kMissingSum,
                  fmt::format("it reads addends of which the sum is meant, from {}; {}", seen_text(c_.record(in)),
                              values()));
      split = split || any([](Sbp s) { return s.is_split(); }) || (from.relation && from.relation->interleaved >= 0);
    }
    return split &&
        is(FaultKind::kLocalOp,
           fmt::format("each rank runs it on a part of its input, and the results are not parts of the result on one "
                       "rank; {}",
                       values()));
  }

  const Comparison& c_;
  const int outcome_, cause_;
  const Record& r_;
  const Finding& f_;
  Fault fault_;
};

}  // namespace

Fault fault_of(const Comparison& c, int outcome) { return Classifier(c, outcome).run(); }

}  // namespace holon::verify
