#include "holon/cost/machine.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "holon/array/array.h"
#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/fork.h"
#include "holon/base/index.h"
#include "holon/base/log.h"
#include "holon/base/parallel.h"
#include "holon/base/settings.h"
#include "holon/comm/core/background.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/core/cores.h"
#include "holon/comm/core/join_hook.h"
#include "holon/comm/core/waiting.h"
#include "holon/comm/core/world.h"
#include "holon/comm/run_ranks.h"
#include "holon/cost/measure.h"

namespace holon {

namespace {

struct MachineOfRank {
  const Machine* machine = nullptr;
};

// Equal machines are one. Never destroyed: plans are kept by their address.
const Machine* intern(const Machine& m) {
  static auto* mutex = new ProcessMutex;
  static auto* known = new std::deque<Machine>;
  std::lock_guard lock(*mutex);
  for (auto& k : *known)
    if (k == m) return &k;
  return &known->emplace_back(m);
}

struct Number {
  const char* name;
  double MachineCosts::*field;
};
constexpr Number kNumbers[] = {
    {"sync", &MachineCosts::sync_s},
    {"sync_rank", &MachineCosts::sync_rank_s},
    {"step", &MachineCosts::step_s},
    {"view", &MachineCosts::view_s},
    {"row", &MachineCosts::row_s},
    {"pull", &MachineCosts::pull_s},
    {"cache", &MachineCosts::cache_bytes},
    {"shared_cache", &MachineCosts::shared_cache_bytes},
    {"cores", &MachineCosts::cores},
    {"memory", &MachineCosts::memory_bytes_per_s},
    {"net_latency", &MachineCosts::net_latency_s},
    {"net", &MachineCosts::net_bytes_per_s},
    {"net_both", &MachineCosts::net_both_bytes_per_s},
};
struct Rate {
  const char* name;
  Rates MachineCosts::*field;
};
constexpr Rate kRates[] = {
    {"copy", &MachineCosts::copy}, {"reduce", &MachineCosts::reduce}, {"fill", &MachineCosts::fill}};

std::string names() {
  std::string list;
  for (auto& r : kRates) list += std::string(r.name) + ", ";
  for (auto& n : kNumbers) list += std::string(n.name) + (&n == &kNumbers[std::size(kNumbers) - 1] ? "" : ", ");
  return list;
}

// Shortest text that is read back to the same bits.
std::string number_text(double d) {
  char buffer[32];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, d).ptr;
  return {buffer, end};
}

double number_of(std::string_view text, std::string_view part, bool positive) {
  double d = 0;
  auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), d);
  if (error != std::errc() || end != part.data() + part.size() || !(positive ? d > 0 : d >= 0) || d > 1e30)
    fail_value("machine costs \"{}\": \"{}\" is not a number {} 0.", text, part, positive ? "above" : "from");
  return d;
}

std::vector<std::string_view> pieces(std::string_view text, char at) {
  std::vector<std::string_view> list;
  while (true) {
    size_t cut = text.find(at);
    list.push_back(text.substr(0, cut));
    if (cut == std::string_view::npos) return list;
    text.remove_prefix(cut + 1);
  }
}

// What HOLON_MACHINE_COSTS says.
struct Wanted {
  bool measure = true;
  std::string figures;
};
Wanted wanted() {
  Wanted w{true, settings::text("HOLON_MACHINE_COSTS")};
  if (w.figures == "fixed" || w.figures.starts_with("fixed,")) {
    w.measure = false;
    w.figures.erase(0, std::min<size_t>(6, w.figures.size()));
  }
  return w;
}

// The caller's synchronizations with one other rank, with one next to it and one further on by turns: ranks that share
// cores are quick as long as the same two synchronize.
class Pairs {
 public:
  explicit Pairs(const std::vector<int>& ranks, int place) {
    for (int apart : {1, 2}) {
      const int first = place / (2 * apart) * 2 * apart + place % apart;
      std::vector<int> two;
      if (first + apart < static_cast<int>(ranks.size()))
        two = {at_index(ranks, first), at_index(ranks, first + apart)};
      if (apart == 1 || ranks.size() > 2) turns_.push_back(two);
    }
  }
  void sync() {
    auto& two = turns_[next_++ % turns_.size()];
    if (!two.empty()) comm::communicator(two).barrier();
  }

