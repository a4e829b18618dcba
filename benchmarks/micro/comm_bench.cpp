// Collectives between two processes against bare shared memory and a spin barrier, measured in turn with them on memory
// that has been touched. One JSON object per line; ratio is the limit's time over ours (1: at the limit). An argument
// names one collective.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "holon/array/storage.h"
#include "holon/base/context.h"
#include "holon/comm/communicator.h"

namespace {

using namespace holon;

constexpr size_t kMax = 64 << 20;
constexpr int kRepeats = 15;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
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
  void meet() {
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

std::string size_text(size_t n) {
  return n >= 1 << 20 ? std::to_string(n >> 20) + " MiB" : std::to_string(n >> 10) + " KiB";
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

int rank_main(const std::string& only) {
  const int rank = Context::current().rank(), peer = 1 - rank;
  Bare bare(rank);
  cpu_set_t cpu;
  CPU_ZERO(&cpu);
  CPU_SET(static_cast<size_t>(rank) % static_cast<size_t>(sysconf(_SC_NPROCESSORS_ONLN)), &cpu);
  sched_setaffinity(0, sizeof cpu, &cpu);
  const int both[] = {0, 1};
  auto& group = comm::communicator(both);
  auto* in = static_cast<float*>(allocate_block(kMax));
  auto* out = static_cast<float*>(allocate_block(kMax));
  for (size_t i = 0; i < kMax / 4; ++i) in[i] = out[i] = 1;

  auto measure = [&](const std::string& name, size_t bytes, const std::function<void()>& ours,
                     const std::function<void()>& limit) {
    if (!only.empty() && name.find(only) == std::string::npos) return;
    const int inner = bytes <= 65536 ? 2000 : bytes <= (4u << 20) ? 30 : 3;
    std::vector<double> mine, theirs;
    for (int i = 0; i < 2; ++i) ours(), limit();
    for (int r = 0; r < kRepeats; ++r)
      for (auto* what : {&limit, &ours}) {
        bare.meet();
        double start = now_us();
        for (int i = 0; i < inner; ++i) (*what)();
        (what == &ours ? mine : theirs).push_back((now_us() - start) / inner);
      }
    if (rank == 0) {
      std::printf("{\"name\": \"%s\", \"value\": %.3f, \"unit\": \"us\", \"against\": \"bare shared memory, %.3f us\", "
                  "\"ratio\": %.3f}\n",
                  name.c_str(), median(mine), median(theirs), median(theirs) / median(mine));
      std::fflush(stdout);
    }
  };

  measure(
      "barrier 2 processes", 0, [&] { group.barrier(); }, [&] { bare.meet(); });
  for (size_t bytes : {size_t{4} << 10, size_t{256} << 10, size_t{4} << 20, kMax}) {
    const std::string text = " " + size_text(bytes) + " 2 processes";
    const auto count = static_cast<int64_t>(bytes / 4);
    const size_t half = bytes / 8;  // elements
    const std::vector<int64_t> halves = {count / 2, count / 2};
    measure(
        "all_gather" + text, bytes, [&] { group.all_gather(in, out, halves, float32); },
        [&] {
          bare.meet();
          std::memcpy(bare.out[rank], bare.in[0], bytes / 2);
          std::memcpy(bare.out[rank] + half, bare.in[1], bytes / 2);
          bare.meet();
        });
    measure(
        "all_reduce" + text, bytes, [&] { group.all_reduce(in, out, count, float32); },
        [&] {
          const size_t mine = static_cast<size_t>(rank) * half, other = static_cast<size_t>(peer) * half;
          bare.meet();
          add(bare.out[rank] + mine, bare.in[0] + mine, bare.in[1] + mine, half);
          bare.meet();
          std::memcpy(bare.out[rank] + other, bare.out[peer] + other, bytes / 2);
          bare.meet();
        });
    measure(
        "reduce_scatter" + text, bytes, [&] { group.reduce_scatter(in, out, halves, float32); },
        [&] {
          const size_t mine = static_cast<size_t>(rank) * half;
          bare.meet();
          add(bare.out[rank], bare.in[0] + mine, bare.in[1] + mine, half);
          bare.meet();
        });
  }
  group.barrier();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  if (std::getenv("HOLON_BENCH_FD")) return rank_main(only);
  const int fd = memfd_create("bench", 0);
  if (fd < 0 || ftruncate(fd, 4096 + 4 * static_cast<off_t>(kMax)) != 0) return std::perror("memfd"), 1;
  setenv("HOLON_BENCH_FD", std::to_string(fd).c_str(), 1);
  setenv("WORLD_SIZE", "2", 1);
  setenv("MASTER_PORT", std::to_string(20000 + getpid() % 20000).c_str(), 1);
  setenv("OMP_NUM_THREADS", "1", 1);
  pid_t ranks[2];
  for (int r = 0; r < 2; ++r) {
    ranks[r] = fork();
    if (ranks[r] == 0) {
      setenv("RANK", std::to_string(r).c_str(), 1);
      setenv("LOCAL_RANK", std::to_string(r).c_str(), 1);
      execv("/proc/self/exe", argv);
      _exit(127);
    }
  }
  int worst = 0;
  for (pid_t r : ranks) {
    int status = 0;
    waitpid(r, &status, 0);
    worst |= status;
  }
  return worst ? 1 : 0;
}
