// Moving tensors between ranks of one host against bare shared memory, measured in turns in the same run. One JSON
// object per line; value is the lower quartile of many short turns, as other programs disturb some of them; ratio is
// the limit's over ours (1: at the limit). Arguments name the cases to run by a part of their name.
//
//  * two processes, each spinning on a core of its own: every collective as the Communicator does it, as boxing does
//  it, and
//    as Tensor::to_global does it. The limit: a spin barrier, memcpy or a plain loop, a spin barrier, on touched
//    memory.
//  * eight processes on the cores there are: small collectives, against a round trip between two sleepers on futexes
//  * 1 to 8 ranks as threads: the processor time that a rank spends per collective, against log2
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/micro/rank_processes.h"
#include "holon/array/storage.h"
#include "holon/base/context.h"
#include "holon/boxing/executor.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/arithmetic.h"
#include "holon/tensor.h"

namespace {

using namespace holon;

constexpr size_t kMax = 64 << 20;
std::vector<std::string> wanted;

bool skipped(const std::string& name) {
  auto named = [&](const std::string& w) { return name.find(w) != std::string::npos; };
  return !wanted.empty() && std::none_of(wanted.begin(), wanted.end(), named);
}

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double quartile(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 4];
}

void print(const std::string& name, double value, const char* unit, const std::string& against, double ratio) {
  std::printf("{\"name\": \"%s\", \"value\": %.3f, \"unit\": \"%s\", \"against\": \"%s\", \"ratio\": %.3f}\n",
              name.c_str(), value, unit, against.c_str(), ratio);
  std::fflush(stdout);
}

std::string size_text(size_t n) {
  return n >= 1 << 20 ? std::to_string(n >> 20) + " MiB" : std::to_string(n >> 10) + " KiB";
}

void pin(int rank) {
  cpu_set_t cpu;
  CPU_ZERO(&cpu);
  CPU_SET(static_cast<size_t>(rank) % static_cast<size_t>(sysconf(_SC_NPROCESSORS_ONLN)), &cpu);
  sched_setaffinity(0, sizeof cpu, &cpu);
}

struct Barrier {
  alignas(64) std::atomic<uint32_t> at[2][16];
};

// What the limit works on: a page for the barrier, then two inputs and two outputs.
struct Bare {
  Barrier* barrier;
  float *in[2], *out[2];
  uint32_t ticket = 0;
  int rank;
  explicit Bare(int r) : rank(r) {
    auto* p = static_cast<char*>(mmap(nullptr, 4096 + 4 * kMax, PROT_READ | PROT_WRITE, MAP_SHARED,
                                      std::atoi(std::getenv("HOLON_BENCH_FD")), 0));
    if (p == MAP_FAILED) std::perror("mmap"), std::exit(1);
    barrier = reinterpret_cast<Barrier*>(p);
    for (int i = 0; i < 2; ++i) in[i] = reinterpret_cast<float*>(p + 4096 + static_cast<size_t>(i) * kMax);
    for (int i = 0; i < 2; ++i) out[i] = reinterpret_cast<float*>(p + 4096 + static_cast<size_t>(i + 2) * kMax);
    for (size_t i = 0; i < kMax / 4; ++i) in[r][i] = out[r][i] = 1;
  }
  void sync() {
    ++ticket;
    barrier->at[rank][0].store(ticket, std::memory_order_release);
    while (barrier->at[1 - rank][0].load(std::memory_order_acquire) < ticket) __builtin_ia32_pause();
  }
};

__attribute__((noinline, target_clones("avx512f", "avx2", "default"))) void add(float* o, const float* x,
                                                                                const float* y, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) o[i] = x[i] + y[i];
}

// One conversion of a [rows, cols] tensor between two ranks, and the least that it takes.
struct Conversion {
  const char* name;
  const GlobalSpec *from, *to;
  std::function<void()> limit;
};