 private:
  std::vector<std::vector<int>> turns_;
  size_t next_ = 0;
};

// Ranks that spin have a core each, and synchronize in a fraction of a microsecond. Where it took longer, other
// programs had their cores, and the built-in figures are nearer.
void put_syncs(MachineCosts& costs, SyncTimes times, bool spinning) {
  constexpr double kDisturbed = 3e-6;
  if (!spinning || times.pair_s < kDisturbed) costs.sync_s = times.pair_s;
  if (!spinning || times.rank_s < kDisturbed) costs.sync_rank_s = times.rank_s;
}

// Of this process, where ranks are threads; by their number.
MachineCosts costs_of_threads(int ranks) {
  Wanted w = wanted();
  if (!w.measure) return parse_costs(w.figures, {});
  static auto* mutex = new ProcessMutex;
  static auto* memory = new std::map<int, MachineCosts>;  // by the threads of a rank
  static auto* known = new std::map<int, MachineCosts>;
  BlockingScope unlocked;
  std::lock_guard lock(*mutex);
  if (auto it = known->find(ranks); it != known->end()) return parse_costs(w.figures, it->second);
  const int cores = comm::CoreSet::of_this_process().count(), threads = std::max(1, cores / ranks),
            mine = num_threads();
  auto measured = memory->find(threads);
  if (measured == memory->end()) {
    set_num_threads(threads);  // as the ranks have
    measured = memory->emplace(threads, measure_memory({}, cores)).first;
    set_num_threads(mine);
  }
  MachineCosts costs = measured->second;
  SyncTimes times;
  bool spinning = false;
  const int n = std::min(ranks, 8);
  comm::run_ranks(n, [&](int rank) {
    std::vector<int> everyone;
    for (int r = 0; r < n; ++r) everyone.push_back(r);
    Pairs pairs(everyone, rank);
    auto seen = measure_syncs(
        n, comm::world().spin_ns() > 0, [&] { pairs.sync(); }, [&] { comm::communicator(everyone).barrier(); });
    if (rank == 0) times = seen, spinning = comm::world().spin_ns() > 0;
  });
  put_syncs(costs, times, spinning);
  known->emplace(ranks, costs);
  return parse_costs(w.figures, costs);
}

// Calls made in here are counted apart from the program's own, which begin with 1.
class Aside {
 public:
  Aside() : world_(comm::shared_world()), context_(Context::current().sibling()), guard_(*context_) {
    comm::adopt_world(std::move(world_));
    comm::set_channel(comm::kMeasuringChannel);
  }

 private:
  std::shared_ptr<comm::World> world_;
  std::unique_ptr<Context> context_;
  ContextGuard guard_;
};

// What two hosts need to synchronize, and the rates between them, as many ranks of one as of the other sending at once,
// each to its own. Called by all of `both`, each with its communicator of two.
void measure_network(comm::Communicator& both, comm::Communicator& two, int pairs, MachineCosts& costs) {
  using Clock = std::chrono::steady_clock;
  // The median: who waits for another host sleeps, and is woken up late as a rule, not as an exception.
  constexpr int kTimes = 5;
  auto typical = [&](auto&& f) {
    std::array<double, kTimes> times;
    for (double& t : times) {
      both.barrier();
      auto start = Clock::now();
      f();
      t = std::chrono::duration<double>(Clock::now() - start).count();
    }
    std::nth_element(times.begin(), times.begin() + kTimes / 2, times.end());
    return times[kTimes / 2];
  };
  constexpr int64_t kLeast = 64 << 10, kMost = 1 << 20;  // elements
  constexpr double kSlow = 0.02;
  Array data = Array::empty({2 * kMost}, float32);
  float one = 1, sum = 0;
  costs.net_latency_s = typical([&] { two.all_reduce(&one, &sum, 1, float32); });
  // To rank 0, which measures: who receives is not done earlier.
  auto send = [&](int64_t n) { two.broadcast(data.bytes(), n, float32, 1); };
  auto exchange = [&](int64_t n) {
    const int64_t each[] = {n, n};
    two.all_gather(data.bytes(), data.bytes() + kMost * sizeof(float), each, float32);
  };
  // All ranks take the same sizes.
  const double small = typical([&] { send(kLeast); });
  double all = 0;
  both.all_reduce(&small, &all, 1, float64);
  const int64_t n = all / both.size() > kSlow ? kLeast : kMost;
  auto rate = [&](double seconds) {
    return static_cast<double>(n * pairs) * sizeof(float) / std::max(seconds - costs.net_latency_s, seconds / 4);
  };
  costs.net_bytes_per_s = rate(typical([&] { send(n); }));
  costs.net_both_bytes_per_s = rate(typical([&] { exchange(n / 2); }));
}

