// Predicted times of boxings against measured ones, between two processes and between four ranks as threads (2 x 2),
// and what planning costs. One JSON object per line. A case's ratio is the predicted time over the measured one (1: the
// model is right); the last lines say how far off it is over all (median of the relative errors) and whether it puts
// them in the right order (Kendall's tau). Then what preparing a boxing saves (execute()'s time over run()'s), and how
// long a transfer from stage to stage takes. An argument names one case.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "benchmarks/micro/rank_processes.h"
#include "holon/array/array.h"
#include "holon/base/context.h"
#include "holon/boxing/executor.h"
#include "holon/boxing/planner.h"
#include "holon/boxing/point_to_point.h"
#include "holon/boxing/prepared.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"

namespace {

using namespace holon;

constexpr int kRepeats = 15;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Other programs on the machine only ever add: the fastest quarter of the repeats.
double quartile(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 4];
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}

std::string size_text(int64_t n) {
  return n >= 1 << 20 ? std::to_string(n >> 20) + " MiB" : std::to_string(n >> 10) + " KiB";
}

struct Case {
  std::string name;
  const GlobalSpec* from;
  const GlobalSpec* to;
  Dims shape;
};

// A square matrix of float32.
Dims square(int64_t bytes) {
  auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(bytes) / 4)));
  return {side, side};
}

const Sbp S0 = sbp::split(0), S1 = sbp::split(1), B = sbp::broadcast(), P = sbp::partial_sum();

std::vector<Case> cases_of_two() {
  Placement both("cpu", {0, 1}), turned("cpu", {1, 0}), first("cpu", {0}), second("cpu", {1});
  std::vector<Case> cases;
  for (int64_t bytes : {4 << 10, 256 << 10, 4 << 20, 64 << 20}) {
    auto add = [&](const Placement& p, Sbp a, const Placement& q, Sbp b, const char* more = "") {
      cases.push_back({a.str() + " -> " + b.str() + more + " " + size_text(bytes) + " 2 processes", intern_spec(p, a),
                       intern_spec(q, b), square(bytes)});
    };
    for (auto [a, b] : {std::pair{S0, B}, {S1, B}, {S0, S1}, {S1, S0}, {P, S0}, {P, S1}, {P, B}, {B, P}, {S1, P}})
      add(both, a, both, b);
    add(first, B, second, B, " moved");
    add(both, S0, turned, S0, " turned");
  }
  return cases;
}

std::vector<Case> cases_of_four() {
  Placement grid = Placement::nested("cpu", {{0, 1}, {2, 3}});
  std::vector<Case> cases;
  for (int64_t bytes : {4 << 10, 256 << 10, 4 << 20, 16 << 20}) {
    std::pair<NdSbp, NdSbp> pairs[] = {{{P, P}, {B, B}},   {{S0, S1}, {S1, S0}}, {{S0, B}, {B, S0}}, {{P, S0}, {B, B}},
                                       {{S0, S0}, {B, B}}, {{P, B}, {B, S1}},    {{B, B}, {P, S0}}};
    for (auto& [a, b] : pairs)
      cases.push_back({a.str() + " -> " + b.str() + " " + size_text(bytes) + " 2x2 threads", intern_spec(grid, a),
                       intern_spec(grid, b), square(bytes)});
  }
  return cases;
}

std::mutex print_mutex;

// Predicted and measured seconds of all cases, by all processes that measure: they append to one file.
void note_pair(double predicted, double measured) {
  if (std::FILE* f = std::fopen(std::getenv("HOLON_BENCH_PAIRS"), "a")) {
    std::fprintf(f, "%.9g %.9g\n", predicted, measured);
    std::fclose(f);
  }
}

void emit(const std::string& name, double value, const char* unit, const std::string& against, double ratio) {
  std::lock_guard lock(print_mutex);
  std::printf("{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", \"against\": \"%s\", \"ratio\": %.4g}\n",
              name.c_str(), value, unit, against.c_str(), ratio);
  std::fflush(stdout);
}