int pair_main() {
  const int rank = Context::current().rank(), peer = 1 - rank;
  Bare bare(rank);
  pin(rank);
  const int both[] = {0, 1};
  auto& group = comm::communicator(both);
  auto* in = static_cast<float*>(allocate_block(kMax));
  auto* out = static_cast<float*>(allocate_block(kMax));
  for (size_t i = 0; i < kMax / 4; ++i) in[i] = out[i] = 1;

  auto measure = [&](const std::string& name, size_t bytes, const std::function<void()>& ours,
                     const std::function<void()>& limit) {
    if (skipped(name)) return;
    const int inner = bytes <= 65536 ? 200 : bytes <= 1u << 20 ? 20 : bytes <= 4u << 20 ? 3 : 1;
    const int turns = bytes <= 1u << 20 ? 101 : bytes <= 4u << 20 ? 61 : 25;
    std::vector<double> mine, theirs;
    for (int i = 0; i < 2; ++i) ours(), limit();
    for (int r = 0; r < turns; ++r)
      for (auto* what : {&limit, &ours}) {
        bare.sync();
        double start = now_us();
        for (int i = 0; i < inner; ++i) (*what)();
        (what == &ours ? mine : theirs).push_back((now_us() - start) / inner);
      }
    if (rank == 0) {
      char against[64];
      std::snprintf(against, sizeof against, "bare shared memory, %.3f us", quartile(theirs));
      print(name, quartile(mine), "us", against, quartile(theirs) / quartile(mine));
    }
  };

  auto spec = [](std::vector<int64_t> ranks, Sbp s) { return intern_spec(Placement("cpu", ranks), NdSbp({s})); };
  auto* split0 = spec({0, 1}, sbp::split(0));
  auto* split1 = spec({0, 1}, sbp::split(1));
  auto* broadcast = spec({0, 1}, sbp::broadcast());
  auto* partial = spec({0, 1}, sbp::partial_sum());
  auto* first = spec({0}, sbp::broadcast());
  auto* second = spec({1}, sbp::broadcast());

  measure(
      "barrier 2 processes", 0, [&] { group.barrier(); }, [&] { bare.sync(); });
  for (size_t bytes : {size_t{4} << 10, size_t{256} << 10, size_t{4} << 20, kMax}) {
    const std::string text = " " + size_text(bytes) + " 2 processes";
    const size_t numel = bytes / 4, half = numel / 2;
    size_t cols = 1;
    while (cols * cols < numel) cols *= 2;
    const size_t rows = numel / cols;
    const auto count = static_cast<int64_t>(numel);
    const std::vector<int64_t> halves = {count / 2, count / 2}, quarters = {count / 4, count / 4};

    auto gather = [&] {
      bare.sync();
      std::memcpy(bare.out[rank], bare.in[0], bytes / 2);
      std::memcpy(bare.out[rank] + half, bare.in[1], bytes / 2);
      bare.sync();
    };
    auto reduce = [&] {
      const size_t mine = static_cast<size_t>(rank) * half, other = static_cast<size_t>(peer) * half;
      bare.sync();
      add(bare.out[rank] + mine, bare.in[0] + mine, bare.in[1] + mine, half);
      bare.sync();
      std::memcpy(bare.out[rank] + other, bare.out[peer] + other, bytes / 2);
      bare.sync();
    };
    auto scatter = [&] {
      const size_t mine = static_cast<size_t>(rank) * half;
      bare.sync();
      add(bare.out[rank], bare.in[0] + mine, bare.in[1] + mine, half);
      bare.sync();
    };
    auto copy = [&] {
      bare.sync();
      if (rank == 1) std::memcpy(bare.out[1], bare.in[0], bytes);
      bare.sync();
    };
    auto packed = [&] {
      bare.sync();
      for (int s = 0; s < 2; ++s)
        std::memcpy(bare.out[rank] + static_cast<size_t>(s) * half / 2,
                    bare.in[s] + static_cast<size_t>(rank) * half / 2, bytes / 4);
      bare.sync();
    };
    auto relaid = [&] {
      bare.sync();
      const size_t r = rows / 2, c = cols / 2;
      for (size_t s = 0; s < 2; ++s)
        for (size_t i = 0; i < r; ++i)
          std::memcpy(bare.out[rank] + (s * r + i) * c, bare.in[s] + i * cols + static_cast<size_t>(rank) * c, c * 4);
      bare.sync();
    };

    measure(
        "all_gather" + text, bytes, [&] { group.all_gather(in, out, halves, float32); }, gather);
    measure(
        "all_to_all" + text, bytes, [&] { group.all_to_all(in, out, quarters, quarters, float32); }, packed);
    measure(
        "broadcast" + text, bytes, [&] { group.broadcast(rank == 0 ? in : out, count, float32, 0); }, copy);
    measure(
        "reduce_scatter" + text, bytes, [&] { group.reduce_scatter(in, out, halves, float32); }, scatter);
    measure(
        "all_reduce" + text, bytes, [&] { group.all_reduce(in, out, count, float32); }, reduce);

    const Dims shape = {static_cast<int64_t>(rows), static_cast<int64_t>(cols)};
    // A view needs no communication: there is nothing to be faster than.
    const Conversion conversions[] = {
        {"S(0) -> B", split0, broadcast, gather},       {"S(0) -> S(1)", split0, split1, relaid},
        {"rank 0 -> B", first, broadcast, copy},        {"P -> S(0)", partial, split0, scatter},
        {"P -> B", partial, broadcast, reduce},         {"rank 0 -> rank 1", first, second, copy},
        {"B -> S(0), a view", broadcast, split0, [] {}}};
    for (auto& c : conversions) {
      Array part;
      if (int index = c.from->placement.index_of(rank); index >= 0) {
        part = Array::empty(region_of(shape, c.from->placement, c.from->nd_sbp, index).shape, float32);
        std::fill_n(part.data<float>(), part.numel(), 1.f);
      }
      measure(
          std::string("boxing ") + c.name + text, bytes,
          [&] { boxing::redistribute(c.from, c.to, shape, float32, part); }, c.limit);
      Tensor x = Tensor::global(part, shape, float32, c.from);
      measure(
          std::string("to_global ") + c.name + text, bytes, [&] { x.to_global(c.to->placement, c.to->nd_sbp); },
          c.limit);
    }
  }
  group.barrier();
  return 0;
}