// All processes of a world call this when it is connected.
void agree(const comm::Joined& joined) {
  // Only the ranks of rank 0's host measure; collectives need all ranks, and they end before memory is looked at.
  HostMap hosts{joined.host_of_rank};
  std::vector<int> here;
  for (int r = 0; r < joined.world_size; ++r)
    if (hosts.host(r) == hosts.host(0)) here.push_back(r);
  const auto place = std::find(here.begin(), here.end(), joined.rank) - here.begin();
  const int n = static_cast<int>(here.size());
  SyncTimes times;
  std::optional<Aside> aside(std::in_place);  // one for all: in another, a group's calls would begin with 1 again
  if (place < n && n > 1) {
    Pairs pairs(here, static_cast<int>(place));
    times = measure_syncs(
        n, comm::world().spin_ns() > 0, [&] { pairs.sync(); }, [&] { comm::communicator(here).barrier(); });
  }
  MachineCosts between;
  if (!hosts.one_host()) {
    // Ranks of rank 0's host and of one other.
    constexpr size_t kMostPairs = 4;
    int other = 0;
    while (hosts.host(other) == hosts.host(0)) ++other;
    std::vector<int> there;
    for (int r = other; r < joined.world_size; ++r)
      if (hosts.host(r) == hosts.host(other)) there.push_back(r);
    const size_t pairs = std::min({here.size(), there.size(), kMostPairs});
    std::vector<int> both(here.begin(), here.begin() + static_cast<std::ptrdiff_t>(pairs));
    both.insert(both.end(), there.begin(), there.begin() + static_cast<std::ptrdiff_t>(pairs));
    if (auto at = std::find(both.begin(), both.end(), joined.rank); at != both.end()) {
      const size_t pair = to_size(at - both.begin()) % pairs;
      const int two[] = {both[pair], both[pair + pairs]};
      std::sort(both.begin(), both.end());
      measure_network(comm::communicator(both), comm::communicator(two), static_cast<int>(pairs), between);
    }
  }
  aside.reset();
  std::string text;
  if (joined.rank == 0) {
    // A mistake of the user's must reach those who wait for the figures.
    try {
      Wanted w = wanted();
      MachineCosts costs;
      if (w.measure) {
        costs = measure_memory({}, joined.cores);
        if (n > 1) put_syncs(costs, times, comm::world().spin_ns() > 0);
        costs.net_latency_s = between.net_latency_s, costs.net_bytes_per_s = between.net_bytes_per_s;
        costs.net_both_bytes_per_s = between.net_both_bytes_per_s;
      }
      text = text_of(parse_costs(w.figures, costs));
    } catch (const Error& e) {
      joined.share(std::string("!") + e.what());
      throw;
    }
  }
  text = joined.share(text);
  if (text.starts_with("!")) fail_value("rank 0: {}", text.substr(1));
  if (log::enabled(log::Channel::kBoxing) && joined.rank == 0)
    log::line(log::Channel::kBoxing, "plans are made for a machine of " + text);
  // What the program has set already stays: the other ranks may have connected before they set it.
  auto& mine = Context::current().part<MachineOfRank>();
  if (!mine.machine) mine.machine = intern({parse_costs(text, {}), std::move(hosts)});
}

