#include "holon/boxing/search.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>

#include "holon/base/error.h"
#include "holon/base/index.h"

namespace holon::boxing {

namespace {

constexpr size_t kTooMany = 2000;  // states on a placement
constexpr size_t kComplete = 300;  // states between any two of which a step is tried

// Every list of the options along the axes.
std::vector<NdSbp> states_of(int axes, const std::vector<Sbp>& options) {
  std::vector<NdSbp> list;
  size_t count = 1;
  for (int a = 0; a < axes; ++a) count = std::min(count * options.size(), kTooMany + 1);
  if (count > kTooMany) return list;
  std::vector<Sbp> state(to_size(axes));
  for (size_t i = 0; i < count; ++i) {
    size_t rest = i;
    for (int a = axes - 1; a >= 0; --a) {
      at_index(state, a) = options[rest % options.size()];
      rest /= options.size();
    }
    list.emplace_back(state);
  }
  return list;
}

class Search {
 public:
  Search(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype, const Machine& machine)
      : from_(from),
        to_(to),
        one_placement_(from->placement == to->placement),
        cut_(cut_axes(*from, *to, shape)),
        pricer_(from->placement, to->placement, shape, dtype, machine, cut_, false) {}

  std::vector<const GlobalSpec*> run() {
    const bool source_sums = from_->nd_sbp.has_partial() || (one_placement_ && to_->nd_sbp.has_partial());
    if (!add_states(false, source_sums)) return straight();
    source_count_ = static_cast<int>(nodes_.size());
    if (!one_placement_ && !add_states(true, to_->nd_sbp.has_partial())) return straight();
    complete_ = nodes_.size() <= kComplete;

    start_ = find(false, from_->nd_sbp);
    goal_ = find(!one_placement_, to_->nd_sbp);
    limit_ = std::max(pricer_.part_bytes(start_), pricer_.part_bytes(goal_));
    node(start_).best = {0, 0, 0};
    queue_.push({{0, 0, 0}, start_});
    while (!queue_.empty()) {
      auto [price, at] = queue_.top();
      queue_.pop();
      if (node(at).done) continue;
      node(at).done = true;
      if (at == goal_) break;
      expand(at);
    }
    std::vector<const GlobalSpec*> path;
    for (int at = goal_; at >= 0; at = node(at).before)
      path.push_back(intern_spec(pricer_.spec(at).placement, pricer_.spec(at).nd_sbp));
    std::reverse(path.begin(), path.end());
    HOLON_CHECK(path.front() == from_, "no plan from {} to {}", *from_, *to_);
    return path;
  }

 private:
  using Price = std::tuple<double, int, int64_t>;  // seconds, steps, bytes read
  struct Node {
    Price best{std::numeric_limits<double>::infinity(), 0, 0};
    int before = -1;
    bool done = false;
  };
  Node& node(int i) { return at_index(nodes_, i); }

  bool add_states(bool on_target, bool sums) {
    std::vector<Sbp> options = {sbp::broadcast()};
    if (sums) options.push_back(sbp::partial_sum());
    for (int d : cut_) options.push_back(sbp::split(d));
    auto list = states_of((on_target ? to_ : from_)->nd_sbp.size(), options);
    for (auto& s : list) pricer_.add(on_target, s);
    nodes_.resize(nodes_.size() + list.size());
    (on_target ? target_options_ : source_options_) = static_cast<int>(options.size());
    return !list.empty();
  }
  int find(bool on_target, const NdSbp& s) const {
    int i = on_target ? source_count_ : 0;
    while (!(pricer_.spec(i).nd_sbp == s)) ++i;
    return i;
  }

  // An exchange, or one to what zeros make the target of.
  std::vector<const GlobalSpec*> straight() {
    int a = pricer_.add(false, from_->nd_sbp), b = pricer_.add(true, to_->nd_sbp);
    if (pricer_.price(a, b, {})) return {from_, to_};
    std::vector<Sbp> filled(to_->nd_sbp.begin(), to_->nd_sbp.end());
    for (Sbp& s : filled)
      if (s.is_partial()) s = sbp::broadcast();
    return {from_, intern_spec(to_->placement, NdSbp(filled)), to_};
  }