long futex(std::atomic<uint32_t>* word, int op, uint32_t value) {
  return syscall(SYS_futex, word, op, value, nullptr, nullptr, 0);
}

// A round trip between two processes that always sleep.
double futex_round_trip_us() {
  auto* word = static_cast<std::atomic<uint32_t>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  constexpr int kTrips = 500, kTurns = 9;
  auto play = [&](uint32_t me) {
    for (int i = 0; i < kTrips; ++i) {
      while (word->load() != me) futex(word, FUTEX_WAIT, 1 - me);
      word->store(1 - me);
      futex(word, FUTEX_WAKE, 1);
    }
  };
  cpu_set_t before;
  sched_getaffinity(0, sizeof before, &before);
  std::vector<double> times;
  for (int t = 0; t < kTurns; ++t) {
    word->store(0);
    pid_t child = fork();
    if (child == 0) pin(1), play(1), _exit(0);
    pin(0);
    double start = now_us();
    play(0);
    int status;
    waitpid(child, &status, 0);
    times.push_back((now_us() - start) / kTrips);
  }
  sched_setaffinity(0, sizeof before, &before);
  munmap(word, 4096);
  return quartile(times);
}

int64_t sleeps() {
  rusage usage;
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

// More ranks than cores: nobody spins, so a collective is sleeps and wakes.
int crowd_main() {
  const int rank = Context::current().rank(), n = Context::current().world_size();
  std::vector<int> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  auto& group = comm::communicator(all);
  std::vector<float> in(1024 * static_cast<size_t>(n), 1), out(in.size());
  const std::vector<int64_t> even(all.size(), 1024 / n);
  const double trip = std::atof(std::getenv("HOLON_BENCH_TRIP_US"));
  const std::pair<const char*, std::function<void()>> cases[] = {
      {"barrier", [&] { group.barrier(); }},
      {"all_gather 4 KiB", [&] { group.all_gather(in.data(), out.data(), even, float32); }},
      {"all_to_all 4 KiB", [&] { group.all_to_all(in.data(), out.data(), even, even, float32); }},
      {"broadcast 4 KiB", [&] { group.broadcast(in.data(), 1024, float32, 0); }},
      {"reduce_scatter 4 KiB", [&] { group.reduce_scatter(in.data(), out.data(), even, float32); }},
      {"all_reduce 4 KiB", [&] { group.all_reduce(in.data(), out.data(), 1024, float32); }},
  };
  for (auto& [name, what] : cases) {
    const std::string text = std::string(name) + " " + std::to_string(n) + " processes";
    if (skipped(text)) continue;
    constexpr int kInner = 50, kTurns = 21;
    std::vector<double> times;
    for (int i = 0; i < kInner; ++i) what();
    int64_t slept = sleeps();
    for (int t = 0; t < kTurns; ++t) {
      double start = now_us();
      for (int i = 0; i < kInner; ++i) what();
      times.push_back((now_us() - start) / kInner);
    }
    const double per_call = static_cast<double>(sleeps() - slept) / (kInner * kTurns);
    if (rank == 0) {
      char against[96];
      std::snprintf(against, sizeof against, "a futex round trip between two sleepers, %.3f us", trip);
      print(text, quartile(times), "us", against, trip / quartile(times));
      print(text + ", sleeps of rank 0", per_call, "sleeps", "three", 3 / std::max(per_call, 1e-3));
    }
  }
  return 0;
}

double cpu_us() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  auto us = [](timeval t) { return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_usec); };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

