#include "holon/boxing/planner.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/fork.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/boxing/rank_step.h"
#include "holon/boxing/search.h"

namespace holon::boxing {

struct Plan::Data {
  const GlobalSpec* from;
  const GlobalSpec* to;
  Dims shape;
  DType dtype;
  std::vector<Step> steps;
  double predicted_s = 0;
  int64_t peak_bytes = 0, between_bytes = 0, max_read_bytes = 0;
  HostMap hosts;

  std::vector<int> ranks;                                       // of both placements, sorted
  mutable std::vector<std::atomic<const Transfer*>> transfers;  // step-major
  mutable std::vector<std::atomic<const RankPlan*>> rank_plans;

  ~Data() {
    for (auto& t : transfers) delete t.load();
    for (auto& r : rank_plans) delete r.load();
  }

  // Pre: the steps are there.
  void set_ranks() {
    ranks = ranks_of(*from, *to);
    transfers = std::vector<std::atomic<const Transfer*>>(steps.size() * ranks.size());
    rank_plans = std::vector<std::atomic<const RankPlan*>>(ranks.size());
  }
  size_t at(int rank) const { return to_size(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin()); }
};

const char* name(StepKind kind) {
  constexpr const char* kNames[] = {"slice",          "zero_fill",  "all_gather", "all_to_all",
                                    "reduce_scatter", "all_reduce", "exchange",   "reduce_exchange"};
  return kNames[static_cast<int>(kind)];
}

const GlobalSpec* Plan::from() const { return data_->from; }
const GlobalSpec* Plan::to() const { return data_->to; }
const Dims& Plan::shape() const { return data_->shape; }
DType Plan::dtype() const { return data_->dtype; }
const std::vector<Step>& Plan::steps() const& { return data_->steps; }
int64_t Plan::max_read_bytes() const { return data_->max_read_bytes; }
double Plan::predicted_s() const { return data_->predicted_s; }
int64_t Plan::peak_bytes() const { return data_->peak_bytes; }
int64_t Plan::between_bytes() const { return data_->between_bytes; }

const HostMap& Plan::hosts() const { return data_->hosts; }

int64_t Plan::read_bytes(int rank) const {
  int64_t bytes = 0;
  for (auto& step : data_->steps) {
    int index = step.to->placement.index_of(rank);
    if (index >= 0) bytes += at_index(step.read_bytes, index);
  }
  return bytes;
}

namespace {

// What the slot has, made when it is requested first.
template <typename T, typename Make>
const T& known_or_made(std::atomic<const T*>& slot, const Make& make) {
  const T* known = slot.load(std::memory_order_acquire);
  if (known) return *known;
  std::unique_ptr<const T> made = make();
  if (slot.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) return *made.release();
  return *known;
}

}  // namespace

const Transfer& Plan::transfer(size_t step, int rank) const {
  return known_or_made(data_->transfers[step * data_->ranks.size() + data_->at(rank)], [&] {
    auto& s = data_->steps[step];
    auto made = std::make_unique<Transfer>(transfer_of(*s.from, *s.to, data_->shape, rank, data_->hosts));
    if (s.two_phase) split_in_phases(*made);
    return made;
  });
}

const RankPlan& Plan::of_rank(int rank) const {
  return known_or_made(data_->rank_plans[data_->at(rank)], [&] {
    // It is part of the data, so it does not own them.
    return std::make_unique<RankPlan>(Plan(std::shared_ptr<const Data>(std::shared_ptr<void>(), data_.get())), rank);
  });
}

std::vector<Link> Plan::links(size_t number) const {
  const Step& step = data_->steps[number];
  std::map<std::pair<int, int>, Link> found;
  const auto item = static_cast<int64_t>(size_bytes(data_->dtype));
  auto add = [&](int from, int to, int64_t elements) {
    if (elements == 0 || from == to) return;
    auto& link = found.try_emplace({from, to}, Link{from, to}).first->second;
    link.messages = 1;
    link.bytes += elements * item;
  };
  for (int rank : step.to->placement.ranks()) {
    if (!step.communicates()) break;
    const Transfer& t = transfer(number, rank);
    auto add_all = [&](const std::vector<Pull>& pulls) {
      for (auto& pull : pulls)
        for (int owner : pull.owners) add(at_index(t.members, owner), rank, pull.shape.numel());
    };
    if (!step.two_phase) {
      add_all(t.pulls);
      continue;
    }
    add_all(t.sums);
    add_all(t.shares);
  }
  if (step.two_phase)
    for (auto& [key, link] : found) link.messages = 2;
  std::vector<Link> list;
  for (auto& [key, link] : found) list.push_back(link);
  return list;
}

std::vector<Link> Plan::links() const {
  std::map<std::pair<int, int>, Link> sum;
  for (size_t i = 0; i < data_->steps.size(); ++i)
    for (auto& link : links(i)) {
      auto& total = sum.try_emplace({link.from, link.to}, Link{link.from, link.to}).first->second;
      total.messages += link.messages;
      total.bytes += link.bytes;
    }
  std::vector<Link> list;
  for (auto& [key, link] : sum) list.push_back(link);
  return list;
}

namespace {

struct PlannerCalls {
  int64_t n = 0;
  PlanSource* source = nullptr;
};

uint64_t fingerprint(const Step& s, size_t number, const Dims& shape, DType dtype) {
  return hash_text(fmt::format("{} {} {} {} {} {} {}", s.label, s.from->placement, s.to->placement, number, shape,
                               static_cast<int>(dtype), s.two_phase));
}

void check_ends(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype) {
  if (is_float8(dtype) && from != to && (from->nd_sbp.has_partial() || to->nd_sbp.has_partial()))
    fail_type("boxing: {} to {} of {}: float8 is for storage, and there are no partial sums of it. Convert the tensor "
              "before, e.g. x.to(float32).",
              from->nd_sbp, to->nd_sbp, name(dtype));
  check_nd_sbp(shape, from->placement, from->nd_sbp, "boxing");
  check_nd_sbp(shape, to->placement, to->nd_sbp, "boxing");
}

int64_t elements_read(const Transfer& t, bool two_phase) {
  int64_t n = 0;
  auto count = [&](const std::vector<Pull>& pulls) {
    for (auto& pull : pulls)
      for (int owner : pull.owners) n += owner == t.me ? 0 : pull.shape.numel();
  };
  if (!two_phase) {
    count(t.pulls);
  } else {
    count(t.sums);
    count(t.shares);
  }
  return n;
}

// The step goes in as many phases as the path says, whatever the price prefers.
void set_phases(Step& s, bool two_phase, const Dims& shape, DType dtype, const HostMap& hosts) {
  s.two_phase = two_phase;
  const auto ranks = s.to->placement.ranks();
  for (size_t i = 0; i < ranks.size(); ++i) {
    Transfer t = transfer_of(*s.from, *s.to, shape, ranks[i], hosts);
    if (two_phase) split_in_phases(t);
    s.read_bytes[i] = elements_read(t, two_phase) * static_cast<int64_t>(size_bytes(dtype));
  }
}

// path: the specs along the plan, both ends included; empty where nothing changes. phases: how each step goes, instead
// of the cheaper way.
Plan make_plan(const std::vector<const GlobalSpec*>& path, const GlobalSpec* from, const GlobalSpec* to,
               const Dims& shape, DType dtype, const Machine& machine, std::span<const PathStep> phases = {}) {
  auto data = std::make_shared<Plan::Data>();
  data->from = from;
  data->to = to;
  data->shape = shape;
  data->dtype = dtype;
  data->hosts = machine.hosts;
  std::vector<std::vector<Transfer>> transfers;  // of the steps, where the price took them
  if (!path.empty()) {
    Pricer pricer(from->placement, to->placement, shape, dtype, machine, cut_axes(*from, *to, shape), true);
    std::vector<int> layouts;
    for (auto* s : path) layouts.push_back(pricer.add(s->placement != from->placement, s->nd_sbp));
    int64_t held = 0, between = 0;
    for (size_t i = 0; i + 1 < path.size(); ++i) {
      Step s;
      s.from = path[i];
      s.to = path[i + 1];
      EdgeDetails details;
      const auto priced = pricer.price(layouts[i], layouts[i + 1], {i == 0, i + 2 == path.size()}, &details);
      if (!priced)
        fail_value("boxing: no step leads from {} to {}. Name the layouts between, or leave the way to the planner.",
                   *s.from, *s.to);
      const Edge& e = *priced;
      s.read_bytes = std::move(details.read_bytes);
      transfers.push_back(std::move(details.transfers));
      s.kind = e.kind;
      s.two_phase = e.two_phase;
      s.predicted_s = e.predicted_s;
      s.out_bytes = e.out_bytes;
      s.host_bytes = e.host_bytes;
      if (i < phases.size() && phases[i].two_phase != s.two_phase) {
        set_phases(s, phases[i].two_phase, shape, dtype, machine.hosts);
        transfers.back().clear();
      }
      s.label = fmt::format("{} {} -> {}", name(s.kind), s.from->nd_sbp, s.to->nd_sbp);
      s.fingerprint = fingerprint(s, i, shape, dtype);
      data->predicted_s += s.predicted_s;
      data->peak_bytes = std::max(data->peak_bytes, held + s.out_bytes);
      held = s.out_bytes;
      int64_t part = i + 2 < path.size() ? pricer.part_bytes(layouts[i + 1]) : 0;
      data->between_bytes = std::max(data->between_bytes, between + part);
      between = part;
      data->steps.push_back(std::move(s));
    }
  }
  data->set_ranks();
  for (size_t i = 0; i < transfers.size(); ++i)
    for (Transfer& t : transfers[i]) {
      const size_t at = data->at(at_index(t.members, t.me));
      data->transfers[i * data->ranks.size() + at] = new Transfer(std::move(t));
    }
  Plan plan(data);
  for (int r : data->ranks) data->max_read_bytes = std::max(data->max_read_bytes, plan.read_bytes(r));
  return plan;
}

}  // namespace

Plan find_plan(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype, const Machine& machine) {
  check_ends(from, to, shape, dtype);
  ++Context::current().part<PlannerCalls>().n;
  return make_plan(from == to ? std::vector<const GlobalSpec*>{} : cheapest_path(from, to, shape, dtype, machine), from,
                   to, shape, dtype, machine);
}

Plan direct_plan(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype) {
  check_ends(from, to, shape, dtype);
  return make_plan(from == to ? std::vector<const GlobalSpec*>{} : std::vector{from, to}, from, to, shape, dtype,
                   *machine());
}

Plan plan_along(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype,
                std::span<const PathStep> path, const Machine& machine) {
  check_ends(from, to, shape, dtype);
  std::vector<const GlobalSpec*> specs;
  if (!path.empty()) specs.push_back(from);
  for (auto& step : path) {
    if (step.to->placement != from->placement && step.to->placement != to->placement)
      fail_value("boxing: a path from {} to {} passes {}, which is on ranks of neither.", *from, *to, *step.to);
    check_nd_sbp(shape, step.to->placement, step.to->nd_sbp, "boxing");
    specs.push_back(step.to);
  }
  if (path.empty() ? from != to : path.back().to != to)
    fail_value("boxing: a path from {} to {} ends at {}.", *from, *to, path.empty() ? *from : *path.back().to);
  return make_plan(specs, from, to, shape, dtype, machine, path);
}

std::vector<PathStep> path_of(const Plan& plan) {
  std::vector<PathStep> path;
  for (auto& s : plan.steps()) path.push_back({s.to, s.two_phase});
  return path;
}

PlanSource* exchange_plan_source(PlanSource* source) {
  return std::exchange(Context::current().part<PlannerCalls>().source, source);
}

int64_t planner_calls() { return Context::current().part<PlannerCalls>().n; }

namespace {

// By how much all ranks of both placements can be lowered, so that they share hosts as before: a pipeline's stages are
// alike except that, and are planned once.
int lowest_shift(const std::vector<int>& ranks, const HostMap& hosts) {
  auto alike = [&](int shift) {
    std::map<int, int> to, back;
    for (int r : ranks) {
      const int a = hosts.host(r), b = hosts.host(r - shift);
      if (to.try_emplace(a, b).first->second != b || back.try_emplace(b, a).first->second != a) return false;
    }
    return true;
  };
  const int low = ranks.front();
  if (low == 0 || alike(low)) return low;
  int of_first_host = 0;
  while (hosts.host(of_first_host) == hosts.host(0) && of_first_host < low) ++of_first_host;
  const int whole = low / of_first_host * of_first_host;
  return whole > 0 && alike(whole) ? whole : 0;
}

const GlobalSpec* lowered(const GlobalSpec* spec, int by) {
  std::vector<int64_t> ranks;
  for (int r : spec->placement.ranks()) ranks.push_back(r - by);
  return intern_spec(Placement(name(spec->placement.device_type()), spec->placement.hierarchy(), std::move(ranks)),
                     spec->nd_sbp);
}

// The plan of other ranks with the same relative positions.
Plan moved(const Plan& base, const GlobalSpec* from, const GlobalSpec* to, const HostMap& hosts) {
  auto data = std::make_shared<Plan::Data>();
  data->from = from;
  data->to = to;
  data->shape = base.shape();
  data->dtype = base.dtype();
  data->hosts = hosts;
  data->predicted_s = base.predicted_s();
  data->peak_bytes = base.peak_bytes();
  data->between_bytes = base.between_bytes();
  data->max_read_bytes = base.max_read_bytes();
  data->steps = base.steps();
  auto here = [&](const GlobalSpec* s) {
    return intern_spec(s->placement == base.from()->placement ? from->placement : to->placement, s->nd_sbp);
  };
  for (size_t i = 0; i < data->steps.size(); ++i) {
    Step& s = data->steps[i];
    s.from = here(s.from);
    s.to = here(s.to);
    s.fingerprint = fingerprint(s, i, data->shape, data->dtype);
  }
  data->set_ranks();
  return Plan(data);
}

struct Key {
  const GlobalSpec* from = nullptr;
  const GlobalSpec* to = nullptr;
  const Machine* machine = nullptr;
  Dims shape;
  DType dtype = DType::kUInt8;
  bool operator==(const Key&) const = default;
  size_t hash() const {
    Hasher h;
    h.add(from).add(to).add(machine).add(dtype);
    for (int64_t n : shape) h.add(n);
    return h.value();
  }
};
struct KeyHash {
  size_t operator()(const Key& k) const { return k.hash(); }
};

// Plans do not depend on who asks, so the process shares them. Two generations bound it: when the young one is full it
// becomes the old one, and what is still used comes back from there.
class PlanCache {
 public:
  Plan get(const Key& key) {
    {
      std::lock_guard lock(mutex_);
      if (auto it = young_.find(key); it != young_.end()) return it->second;
      if (auto it = old_.find(key); it != old_.end()) return keep(key, it->second);
    }
    Plan made = find(key);
    std::lock_guard lock(mutex_);
    return keep(key, made);
  }

