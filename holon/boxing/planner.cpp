#include "holon/boxing/planner.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <queue>
#include <shared_mutex>
#include <tuple>
#include <unordered_map>

#include "holon/base/error.h"

namespace holon::boxing {

struct Plan::Data {
  const GlobalSpec* from;
  const GlobalSpec* to;
  Dims shape;
  DType dtype;
  std::vector<Step> steps;
  double predicted_s = 0;
  int64_t peak_bytes = 0, max_read_bytes = 0;

  std::vector<int> ranks;                                       // of both placements, sorted
  mutable std::vector<std::atomic<const Transfer*>> transfers;  // step-major

  ~Data() {
    for (auto& t : transfers) delete t.load();
  }
};

namespace {

// What one edge of the search graph costs.
struct Edge {
  StepKind kind;
  bool two_phase = false;
  double predicted_s = 0;
  int64_t out_bytes = 0;
  int64_t read_bytes = 0;
};

StepKind kind_of_move(const GlobalSpec& from, const GlobalSpec& to, unsigned fixed) {
  bool sums = addends(from, fixed) > 1;
  if (from.placement == to.placement) {
    int changed = -1, changes = 0, free = 0;
    bool all_reduce = true;
    for (int a = 0; a < from.nd_sbp.size(); ++a) {
      if (!(fixed >> a & 1)) ++free;
      if (from.nd_sbp[a] == to.nd_sbp[a] || fixed >> a & 1) continue;
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
  return sums ? StepKind::kReduceExchange : StepKind::kExchange;
}

// The elements of an all_reduce's two phases that the rank at the given place among the summing ranks reads.
int64_t two_phase_read(int64_t elements, int64_t n, int64_t place) {
  int64_t mine = balanced_split(elements, n, place).size;
  return mine * (n - 1) + elements - mine;
}

// A rank's place among the ranks that hold its addends.
int64_t addend_place(const GlobalSpec& from, unsigned fixed, int index) {
  Dims at = from.placement.coordinate(index);
  int64_t place = 0;
  for (int a = 0; a < at.size(); ++a)
    if (!(fixed >> a & 1)) place = place * from.placement.hierarchy()[a] + at[a];
  return place;
}

// Pre: one_move(from, to).
Edge price_move(const GlobalSpec& from, const GlobalSpec& to, const Dims& shape, int64_t item_bytes,
                const MachineCosts& costs, std::vector<int64_t>* read_by_index = nullptr) {
  unsigned fixed = fixed_axes(from, to);
  Edge e;
  e.kind = kind_of_move(from, to, fixed);
  bool local = true, same_device = from.placement.device_type() == to.placement.device_type();
  Work work;
  int64_t largest = 0;
  for (int i = 0; i < to.placement.size(); ++i) {
    Volume v = volume_of(from, to, fixed, shape, i);
    local &= v.local();
    largest = std::max(largest, v.elements * item_bytes);
    bool view = v.addends == 1 && v.own == v.elements && same_device;
    if (!view) e.out_bytes = std::max(e.out_bytes, v.elements * item_bytes);
    e.read_bytes = std::max(e.read_bytes, v.read() * item_bytes);
    if (v.addends > 1)
      work.reduce_bytes = std::max(work.reduce_bytes, v.elements * v.addends * item_bytes);
    else if (!view)
      work.copy_bytes = std::max(work.copy_bytes, v.elements * item_bytes);
    if (read_by_index) read_by_index->push_back(v.elements ? v.read() * item_bytes : 0);
  }
  if (local) {
    e.kind = StepKind::kSlice;
    work.views = 1;
  } else {
    work.syncs = 1;
  }
  if (e.kind == StepKind::kAllReduce && largest > kSmallAllReduceBytes) {
    int64_t n = addends(from, fixed);
    e.two_phase = true;
    e.read_bytes = 0;
    work = {.syncs = 2};
    for (int i = 0; i < to.placement.size(); ++i) {
      int64_t elements = slice_of(shape, to.placement, to.nd_sbp, i).shape.numel();
      int64_t read = two_phase_read(elements, n, addend_place(from, fixed, i)) * item_bytes;
      e.read_bytes = std::max(e.read_bytes, read);
      work.reduce_bytes = std::max(work.reduce_bytes, balanced_split(elements, n, 0).size * n * item_bytes);
      work.copy_bytes = std::max(work.copy_bytes, (elements - elements / n) * item_bytes);
      if (read_by_index) (*read_by_index)[static_cast<size_t>(i)] = read;
    }
  }
  e.predicted_s = seconds(work, costs);
  return e;
}

// True if `to` follows from `from` by filling with zeros: on one placement, axes turn from S or B to P, and each rank's
// part is a box of its new one (so no inner axis goes on cutting what an outer one did).
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

Edge price_zero_fill(const GlobalSpec& from, const GlobalSpec& to, const Dims& shape, int64_t item_bytes,
                     const MachineCosts& costs, std::vector<int64_t>* read_by_index = nullptr) {
  Edge e;
  e.kind = StepKind::kZeroFill;
  int64_t part = slice_of(shape, from.placement, from.nd_sbp, 0).shape.numel() * item_bytes;
  e.out_bytes = slice_of(shape, to.placement, to.nd_sbp, 0).shape.numel() * item_bytes;
  Work work{.views = 1, .copy_bytes = part == e.out_bytes ? 0 : part, .fill_bytes = e.out_bytes};
  e.predicted_s = seconds(work, costs);
  if (read_by_index) read_by_index->assign(static_cast<size_t>(to.placement.size()), 0);
  return e;
}

std::optional<Edge> price(const GlobalSpec& from, const GlobalSpec& to, const Dims& shape, int64_t item_bytes,
                          const MachineCosts& costs, std::vector<int64_t>* read_by_index = nullptr) {
  if (one_move(from, to)) return price_move(from, to, shape, item_bytes, costs, read_by_index);
  if (is_zero_fill(from, to)) return price_zero_fill(from, to, shape, item_bytes, costs, read_by_index);
  return std::nullopt;
}

// The nd_sbp that a path may pass on one placement.
struct States {
  std::vector<Sbp> options;
  std::vector<NdSbp> list;
  int axes;

  // Nested cuts of tensor axes that neither end uses gain nothing, so only those of `cut` are looked at.
  States(int axes, bool partial, const std::vector<int>& cut) : axes(axes) {
    if (axes == 0) return;
    options.push_back(sbp::broadcast());
    if (partial) options.push_back(sbp::partial_sum());
    for (int d : cut) options.push_back(sbp::split(d));
    size_t count = 1;
    for (int a = 0; a < axes; ++a) count = std::min(count * options.size(), kTooMany + 1);
    if (count > kTooMany) return;
    std::vector<Sbp> state(static_cast<size_t>(axes));
    for (size_t i = 0; i < count; ++i) {
      size_t rest = i;
      for (int a = axes - 1; a >= 0; --a) {
        state[static_cast<size_t>(a)] = options[rest % options.size()];
        rest /= options.size();
      }
      list.emplace_back(state);
    }
  }
  static constexpr size_t kTooMany = 2000;
  int find(const NdSbp& s) const { return static_cast<int>(std::find(list.begin(), list.end(), s) - list.begin()); }
};

class Search {
 public:
  Search(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype, const MachineCosts& costs)
      : from_(from),
        to_(to),
        shape_(shape),
        item_bytes_(static_cast<int64_t>(size_bytes(dtype))),
        costs_(costs),
        one_placement_(from->placement == to->placement),
        cut_(cut_axes()),
        source_(from->nd_sbp.size(), from->nd_sbp.has_partial() || (one_placement_ && to->nd_sbp.has_partial()), cut_),
        target_(one_placement_ ? 0 : to->nd_sbp.size(), to->nd_sbp.has_partial(), cut_) {
    limit_ = std::max(part_bytes(*from), part_bytes(*to));
  }

  // The specs along the cheapest path, both ends included.
  std::vector<const GlobalSpec*> run() {
    // Hierarchies of many axes have too many states to search; an exchange is right for all of them.
    if (source_.list.empty() || (!one_placement_ && target_.list.empty())) return straight();

    int goal = one_placement_ ? source_.find(to_->nd_sbp) : source_count() + target_.find(to_->nd_sbp);
    nodes_.resize(static_cast<size_t>(source_count()) + (one_placement_ ? 0 : target_.list.size()));
    for (size_t i = 0; i < nodes_.size(); ++i) nodes_[i].fits = part_bytes(spec(static_cast<int>(i))) <= limit_;

    // Few states are searched with an edge between any two.
    complete_ = nodes_.size() * nodes_.size() * static_cast<size_t>(to_->placement.size()) <= 30000;

    int start = source_.find(from_->nd_sbp);
    nodes_[static_cast<size_t>(start)].best = {0, 0, 0};
    queue_.push({{0, 0, 0}, start});
    while (!queue_.empty()) {
      auto [price, at] = queue_.top();
      queue_.pop();
      Node& node = nodes_[static_cast<size_t>(at)];
      if (node.done) continue;
      node.done = true;
      if (at == goal) break;
      expand(at, goal);
    }
    std::vector<const GlobalSpec*> path;
    for (int at = goal; at >= 0; at = nodes_[static_cast<size_t>(at)].before) {
      GlobalSpec s = spec(at);
      path.push_back(intern_spec(s.placement, s.nd_sbp));
    }
    std::reverse(path.begin(), path.end());
    HOLON_CHECK(path.front() == from_, "no way from {} to {}", *from_, *to_);
    return path;
  }

 private:
  std::vector<const GlobalSpec*> straight() const {
    if (one_move(*from_, *to_) || is_zero_fill(*from_, *to_)) return {from_, to_};
    std::vector<Sbp> filled(to_->nd_sbp.begin(), to_->nd_sbp.end());
    for (Sbp& s : filled)
      if (s.is_partial()) s = sbp::broadcast();
    return {from_, intern_spec(to_->placement, NdSbp(filled)), to_};
  }

  using Price = std::tuple<double, int, int64_t>;  // seconds, steps, bytes read
  struct Node {
    Price best{std::numeric_limits<double>::infinity(), 0, 0};
    int before = -1;
    bool done = false;
    bool fits = false;
  };

  int source_count() const { return static_cast<int>(source_.list.size()); }
  GlobalSpec spec(int node) const {
    return node < source_count() ? GlobalSpec{from_->placement, source_.list[static_cast<size_t>(node)]}
                                 : GlobalSpec{to_->placement, target_.list[static_cast<size_t>(node - source_count())]};
  }
  // The largest part of any rank: that of index 0, as the first pieces are never smaller than others.
  int64_t part_bytes(const GlobalSpec& s) const {
    return slice_of(shape_, s.placement, s.nd_sbp, 0).shape.numel() * item_bytes_;
  }

  // The tensor axes that paths cut: those of both ends; the longest one where neither end cuts any.
  std::vector<int> cut_axes() const {
    std::vector<int> cut;
    for (auto* s : {from_, to_})
      for (Sbp e : s->nd_sbp)
        if (e.is_split() && std::find(cut.begin(), cut.end(), e.axis) == cut.end()) cut.push_back(e.axis);
    if (cut.empty() && !shape_.empty())
      cut.push_back(static_cast<int>(std::max_element(shape_.begin(), shape_.end()) - shape_.begin()));
    std::sort(cut.begin(), cut.end());
    return cut;
  }

  void expand(int at, int goal) {
    relax(at, goal);
    bool on_source = at < source_count();
    int first = on_source ? 0 : source_count();
    if (complete_) {
      for (int next = first; next < static_cast<int>(nodes_.size()); ++next) relax(at, next);
      return;
    }
    // One axis of the hierarchy takes another sbp.
    const States& states = on_source ? source_ : target_;
    int step = 1;
    for (int a = states.axes - 1; a >= 0; --a) {
      int n = static_cast<int>(states.options.size()), local = at - first;
      int option = local / step % n;
      for (int o = 0; o < n; ++o)
        if (o != option) relax(at, first + local + (o - option) * step);
      step *= n;
    }
    if (on_source) {
      // A general exchange to what zeros make the target of.
      for (int e : before_zero_fill(goal)) relax(at, e);
    }
  }

  // The states from which filling with zeros gives the goal.
  const std::vector<int>& before_zero_fill(int goal) {
    if (!ends_.empty() || !to_->nd_sbp.has_partial()) return ends_;
    const States& states = one_placement_ ? source_ : target_;
    int first = one_placement_ ? 0 : source_count();
    GlobalSpec target = spec(goal);
    for (size_t i = 0; i < states.list.size(); ++i) {
      int node = first + static_cast<int>(i);
      if (node != goal && is_zero_fill(spec(node), target)) ends_.push_back(node);
    }
    return ends_;
  }

  void relax(int at, int next) {
    if (at == next) return;
    Node& node = nodes_[static_cast<size_t>(next)];
    if (node.done || !node.fits || node.best <= nodes_[static_cast<size_t>(at)].best) return;
    auto edge = price(spec(at), spec(next), shape_, item_bytes_, costs_);
    if (!edge) return;
    auto [s, steps, bytes] = nodes_[static_cast<size_t>(at)].best;
    Price through{s + edge->predicted_s, steps + 1, bytes + edge->read_bytes};
    if (through < node.best) {
      node.best = through;
      node.before = at;
      queue_.push({through, next});
    }
  }

  const GlobalSpec* from_;
  const GlobalSpec* to_;
  const Dims& shape_;
  int64_t item_bytes_;
  const MachineCosts& costs_;
  bool one_placement_, complete_ = false;
  std::vector<int> cut_;
  States source_, target_;
  int64_t limit_;
  std::vector<Node> nodes_;
  std::vector<int> ends_;
  std::priority_queue<std::pair<Price, int>, std::vector<std::pair<Price, int>>, std::greater<>> queue_;
};

uint64_t hash_text(std::string_view text) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

}  // namespace

const char* name(StepKind kind) {
  constexpr const char* kNames[] = {"slice",          "zero_fill",  "all_gather", "all_to_all",
                                    "reduce_scatter", "all_reduce", "exchange",   "reduce_exchange"};
  return kNames[static_cast<int>(kind)];
}

const GlobalSpec* Plan::from() const { return data_->from; }
const GlobalSpec* Plan::to() const { return data_->to; }
const Dims& Plan::shape() const { return data_->shape; }
DType Plan::dtype() const { return data_->dtype; }
const std::vector<Step>& Plan::steps() const { return data_->steps; }
int64_t Plan::max_read_bytes() const { return data_->max_read_bytes; }
double Plan::predicted_s() const { return data_->predicted_s; }
int64_t Plan::peak_bytes() const { return data_->peak_bytes; }

int64_t Plan::read_bytes(int rank) const {
  int64_t bytes = 0;
  for (auto& step : data_->steps) {
    int index = step.to->placement.index_of(rank);
    if (index >= 0) bytes += step.read_bytes[static_cast<size_t>(index)];
  }
  return bytes;
}

const Transfer& Plan::transfer(size_t step, int rank) const {
  auto& ranks = data_->ranks;
  auto at = static_cast<size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
  auto& slot = data_->transfers[step * ranks.size() + at];
  const Transfer* known = slot.load(std::memory_order_acquire);
  if (known) return *known;
  auto& s = data_->steps[step];
  auto made = std::make_unique<Transfer>(transfer_of(*s.from, *s.to, data_->shape, rank));
  if (slot.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) return *made.release();
  return *known;
}

std::string Plan::str() const {
  std::string text =
      fmt::format("{} -> {}, {} {}: ", *data_->from, *data_->to, holon::name(data_->dtype), data_->shape);
  if (data_->steps.empty()) return text + "nothing to do";
  text += fmt::format("{} {}, at most {} bytes per rank, {:.3g} us", data_->steps.size(),
                      data_->steps.size() == 1 ? "step" : "steps", max_read_bytes(), predicted_s() * 1e6);
  for (size_t i = 0; i < data_->steps.size(); ++i) {
    auto& s = data_->steps[i];
    text += fmt::format("\n  {}. {}", i + 1, s.label);
    if (s.from->placement != s.to->placement) text += fmt::format(" to {}", s.to->placement);
    text += ": reads";
    auto [low, high] = std::minmax_element(s.read_bytes.begin(), s.read_bytes.end());
    if (*high == 0)
      text += " nothing from other ranks";
    else if (*low == *high)
      text += fmt::format(" {} bytes per rank", *high);
    else
      for (size_t r = 0; r < s.read_bytes.size(); ++r)
        text += fmt::format("{} {} bytes on rank {}", r ? "," : "", s.read_bytes[r], s.to->placement.ranks()[r]);
    text += fmt::format(", {:.3g} us", s.predicted_s * 1e6);
  }
  return text;
}

Plan find_plan(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype,
               const MachineCosts& costs) {
  check_nd_sbp(shape, from->placement, from->nd_sbp, "boxing");
  check_nd_sbp(shape, to->placement, to->nd_sbp, "boxing");
  auto data = std::make_shared<Plan::Data>();
  data->from = from;
  data->to = to;
  data->shape = shape;
  data->dtype = dtype;
  if (from != to) {
    auto item_bytes = static_cast<int64_t>(size_bytes(dtype));
    auto path = Search(from, to, shape, dtype, costs).run();
    int64_t held = 0;
    for (size_t i = 0; i + 1 < path.size(); ++i) {
      Step s;
      s.from = path[i];
      s.to = path[i + 1];
      Edge e = *price(*s.from, *s.to, shape, item_bytes, costs, &s.read_bytes);
      s.kind = e.kind;
      s.two_phase = e.two_phase;
      s.predicted_s = e.predicted_s;
      s.out_bytes = e.out_bytes;
      s.label = fmt::format("{} {} -> {}", name(s.kind), s.from->nd_sbp, s.to->nd_sbp);
      s.fingerprint = hash_text(fmt::format("{} {} {} {} {} {}", s.label, s.from->placement, s.to->placement, i, shape,
                                            static_cast<int>(dtype)));
      data->predicted_s += s.predicted_s;
      data->peak_bytes = std::max(data->peak_bytes, held + s.out_bytes);
      held = s.out_bytes;
      data->steps.push_back(std::move(s));
    }
  }
  auto add = [&](const GlobalSpec* s) {
    data->ranks.insert(data->ranks.end(), s->placement.ranks().begin(), s->placement.ranks().end());
  };
  add(from);
  if (from->placement != to->placement) add(to);
  std::sort(data->ranks.begin(), data->ranks.end());
  data->ranks.erase(std::unique(data->ranks.begin(), data->ranks.end()), data->ranks.end());
  data->transfers = std::vector<std::atomic<const Transfer*>>(data->steps.size() * data->ranks.size());
  Plan plan(data);
  for (int r : data->ranks) data->max_read_bytes = std::max(data->max_read_bytes, plan.read_bytes(r));
  return plan;
}

namespace {

struct Key {
  const GlobalSpec* from;
  const GlobalSpec* to;
  Dims shape;
  DType dtype;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  size_t operator()(const Key& k) const {
    auto mix = [h = size_t{0}](uint64_t v) mutable { return h = (h ^ v) * 0x9e3779b97f4a7c15ull, h ^= h >> 29; };
    mix(reinterpret_cast<uintptr_t>(k.from));
    mix(reinterpret_cast<uintptr_t>(k.to));
    for (int64_t n : k.shape) mix(static_cast<uint64_t>(n));
    return mix(static_cast<uint64_t>(k.dtype));
  }
};

// Plans do not depend on who asks, so the process shares them. Two generations bound it: when the young one is full it
// becomes the old one, and what is still used comes back from there.
class PlanCache {
 public:
  Plan get(const Key& key) {
    {
      std::shared_lock lock(mutex_);
      if (auto it = young_.find(key); it != young_.end()) return it->second;
    }
    auto made = [&]() -> Plan {
      std::unique_lock lock(mutex_);
      if (auto it = old_.find(key); it != old_.end()) return it->second;
      lock.unlock();
      return find_plan(key.from, key.to, key.shape, key.dtype, machine_costs());
    }();
    std::unique_lock lock(mutex_);
    if (young_.size() >= kGeneration) {
      old_ = std::move(young_);
      young_.clear();
    }
    // The first one in stays, so that ranks as threads share its transfers.
    return young_.emplace(key, made).first->second;
  }

 private:
  static constexpr size_t kGeneration = 4096;
  std::shared_mutex mutex_;
  std::unordered_map<Key, Plan, KeyHash> young_, old_;
};

}  // namespace

Plan plan(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype) {
  static auto* cache = new PlanCache;  // never destroyed: threads may outlive main()
  return cache->get({from, to, shape, dtype});
}

double cost(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype) {
  return from == to ? 0 : plan(from, to, shape, dtype).predicted_s();
}

std::string explain(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype) {
  return plan(from, to, shape, dtype).str();
}

}  // namespace holon::boxing