const bool kAgreeing = (comm::set_join_hook(agree), true);

const Machine* find_machine() {
  Context& context = Context::current();
  auto& mine = context.part<MachineOfRank>();
  const bool processes = &context == &Context::of_process() && context.world_size() > 1;
  if (processes) comm::join_world();
  if (mine.machine) return mine.machine;
  if (processes)
    fail_runtime("the ranks of this world have not agreed on the machine costs for planning: joining failed on {}. "
                 "Follow that error's advice and start the program again.",
                 rank_text());
  // One rank moves nothing, and has nobody to agree with.
  if (context.world_size() == 1) return mine.machine = intern({parse_costs(wanted().figures, {}), {}});
  HostMap hosts;
  if (context.ranks_are_threads()) hosts.host_of_rank = comm::world().hosts().of_rank;
  return mine.machine = intern({costs_of_threads(context.world_size()), std::move(hosts)});
}

}  // namespace

bool HostMap::one_host() const {
  return std::all_of(host_of_rank.begin(), host_of_rank.end(), [&](int h) { return h == host_of_rank[0]; });
}

const Machine* machine() {
  auto& mine = Context::current().part<MachineOfRank>();
  if (mine.machine) [[likely]]
    return mine.machine;
  return find_machine();
}

const Machine* machine_so_far(bool* final) {
  Context& context = Context::current();
  *final = context.part<MachineOfRank>().machine || &context != &Context::of_process() || context.world_size() == 1;
  return *final ? machine() : intern({parse_costs(wanted().figures, {}), {}});
}

// Both of a rank's threads plan alike.
static const bool kInherited = comm::inherit_in_background([]() -> std::function<void()> {
  const Machine* m = Context::current().part<MachineOfRank>().machine;
  if (!m) return {};
  return [m] { Context::current().part<MachineOfRank>().machine = m; };
});

void set_machine(const Machine& m) { Context::current().part<MachineOfRank>().machine = intern(m); }

void set_machine_costs(const MachineCosts& costs) {
  Machine m = *machine();
  m.costs = costs;
  set_machine(m);
}

std::string text_of(const MachineCosts& costs) {
  std::string text;
  for (auto& r : kRates) {
    const Rates& v = costs.*r.field;
    text += fmt::format("{}{}={}/{}/{}", text.empty() ? "" : ",", r.name, number_text(v.near), number_text(v.mid),
                        number_text(v.far));
  }
  for (auto& n : kNumbers) text += fmt::format(",{}={}", n.name, number_text(costs.*n.field));
  return text;
}

MachineCosts parse_costs(const std::string& text, const MachineCosts& base) {
  MachineCosts costs = base;
  if (text.empty()) return costs;
  for (std::string_view item : pieces(text, ',')) {
    size_t cut = item.find('=');
    std::string_view name = item.substr(0, cut);
    if (cut == std::string_view::npos)
      fail_value("machine costs \"{}\": \"{}\" is not a pair name=number. The names are {}.", text, item, names());
    std::string_view value = item.substr(cut + 1);
    bool known = false;
    for (auto& r : kRates) {
      if (name != r.name) continue;
      known = true;
      auto parts = pieces(value, '/');
      if (parts.size() != 1 && parts.size() != 3)
        fail_value("machine costs \"{}\": {} takes one rate, or three (near/mid/far), got {}.", text, name,
                   parts.size());
      Rates& v = costs.*r.field;
      v.near = number_of(text, parts[0], true);
      v.mid = parts.size() == 3 ? number_of(text, parts[1], true) : v.near;
      v.far = parts.size() == 3 ? number_of(text, parts[2], true) : v.near;
    }
    for (auto& n : kNumbers) {
      if (name != n.name) continue;
      known = true;
      costs.*n.field = number_of(text, value, name == "cache" || name == "net");
    }
    if (!known) fail_value("machine costs \"{}\": there is no \"{}\". The names are {}.", text, name, names());
  }
  return costs;
}

}  // namespace holon
