#include "holon/cost/measure.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <thread>
#include <vector>

#include "holon/array/storage.h"
#include "holon/base/index.h"
#include "holon/kernels/add_n.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/stream.h"

namespace holon {

namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The least of several times: what disturbs only ever adds.
template <class Before, class F>
double least_s(int times, Before&& before, F&& f) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < times; ++i) {
    before();
    double start = now_s();
    f();
    best = std::min(best, now_s() - start);
  }
  return std::max(best, 1e-9);
}

class Block {
 public:
  explicit Block(size_t bytes) : bytes_(bytes), data_(static_cast<std::byte*>(allocate_block(bytes))) {
    std::memset(data_, 1, bytes);  // pages that have never been touched are slow
  }
  ~Block() { free_block(data_, bytes_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  std::byte* data() const { return data_; }

 private:
  size_t bytes_;
  std::byte* data_;
};

// Out of all caches, so that the next one who touches it goes to memory.
void flush(const std::byte* data, size_t bytes) {
#if defined(__x86_64__)
  for (size_t i = 0; i < bytes; i += 64) __builtin_ia32_clflush(data + i);
  __builtin_ia32_mfence();
#else
  static_cast<void>(data), static_cast<void>(bytes);
#endif
}

// The last cache that this core shares with others, as the kernel has it; 0: none, or unknown. (sysconf adds those of a
// socket up.)
double shared_cache_bytes() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  double size = 0;
  char unit = 0;
  if (!(file >> size >> unit)) return 0;
  return size * (unit == 'K' ? 1 << 10 : unit == 'M' ? 1 << 20 : 1);
}

void copy_row(std::byte* to, const std::byte* from, size_t bytes) { kernels::copy_bytes(to, from, bytes); }

// What as many threads copy together, in bytes per second, out of memory, each on a core of its own: the best of
// several rounds. Pre: the process may use that many cores.
double together(int threads, size_t bytes, int rounds) {
  double start = 0;  // of a round, when all have been woken up
  std::barrier round(threads, [&]() noexcept { start = now_s() + 2e-5; });
  std::vector<double> ended(to_size(threads));
  double best = 0;
  auto work = [&](int i, int core) {
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(to_size(core), &own);
    pthread_setaffinity_np(pthread_self(), sizeof own, &own);
    Block from(bytes), to(bytes);
    for (int r = 0; r < rounds; ++r) {
      flush(from.data(), bytes);
      flush(to.data(), bytes);
      round.arrive_and_wait();
      const double begun = start;
      while (now_s() < begun) {
      }
      kernels::stream_bytes(to.data(), from.data(), bytes);
      kernels::stream_fence();
      at_index(ended, i) = now_s();
      round.arrive_and_wait();
      if (i > 0) continue;
      const double took = *std::max_element(ended.begin(), ended.end()) - begun;
      best = std::max(best, static_cast<double>(bytes) * threads / std::max(took, 1e-9));
    }
  };
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  std::vector<std::jthread> running;
  int core = 0;
  for (int i = 0; i < threads; ++i, ++core) {
    while (core < CPU_SETSIZE - 1 && !CPU_ISSET(to_size(core), &allowed)) ++core;
    running.emplace_back(work, i, core);
  }
  running.clear();
  return best;
}

}  // namespace

MachineCosts measure_memory(const MachineCosts& base, int cores) {
  MachineCosts c = base;
  c.cores = cores;
  const long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
  c.cache_bytes = static_cast<double>(std::clamp<long>(cache > 0 ? cache : 1 << 20, 256 << 10, 4 << 20));
  c.shared_cache_bytes = shared_cache_bytes();

  const auto whole = static_cast<size_t>(c.cache_bytes), small = whole / 8;
  Block a(whole), b(whole), out(whole);
  const void* two[] = {a.data(), b.data()};
  auto nothing = [] {};
  const size_t flushed = whole / 2;  // enough that the first misses do not count
  auto rates = [&](auto&& work, double counted, std::initializer_list<const Block*> touched) {
    auto flush_all = [&] {
      for (auto* block : touched) flush(block->data(), flushed);
    };
    auto at = [&](size_t bytes, int times, auto&& before) {
      return counted * static_cast<double>(bytes) / least_s(times, before, [&] { work(bytes); });
    };
    Rates r{};
    r.near = at(small, 6, nothing);
    // Never far below: a rank that was put to sleep in each of the turns has measured nothing.
    r.mid = std::clamp(at(whole, 3, nothing), r.near / 8, r.near);
    r.far = std::clamp(at(flushed, 4, flush_all), r.mid / 6, r.mid);
    return r;
  };
  c.copy = rates(
      [&](size_t bytes) {
        if (bytes != flushed) return copy_row(out.data(), a.data(), bytes);
        kernels::stream_bytes(out.data(), a.data(), bytes);  // as what is far larger than the caches is copied
        kernels::stream_fence();
      },
      1, {&a, &out});
  // Two halves, so that the whole is more than the core's own cache, as it is in the others.
  c.fill = rates(
      [&](size_t bytes) {
        for (auto* block : {&b, &out}) std::memset(block->data(), 0, bytes);
      },
      2, {&b, &out});
  c.reduce =
      rates([&](size_t bytes) { kernels::add_n(out.data(), two, static_cast<int64_t>(bytes / 4), DType::kFloat32); }, 2,
            {&a, &b, &out});
  // A sum moves three bytes where a copy moves two. What is measured far from that was disturbed, and would have graphs
  // gather and exchange activations so as not to sum gradients.
  for (double Rates::*level : {&Rates::near, &Rates::mid, &Rates::far})
    c.reduce.*level = std::clamp(c.reduce.*level, 0.75 * c.copy.*level, 3 * c.copy.*level);
  // Out of memory it moves as much for an addend as a copy does: its result is read before it is written.
  c.reduce.far = std::min(c.reduce.far, 1.25 * c.copy.far);

  const int64_t rows = 512, row = 64, step = 256;
  const int64_t to[] = {row, 1}, from[] = {step, 1}, shape[] = {rows, row};
  double s = least_s(6, nothing, [&] { kernels::copy_bytes_strided(out.data(), to, a.data(), from, shape, 1); });
  c.row_s = std::max(1e-9, (s - static_cast<double>(rows * row) / c.copy.near) / static_cast<double>(rows));

  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int threads =
      sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? std::min({cores, CPU_COUNT(&allowed), 8}) : 1;
  if (threads > 1) c.memory_bytes_per_s = std::max(c.copy.far, together(threads, whole / 2, 4));
  return c;
}

SyncTimes measure_syncs(int n, bool spinning, const std::function<void()>& pair, const std::function<void()>& all) {
  // The first of a batch may find all others waiting. Many batches, since ranks that have just begun may share a core
  // for a while; fewer where each takes long, as ranks that wait are put to sleep.
  constexpr int kTimes = 4;
  const int batches = spinning ? 200 : 10;
  auto each = [&](const std::function<void()>& sync) {
    all();
    return least_s(
               batches, [] {},
               [&] {
                 for (int i = 0; i < kTimes; ++i) sync();
               }) /
        kTimes;
  };
  SyncTimes t;
  t.pair_s = each(pair);
  if (n > 2) t.rank_s = std::max(0.0, each(all) - t.pair_s) / (n - 2);
  return t;
}

}  // namespace holon