// Every rank of a world calls this; rank 0 prints.
void measure(const std::vector<Case>& cases, const std::string& only) {
  const int rank = Context::current().rank();
  std::vector<int> everyone(static_cast<size_t>(Context::current().world_size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  auto& world = comm::communicator(everyone);
  for (auto& c : cases) {
    if (!only.empty() && c.name.find(only) == std::string::npos) continue;
    Array in;
    if (int i = c.from->placement.index_of(rank); i >= 0) {
      in = Array::empty(region_of(c.shape, c.from->placement, c.from->nd_sbp, i).shape, float32);
      std::fill_n(in.data<float>(), in.numel(), 1.f);
    }
    auto plan = boxing::plan(c.from, c.to, c.shape, float32);
    const double predicted = plan.predicted_s() * 1e6;
    const int inner = predicted < 30 ? 300 : predicted < 1000 ? 30 : predicted < 10000 ? 5 : 1;
    std::vector<double> times;
    for (int r = -2; r < kRepeats; ++r) {
      // From the first rank's start to the last one's end: ranks beyond the cores begin when others are done.
      world.barrier();
      double mine[2] = {now_us(), 0};
      for (int i = 0; i < inner; ++i) boxing::execute(plan, in);
      mine[1] = now_us();
      std::vector<double> all(2 * everyone.size());
      world.all_gather_bytes({"times"}, mine, sizeof mine, all.data());
      double start = mine[0], end = mine[1];
      for (size_t i = 0; i < everyone.size(); ++i)
        start = std::min(start, all[2 * i]), end = std::max(end, all[2 * i + 1]);
      if (r >= 0) times.push_back((end - start) / inner);
    }
    double mine = quartile(times);
    if (rank == 0) note_pair(predicted, mine);
    if (rank == 0) emit(c.name, mine, "us", "predicted, " + std::to_string(predicted) + " us", predicted / mine);
  }
}

// Microseconds of f(), called some times at once by both ranks: a quartile of the repeats.
template <class F>
double time_of(comm::Communicator& world, int inner, F&& f) {
  std::vector<double> times;
  for (int r = -2; r < kRepeats; ++r) {
    world.barrier();
    const double start = now_us();
    for (int i = 0; i < inner; ++i) f();
    if (r >= 0) times.push_back((now_us() - start) / inner);
  }
  return quartile(times);
}

std::vector<Array> scratch_of(std::span<const size_t> bytes) {
  std::vector<Array> list;
  for (size_t n : bytes) list.push_back(Array::empty({static_cast<int64_t>(n)}, DType::kUInt8));
  return list;
}

// Between two processes.
void prepared_times(const std::string& only) {
  const int rank = Context::current().rank();
  const std::vector<int> both = {0, 1};
  auto& world = comm::communicator(both);
  const Placement p("cpu", {0, 1}), first("cpu", {0}), second("cpu", {1});
  for (int64_t bytes : {4 << 10, 1 << 20}) {
    const Dims shape = square(bytes);
    const int inner = bytes > 1 << 16 ? 50 : 500;
    for (auto [a, b] : {std::pair{S0, B}, {P, B}, {P, S0}, {B, S0}}) {
      const std::string name = "prepared " + a.str() + " -> " + b.str() + " " + size_text(bytes) + " 2 processes";
      if (!only.empty() && name.find(only) == std::string::npos) continue;
      auto *from = intern_spec(p, a), *to = intern_spec(p, b);
      auto prepared = boxing::Prepared::prepare(from, to, shape, float32);
      const Array in = Array::empty(prepared.in_shape(), float32), out = Array::empty(prepared.out_shape(), float32);
      std::fill_n(in.data<float>(), in.numel(), 1.f);
      auto scratch = scratch_of(prepared.scratch_bytes());
      // In turns, as the machine's speed changes.
      std::vector<double> ran, executed;
      for (int turn = 0; turn < 3; ++turn) {
        executed.push_back(time_of(world, inner, [&] { boxing::redistribute(from, to, shape, float32, in); }));
        ran.push_back(time_of(world, inner, [&] {
          if (prepared.is_view())
            prepared.view_of(in);
          else
            prepared.run(in, out, scratch);
        }));
      }
      if (rank == 0)
        emit(name, median(ran), "us", "redistribute(), " + std::to_string(median(executed)) + " us",
             median(executed) / median(ran));
    }
    const std::string name = "transfer " + size_text(bytes) + " 2 processes";
    if (!only.empty() && name.find(only) == std::string::npos) continue;
    auto *here = intern_spec(first, B), *there = intern_spec(second, B);
    auto to = boxing::PointToPoint::prepare(here, there, shape, float32, 0);
    auto back = boxing::PointToPoint::prepare(there, here, shape, float32, 0);
    const Array a = Array::empty(shape, float32), b = Array::empty(shape, float32);
    std::fill_n(a.data<float>(), a.numel(), 1.f);
    std::fill_n(b.data<float>(), b.numel(), 1.f);
    const double both_ways = time_of(world, inner, [&] {
      to.send(a, {});
      to.receive(a, {});
      back.send(b, {});
      back.receive(b, {});
    });
    std::vector<float> x(static_cast<size_t>(shape.numel())), y(x.size());
    const double copy = time_of(world, inner, [&] {
      std::memcpy(y.data(), x.data(), x.size() * sizeof(float));
      asm volatile("" ::"r"(y.data()) : "memory");
    });
    if (rank == 0) emit(name, both_ways / 2, "us", "memcpy, " + std::to_string(copy) + " us", copy / (both_ways / 2));
  }
}

// Planning alone, on placements that no world is behind.
void plan_times() {
  Context big(0, 8192, 0, 8192);
  ContextGuard guard(big);
  const Machine machine;
  set_machine(machine);
  auto grid = [](const Dims& h, int64_t first = 0) {
    std::vector<int64_t> ranks(static_cast<size_t>(h.numel()));
    std::iota(ranks.begin(), ranks.end(), first);
    return Placement("cpu", h, ranks);
  };
  const Sbp S2 = sbp::split(2);
  struct Pair {
    std::string name;
    const GlobalSpec* from;
    const GlobalSpec* to;
    double goal_us;
  };
  auto p64 = grid({8, 8}), p4096 = grid({16, 16, 16}), q64 = grid({8, 8}, 64), q4096 = grid({16, 16, 16}, 4096);
  auto pair = [](const std::string& text, const Placement& p, NdSbp a, const Placement& q, NdSbp b, double goal_us) {
    return Pair{"plan " + a.str() + " -> " + b.str() + text, intern_spec(p, a), intern_spec(q, b), goal_us};
  };
  const Pair pairs[] = {
      pair(" on 64 ranks", p64, {S0, S1}, p64, {S1, S0}, 1000),
      pair(" on 64 ranks", p64, {P, S0}, p64, {S1, P}, 1000),
      pair(" on 64 ranks", p64, {P, P}, p64, {B, B}, 1000),
      pair(" from 64 ranks to 64 others", p64, {P, S0}, q64, {S1, B}, 1000),
      pair(" on 4096 ranks", p4096, {S0, S1, B}, p4096, {B, S0, S1}, 50000),
      pair(" on 4096 ranks", p4096, {P, S0, S1}, p4096, {S2, B, P}, 50000),
      pair(" on 4096 ranks", p4096, {P, P, P}, p4096, {B, B, B}, 50000),
      pair(" from 4096 ranks to 4096 others", p4096, {P, S0, S1}, q4096, {S2, S1, B}, 50000),
  };
  for (auto& p : pairs) {
    std::vector<double> times;
    for (int r = 0; r < kRepeats; ++r) {
      double start = now_us();
      boxing::find_plan(p.from, p.to, {4096, 1000, 77}, float32, machine);
      times.push_back(now_us() - start);
    }
    emit(p.name, median(times), "us", "goal, " + std::to_string(p.goal_us) + " us", p.goal_us / median(times));
  }
  Machine hosts;  // of eight ranks each
  for (int r = 0; r < 8192; ++r) hosts.hosts.host_of_rank.push_back(r / 8);
  for (auto& p : {pairs[2], pairs[6]}) {
    std::vector<double> times;
    for (int r = 0; r < kRepeats; ++r) {
      double start = now_us();
      boxing::find_plan(p.from, p.to, {4096, 1000, 77}, float32, hosts);
      times.push_back(now_us() - start);
    }
    emit(p.name + ", eight to a host", median(times), "us", "goal on one host, " + std::to_string(p.goal_us) + " us",
         p.goal_us / median(times));
  }
  std::vector<double> times;
  auto &a = *pairs[0].from, &b = *pairs[0].to;
  for (int r = 0; r < kRepeats; ++r) {
    double start = now_us();
    for (int i = 0; i < 10000; ++i) boxing::plan(&a, &b, {4096, 1000, 77}, float32);
    times.push_back((now_us() - start) / 10000);
  }
  emit("plan from the cache", median(times), "us", "goal, 0.3 us", 0.3 / median(times));
}

void summarize(const char* file) {
  std::vector<std::pair<double, double>> pairs;
  if (std::FILE* f = std::fopen(file, "r")) {
    double p, m;
    while (std::fscanf(f, "%lf %lf", &p, &m) == 2) pairs.emplace_back(p, m);
    std::fclose(f);
  }
  if (pairs.size() < 2) return;
  std::vector<double> errors;
  int64_t order = 0, all = 0;
  for (size_t i = 0; i < pairs.size(); ++i) {
    errors.push_back(std::abs(pairs[i].first / pairs[i].second - 1));
    for (size_t j = 0; j < i; ++j, ++all)
      order += (pairs[i].first - pairs[j].first) * (pairs[i].second - pairs[j].second) > 0 ? 1 : -1;
  }
  double error = median(errors), tau = static_cast<double>(order) / static_cast<double>(all);
  emit("predicted times, median error", error, "fraction", "goal, 0.3", 0.3 / error);
  emit("predicted times, Kendall's tau", tau, "", "goal, 0.9", tau / 0.9);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  if (std::getenv("HOLON_BENCH_RANK")) {
    cpu_set_t cpu;
    CPU_ZERO(&cpu);
    CPU_SET(static_cast<size_t>(Context::current().rank()) % static_cast<size_t>(sysconf(_SC_NPROCESSORS_ONLN)), &cpu);
    sched_setaffinity(0, sizeof cpu, &cpu);
    measure(cases_of_two(), only);
    prepared_times(only);
    return 0;
  }
  if (only.empty() || only == "plan") plan_times();
  if (only == "plan") return 0;
  char pairs[] = "/tmp/boxing_bench_XXXXXX";
  if (int fd = mkstemp(pairs); fd >= 0) close(fd);
  setenv("HOLON_BENCH_PAIRS", pairs, 1);
  setenv("HOLON_BENCH_RANK", "1", 1);
  const int worst = bench::run_rank_processes(2, argv);
  Context four(0, 4, 0, 4);
  {
    ContextGuard guard(four);
    auto cases = cases_of_four();
    comm::run_ranks(4, [&](int) { measure(cases, only); });
  }
  summarize(pairs);
  unlink(pairs);
  return worst ? 1 : 0;
}