// Processor time per rank and call, ranks as threads, the least of several turns: a rank that spins for one that
// another program keeps from its core spends time too. ratio: growth by log2 of the ranks, from two ranks on, over
// ours.
void threads_main() {
  for (const char* name : {"barrier", "all_reduce 4 KiB", "all_reduce 1 MiB", "all_gather 4 KiB"}) {
    double at_two = 0;
    for (int n : {1, 2, 4, 8}) {
      const std::string text = std::string(name) + " " + std::to_string(n) + " threads, processor time per rank";
      if (skipped(text)) continue;
      const bool large = std::strstr(name, "MiB");
      const int64_t count = large ? 1 << 18 : 1 << 10;
      const int calls = large ? 30 : 500;
      std::vector<double> times;
      for (int t = 0; t < 21; ++t) {
        double start = 0;
        comm::run_ranks(n, [&](int rank) {
          std::vector<int> all(static_cast<size_t>(n));
          std::iota(all.begin(), all.end(), 0);
          auto& group = comm::communicator(all);
          std::vector<float> in(static_cast<size_t>(count), 1), out(in.size());
          const std::vector<int64_t> even(all.size(), count / n);
          auto call = [&] {
            if (name[0] == 'b')
              group.barrier();
            else if (std::strstr(name, "gather"))
              group.all_gather(in.data(), out.data(), even, float32);
            else
              group.all_reduce(in.data(), out.data(), count, float32);
          };
          for (int i = 0; i < 3; ++i) call();
          if (rank == 0) start = cpu_us();
          for (int i = 0; i < calls; ++i) call();
        });
        times.push_back((cpu_us() - start) / calls / n);
      }
      const double us = *std::min_element(times.begin(), times.end());
      if (n == 2) at_two = us;
      const double allowed = n == 1 ? us : at_two * std::log2(n);
      print(text, us, "us", n == 1 ? "itself" : "log2 from 2 ranks on", allowed / us);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  wanted.assign(argv + 1, argv + argc);
  if (const char* part = std::getenv("HOLON_BENCH_PART"))
    return std::strcmp(part, "pair") == 0 ? pair_main() : crowd_main();
  const int fd = memfd_create("bench", 0);
  if (fd < 0 || ftruncate(fd, 4096 + 4 * static_cast<off_t>(kMax)) != 0) return std::perror("memfd"), 1;
  setenv("HOLON_BENCH_FD", std::to_string(fd).c_str(), 1);
  setenv("HOLON_BENCH_PART", "pair", 1);
  int worst = bench::run_rank_processes(2, argv);
  close(fd);
  setenv("HOLON_BENCH_PART", "crowd", 1);
  setenv("HOLON_BENCH_TRIP_US", std::to_string(futex_round_trip_us()).c_str(), 1);
  worst |= bench::run_rank_processes(8, argv);
  threads_main();
  return worst ? 1 : 0;
}