  void expand(int at) {
    relax(at, goal_);
    const bool on_source = at < source_count_;
    const int first = on_source ? 0 : source_count_;
    if (complete_) {
      for (int next = first; next < static_cast<int>(nodes_.size()); ++next) relax(at, next);
      return;
    }
    // One axis of the hierarchy takes another sbp.
    const int options = on_source ? source_options_ : target_options_;
    const int axes = (on_source ? from_ : to_)->nd_sbp.size();
    int local = at - first;
    for (int a = 0, step = 1; a < axes; ++a, step *= options)
      for (int o = 0; o < options; ++o) relax(at, at + (o - local / step % options) * step);
    if (on_source)  // an exchange to what zeros make the target of
      for (int e : before_zero_fill()) relax(at, e);
  }

  // The states from which filling with zeros gives the goal.
  const std::vector<int>& before_zero_fill() {
    if (!ends_.empty() || !to_->nd_sbp.has_partial()) return ends_;
    for (int i = one_placement_ ? 0 : source_count_; i < static_cast<int>(nodes_.size()); ++i) {
      if (i == goal_) continue;
      auto edge = pricer_.price(i, goal_, {});
      if (edge && edge->kind == StepKind::kZeroFill) ends_.push_back(i);
    }
    return ends_;
  }

  void relax(int at, int next) {
    if (at == next || node(next).done) return;
    auto [s, steps, bytes] = node(at).best;
    if (next != goal_) {
      // Both parts are held while the second is made; the ends are the caller's.
      int64_t held = pricer_.part_bytes(next) + (at == start_ ? 0 : pricer_.part_bytes(at));
      if (held > limit_) return;
    }
    const double rest = next == goal_ ? 0 : pricer_.at_least(next, goal_);
    auto too_long = [&, s = s](double step) {
      return s + step > std::get<0>(node(next).best) || s + step + rest > std::get<0>(node(goal_).best);
    };
    if (too_long(pricer_.at_least(at, next)) || too_long(pricer_.at_least_between_hosts(at, next))) return;
    auto edge = pricer_.price(at, next, {at == start_, next == goal_});
    if (!edge) return;
    Price through{s + edge->predicted_s, steps + 1, bytes + edge->read_bytes};
    if (through < node(next).best) {
      node(next).best = through;
      node(next).before = at;
      queue_.push({through, next});
    }
  }

  const GlobalSpec* from_;
  const GlobalSpec* to_;
  bool one_placement_, complete_ = false;
  std::vector<int> cut_;
  Pricer pricer_;
  std::vector<Node> nodes_;  // as the pricer's layouts: the source's, then the target's
  int source_count_ = 0, source_options_ = 0, target_options_ = 0, start_ = 0, goal_ = 0;
  int64_t limit_ = 0;
  std::vector<int> ends_;
  std::priority_queue<std::pair<Price, int>, std::vector<std::pair<Price, int>>, std::greater<>> queue_;
};

}  // namespace

std::vector<int> cut_axes(const GlobalSpec& from, const GlobalSpec& to, const Dims& shape) {
  // All, where that leaves few enough states to try a step between any two.
  const bool one_placement = from.placement == to.placement;
  auto states = [&](const GlobalSpec& s) {
    double n = 1;
    for (int a = 0; a < s.nd_sbp.size(); ++a) n *= shape.size() + 2;
    return n;
  };
  const bool all = states(from) + (one_placement ? 0 : states(to)) <= kComplete;
  std::vector<int> cut;
  auto add = [&](int d) {
    if (std::find(cut.begin(), cut.end(), d) == cut.end()) cut.push_back(d);
  };
  for (auto* s : {&from, &to})
    for (Sbp e : s->nd_sbp)
      if (e.is_split()) add(e.axis);
  if (!shape.empty()) add(static_cast<int>(std::max_element(shape.begin(), shape.end()) - shape.begin()));
  for (int d = 0; all && d < shape.size(); ++d)
    if (shape[d] > 1) add(d);
  std::sort(cut.begin(), cut.end());
  return cut;
}

std::vector<const GlobalSpec*> cheapest_path(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape,
                                             DType dtype, const Machine& machine) {
  return Search(from, to, shape, dtype, machine).run();
}

}  // namespace holon::boxing