 private:
  Plan find(const Key& key) {
    const int shift = lowest_shift(ranks_of(*key.from, *key.to), key.machine->hosts);
    if (shift == 0) return find_plan(key.from, key.to, key.shape, key.dtype, *key.machine);
    Key low = key;
    low.from = lowered(key.from, shift);
    low.to = lowered(key.to, shift);
    return moved(get(low), key.from, key.to, key.machine->hosts);
  }

  // The first one in stays, so that ranks as threads share its transfers.
  Plan keep(const Key& key, Plan plan) {
    if (young_.size() >= kGeneration) {
      old_ = std::move(young_);
      young_.clear();
    }
    return young_.emplace(key, std::move(plan)).first->second;
  }

  static constexpr size_t kGeneration = 4096;
  ProcessMutex mutex_;
  std::unordered_map<Key, Plan, KeyHash> young_, old_;
};

// In front of it, what this thread has requested last: no lock, and no line of memory that other threads write.
struct Recent {
  struct Slot {
    Key key;
    Plan plan{nullptr};
  };
  std::array<Slot, 64> slots;
};

const Machine* machine_of_one() {
  static const Machine* m = new Machine;
  return m;
}

// Then there is no choice, nobody to agree with on what it costs, and nothing to read: a view.
bool one_rank_has_all(const GlobalSpec* from, const GlobalSpec* to) {
  return from->placement == to->placement && from->placement.size() == 1;
}

}  // namespace

Plan plan(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype) {
  static auto* cache = new PlanCache;  // never destroyed: threads may outlive main()
  static thread_local Recent recent;
  PlannerCalls& calls = Context::current().part<PlannerCalls>();
  if (calls.source) [[unlikely]]
    if (auto known = calls.source->find(from, to, shape, dtype)) return *known;
  ++calls.n;
  Key key{from, to, one_rank_has_all(from, to) ? machine_of_one() : machine(), shape, dtype};
  auto& slot = recent.slots[key.hash() % recent.slots.size()];
  if (!(slot.key == key)) slot = {key, cache->get(key)};
  if (calls.source) [[unlikely]]
    calls.source->planned(slot.plan);
  return slot.plan;
}

double cost(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype) {
  if (from == to) return 0;
  return one_rank_has_all(from, to) ? machine_of_one()->costs.view_s : plan(from, to, shape, dtype).predicted_s();
}

int64_t max_read_bytes(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype) {
  return from == to || one_rank_has_all(from, to) ? 0 : plan(from, to, shape, dtype).max_read_bytes();
}

}  // namespace holon::boxing
