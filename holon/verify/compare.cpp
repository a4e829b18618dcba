#include "holon/verify/compare.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "holon/base/index.h"
#include "holon/verify/align.h"
#include "holon/verify/perturb.h"

namespace holon::verify {

namespace {

constexpr double kTimesMoved = 16, kEpsilons = 8;

std::vector<uint64_t> keys_of(const Recording& r) {
  std::vector<uint64_t> keys;
  for (auto& record : r.records) keys.push_back(key_of(record));
  return keys;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (double v : values)
    if (std::isfinite(v)) most = std::max(most, std::abs(v));
  return most;
}

Agreement agreement_of(Match::Level level) {
  return level == Match::Level::kSame  ? Agreement::kSame
      : level == Match::Level::kScaled ? Agreement::kScaled
                                       : Agreement::kDiffers;
}

}  // namespace

bool Step::on_all() const {
  return std::all_of(at.begin(), at.end(), [](int i) { return i >= 0; });
}
bool Step::on_none() const {
  return std::all_of(at.begin(), at.end(), [](int i) { return i < 0; });
}

Comparison::Comparison(const Recording& reference, std::vector<const Recording*> perturbed,
                       std::vector<const Recording*> ranks)
    : reference_(reference), perturbed_(std::move(perturbed)), ranks_(std::move(ranks)) {
  align_all();
  make_edges();
  findings_.resize(steps_.size());
  source_.assign(steps_.size(), -1);
  for (int s = 0; s < static_cast<int>(steps_.size()); ++s) compare(s);
  first_gradient_ = static_cast<int>(steps_.size());
  for (int s = first_gradient_ - 1; s >= 0; --s)
    if (record(s).kind == Kind::kLeafGradient) first_gradient_ = s;
}

void Comparison::align_all() {
  const auto reference_keys = keys_of(reference_);
  for (const Recording* p : perturbed_) perturbed_at_.push_back(align(reference_keys, keys_of(*p)));
  const auto first = keys_of(*ranks_[0]);
  std::vector<int> reference_of(first.size(), -1);
  const auto of_reference = align(reference_keys, first);
  for (size_t i = 0; i < of_reference.size(); ++i)
    if (of_reference[i] >= 0) reference_of[to_size(of_reference[i])] = static_cast<int>(i);
  const size_t n = ranks_.size();
  std::vector<std::vector<int>> of_rank(n);  // for each record of rank 0, that of the rank
  std::vector<std::vector<uint64_t>> keys(n);
  for (size_t r = 0; r < n; ++r) {
    keys[r] = keys_of(*ranks_[r]);
    of_rank[r] = align(first, keys[r]);
  }
  step_of_.resize(n);
  for (size_t r = 0; r < n; ++r) step_of_[r].assign(keys[r].size(), -1);
  step_of_reference_.assign(reference_.records.size(), -1);
  std::vector<size_t> next(n, 0);
  size_t next_reference = 0;
  // A step of what only one run has, in the order of that run.
  auto flush = [&](size_t i) {
    for (size_t r = 1; r < n; ++r) {
      const size_t end = i < first.size() ? (of_rank[r][i] >= 0 ? to_size(of_rank[r][i]) : next[r]) : keys[r].size();
      for (; next[r] < end; ++next[r]) {
        Step s;
        s.at.assign(n, -1);
        s.at[r] = static_cast<int>(next[r]);
        // Other ranks than the first may do the same.
        for (size_t other = r + 1; other < n; ++other) {
          const size_t stop = i < first.size() ? (of_rank[other][i] >= 0 ? to_size(of_rank[other][i]) : next[other])
                                               : keys[other].size();
          if (next[other] < stop && keys[other][next[other]] == keys[r][next[r]])
            s.at[other] = static_cast<int>(next[other]++);
        }
        for (size_t other = 0; other < n; ++other)
          if (s.at[other] >= 0) step_of_[other][to_size(s.at[other])] = static_cast<int>(steps_.size());
        steps_.push_back(std::move(s));
      }
    }
    const size_t end =
        i < first.size() ? (reference_of[i] >= 0 ? to_size(reference_of[i]) : next_reference) : reference_keys.size();
    for (; next_reference < end; ++next_reference) {
      Step s;
      s.reference = static_cast<int>(next_reference);
      s.at.assign(n, -1);
      step_of_reference_[next_reference] = static_cast<int>(steps_.size());
      steps_.push_back(std::move(s));
    }
  };
  for (size_t i = 0; i < first.size(); ++i) {
    flush(i);
    Step s;
    s.reference = reference_of[i];
    s.at.assign(n, -1);
    for (size_t r = 0; r < n; ++r)
      if (r == 0 || of_rank[r][i] >= 0) {
        s.at[r] = r == 0 ? static_cast<int>(i) : of_rank[r][i];
        step_of_[r][to_size(s.at[r])] = static_cast<int>(steps_.size());
        next[r] = to_size(s.at[r]) + 1;
      }
    if (s.reference >= 0) {
      step_of_reference_[to_size(s.reference)] = static_cast<int>(steps_.size());
      next_reference = to_size(s.reference) + 1;
    }
    steps_.push_back(std::move(s));
  }
  flush(first.size());
}

int Comparison::step_of(size_t rank, int record) const { return step_of_[rank][to_size(record)]; }

void Comparison::make_edges() {
  is_used_.assign(steps_.size(), false);
  for (size_t i = 0; i < steps_.size(); ++i) {
    Step& s = steps_[i];
    std::set<int> found;
    for (size_t r = 0; r < s.at.size(); ++r)
      if (s.at[r] >= 0)
        for (int in : ranks_[r]->records[to_size(s.at[r])].inputs) found.insert(step_of(r, in));
    found.erase(static_cast<int>(i));
    s.inputs.assign(found.begin(), found.end());
    for (int in : s.inputs) is_used_[to_size(in)] = true;
    if (s.reference < 0) continue;
    for (int in : reference_.records[to_size(s.reference)].inputs) {
      const int step = step_of_reference_[to_size(in)];
      if (step >= 0 && !found.count(step) && steps_[to_size(step)].on_none()) s.missing.push_back(step);
    }
  }
}

const Record* Comparison::reference(int step) const {
  const Step& s = steps_[to_size(step)];
  return s.reference < 0 ? nullptr : &reference_.records[to_size(s.reference)];
}

const Record* Comparison::on_rank(int step, int rank) const {
  const int at = steps_[to_size(step)].at[to_size(rank)];
  return at < 0 ? nullptr : &ranks_[to_size(rank)]->records[to_size(at)];
}

const Record& Comparison::record(int step) const {
  for (int r = 0; r < n_ranks(); ++r)
    if (auto* found = on_rank(step, r)) return *found;
  return *reference(step);
}

const Value* Comparison::expected(int step, size_t value) const {
  const Record* r = reference(step);
  if (!r && source_[to_size(step)] >= 0) return expected(source_[to_size(step)], 0);
  return r && value < r->values.size() ? &r->values[value] : nullptr;
}

double Comparison::tolerance(int step, size_t value) const {
  if (!reference(step) && source_[to_size(step)] >= 0) return tolerance(source_[to_size(step)], 0);
  const Value* e = expected(step, value);
  if (!e) return 0;
  const double eps = epsilon_of(e->dtype);
  double moved = 0;
  for (size_t p = 0; p < perturbed_.size(); ++p) {
    const int at = perturbed_at_[p][to_size(steps_[to_size(step)].reference)];
    if (at < 0) continue;
    const auto& values = perturbed_[p]->records[to_size(at)].values;
    if (value >= values.size() || values[value].part.size() != e->part.size()) continue;
    for (size_t i = 0; i < e->part.size(); ++i)
      if (const double d = std::abs(values[value].part[i] - e->part[i]); std::isfinite(d)) moved = std::max(moved, d);
  }
  return kTimesMoved * moved + kEpsilons * eps * largest(e->part);
}

std::vector<const Value*> Comparison::parts(int step, size_t value) const {
  std::vector<const Value*> list;
  for (int r = 0; r < n_ranks(); ++r) {
    const Record* record = on_rank(step, r);
    list.push_back(record && value < record->values.size() ? &record->values[value] : nullptr);
  }
  return list;
}

bool Comparison::forward_converts(int step) const {
  for (int r = 0; r < n_ranks(); ++r)
    if (auto* found = on_rank(step, r))
      return found->forward >= 0 && ranks_[to_size(r)]->records[to_size(found->forward)].converts;
  return false;
}

void Comparison::compare(int step) {
  const Step& s = steps_[to_size(step)];
  Finding& best = findings_[to_size(step)];
  const Record* of_one = reference(step);
  // What does not change the logical value, where only several ranks call it.
  if (!of_one) {
    const Record& r = record(step);
    int from = -1;
    // Neither does what has no effect on one rank, if it leaves the value as it is: a slice, a division by the ranks.
    if ((r.kind == Kind::kOp || r.kind == Kind::kGradient) && s.inputs.size() == 1) from = s.inputs[0];
    if (r.kind == Kind::kWrite && !s.inputs.empty()) from = s.inputs[0];
    if (r.kind == Kind::kBackward && r.forward >= 0)
      for (int in : s.inputs)
        if (record(in).kind == Kind::kGradient && forward_converts(step)) from = in;
    if (from >= 0) source_[to_size(step)] = reference(from) ? from : source_[to_size(from)];
  }
  if (!of_one && source_[to_size(step)] < 0) return;
  if (s.on_none()) {
    best.agreement = Agreement::kDiffers;
    return;
  }
  const size_t n = of_one ? of_one->values.size() : 1;
  best.agreement = Agreement::kSame;
  for (size_t v = 0; v < n; ++v) {
    Finding f;
    f.value = v;
    const Value* want = expected(step, v);
    const auto found = parts(step, v);
    if (!want || !want->here) continue;
    ++compared_;
    const double tol = tolerance(step, v);
    const bool global = std::any_of(found.begin(), found.end(), [](auto* p) { return p && p->global; });
    if (!s.on_all() || std::any_of(found.begin(), found.end(), [](auto* p) { return !p; })) {
      f.agreement = Agreement::kDiffers;
    } else if (global) {
      f.assembled = assemble(found);
      if (!f.assembled.whole) {
        f.agreement = Agreement::kDiffers;
      } else {
        const Value& model = **std::find_if(found.begin(), found.end(), [](auto* p) { return p; });
        f.match = match(f.assembled.value, want->part, tol,
                        factors_of(n_ranks(), std::span(model.hierarchy.begin(), to_size(model.hierarchy.size()))));
        f.agreement = f.assembled.drifted_rank >= 0 ? Agreement::kDiffers : agreement_of(f.match.level);
      }
    } else if (auto relation = relation_of(found, want->part_shape, want->part, tol)) {
      f.match = relation->match;
      f.agreement = agreement_of(f.match.level);
      f.partial = f.agreement == Agreement::kSame && relation->is_partial();
      f.relation = std::move(relation);
    } else {
      f.agreement = Agreement::kDiffers;
    }
    if (v == 0 || f.agreement > best.agreement) best = std::move(f);
  }
  const Record& r = record(step);
  const bool keeps_value = r.converts || r.kind == Kind::kGradient || r.kind == Kind::kBackward;
  if (!of_one && !keeps_value && best.agreement != Agreement::kSame) best.agreement = Agreement::kUnknown;
}

bool Comparison::is_wrong_outcome(int step) const {
  const Step& s = steps_[to_size(step)];
  const Record& r = record(step);
  const Finding& f = finding(step);
  const bool wrong = f.agreement == Agreement::kScaled || f.agreement == Agreement::kDiffers;
  if (s.on_none()) {
    const bool ended = std::all_of(ranks_.begin(), ranks_.end(), [](auto* k) { return k->ended; });
    return ended && (r.kind == Kind::kLeafGradient || r.kind == Kind::kUse || r.kind == Kind::kUpdate);
  }
  if (f.assembled.drifted_rank >= 0) return true;
  // More updates than on one rank.
  if (r.kind == Kind::kUse && s.reference < 0) return true;
  const auto found = parts(step, 0);
  const bool global = std::any_of(found.begin(), found.end(), [](auto* p) { return p && p->global; });
  switch (r.kind) {
    case Kind::kUse:
      if (reference(step) && reference(step)->values.size() != r.values.size()) return true;
      [[fallthrough]];
    case Kind::kUpdate:
    case Kind::kState:
    case Kind::kNorm: return wrong || f.partial;
    case Kind::kLeafGradient: return global && wrong;
    case Kind::kRead:
      return std::any_of(s.inputs.begin(), s.inputs.end(), [&](int in) {
        const auto& of_input = finding(in);
        const auto values = parts(in, 0);
        return (of_input.agreement == Agreement::kScaled || of_input.agreement == Agreement::kDiffers) &&
            std::any_of(values.begin(), values.end(), [](auto* p) { return p && p->global; });
      });
    case Kind::kWrite:
      // Before, it is its initial value, which one rank may send to the others.
      if (r.of_parameter && (global || step > first_gradient_)) return wrong || f.partial;
      if (is_used_[to_size(step)]) return false;
      if (global) return wrong;
      // What was the same on all ranks is to stay so: a running mean, not a gradient.
      return f.agreement == Agreement::kDiffers && std::any_of(s.inputs.begin(), s.inputs.end(), [&](int in) {
               return record(in).kind == Kind::kWrite && record(in).site == r.site && finding(in).relation &&
                   finding(in).relation->is_whole() && finding(in).agreement == Agreement::kSame;
             });
    case Kind::kOp: return global && wrong && !is_used_[to_size(step)];
    default: return false;
  }
}

int Comparison::first_wrong_outcome() const {
  for (int s = 0; s < static_cast<int>(steps_.size()); ++s)
    if (is_wrong_outcome(s)) return s;
  return -1;
}

int Comparison::cause_of(int outcome) const {
  // A wrong factor is followed through wrong factors too; anything else only through what is not a multiple either.
  Finding f = finding(outcome);
  int start = outcome;
  if (record(outcome).kind == Kind::kRead)
    for (int in : steps_[to_size(outcome)].inputs)
      if (finding(in).agreement > f.agreement) f = finding(in), start = in;
  const bool addend = f.agreement == Agreement::kSame && f.partial;
  auto leads_on = [&](int step) {
    const Finding& g = finding(step);
    if (g.agreement == Agreement::kUnknown) return true;
    if (addend) return g.partial || !steps_[to_size(step)].on_all();
    if (g.agreement == Agreement::kSame) return false;
    // Under hand-written data parallelism gradients are multiples on their way, until their mean is taken.
    const Kind kind = record(step).kind;
    const bool passes = kind == Kind::kGradient || kind == Kind::kBackward;
    return f.agreement == Agreement::kScaled || g.agreement == Agreement::kDiffers || !passes;
  };
  std::set<int> seen{start};
  std::vector<int> open{start};
  int first = -1;
  while (!open.empty()) {
    const int step = open.back();
    open.pop_back();
    bool last = true;
    for (int in : steps_[to_size(step)].inputs)
      if (leads_on(in)) {
        // Values of which nothing is known count only if they hide something.
        last = last && finding(in).agreement == Agreement::kUnknown && reference(in) == nullptr &&
            record(in).kind == Kind::kInput;
        if (seen.insert(in).second) open.push_back(in);
      }
    if (last && (first < 0 || step < first)) first = step;
  }
  if (first < 0) first = start;
  // A parameter's own gradient is an addend where the batch is divided: the sum is missing before its use.
  if (addend && gives_to_leaf(first)) return outcome;
  return first;
}

bool Comparison::gives_to_leaf(int step) const {
  const Kind kind = record(step).kind;
  if (kind == Kind::kLeafGradient) return true;
  if (kind != Kind::kBackward) return false;
  for (int s = step + 1; s < static_cast<int>(steps_.size()); ++s) {
    const auto& inputs = steps_[to_size(s)].inputs;
    if (std::find(inputs.begin(), inputs.end(), step) != inputs.end()) return record(s).kind == Kind::kLeafGradient;
  }
  return false;
}

}  // namespace holon::verify
