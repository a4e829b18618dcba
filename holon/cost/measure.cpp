#include "holon/cost/measure.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
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

void copy_row(std::byte* to, const std::byte* from, size_t bytes) { kernels::copy_bytes(to, from, bytes); }

// What `cores` threads copy together, in bytes per second, out of memory.
double together(int cores, size_t bytes) {
  std::atomic<int> ready{0};
  std::atomic<double> slowest{0};
  auto work = [&] {
    Block from(bytes), to(bytes);
    flush(from.data(), bytes);
    flush(to.data(), bytes);
    // All at once; a core that others use may come late, and is not waited for.
    ++ready;
    const double deadline = now_s() + 1e-3;
    while (ready < cores && now_s() < deadline) {
    }
    double start = now_s();
    kernels::stream_bytes(to.data(), from.data(), bytes);
    kernels::stream_fence();
    double took = now_s() - start, seen = slowest;
    while (took > seen && !slowest.compare_exchange_weak(seen, took)) {
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 1; i < cores; ++i) threads.emplace_back(work);
    work();
  }
  return static_cast<double>(bytes) * cores / std::max(slowest.load(), 1e-9);
}

}  // namespace

MachineCosts measure_memory(const MachineCosts& base, int cores) {
  MachineCosts c = base;
  c.cores = cores;
  const long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
  c.cache_bytes = static_cast<double>(std::clamp<long>(cache > 0 ? cache : 1 << 20, 256 << 10, 4 << 20));

  const auto whole = static_cast<size_t>(c.cache_bytes), small = whole / 8;
  Block a(whole), b(whole), out(whole);
  const void* two[] = {a.data(), b.data()};
  auto nothing = [] {};
  const size_t little = small / 4;  // flushing takes longer than what is measured then
  auto rates = [&](auto&& work, double counted, std::initializer_list<const Block*> touched) {
    auto flush_all = [&] {
      for (auto* block : touched) flush(block->data(), little);
    };
    auto at = [&](size_t bytes, int times, auto&& before) {
      return counted * static_cast<double>(bytes) / least_s(times, before, [&] { work(bytes); });
    };
    Rates r{};
    r.near = at(small, 6, nothing);
    // Never far below: a rank that was put to sleep in each of the turns has measured nothing.
    r.mid = std::clamp(at(whole, 3, nothing), r.near / 8, r.near);
    r.far = std::clamp(at(little, 6, flush_all), r.mid / 6, r.mid);
    return r;
  };
  c.copy = rates(
      [&](size_t bytes) {
        if (bytes != little) return copy_row(out.data(), a.data(), bytes);
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

  const int64_t rows = 512, row = 64, step = 256;
  const int64_t to[] = {row, 1}, from[] = {step, 1}, shape[] = {rows, row};
  double s = least_s(6, nothing, [&] { kernels::copy_bytes_strided(out.data(), to, a.data(), from, shape, 1); });
  c.row_s = std::max(1e-9, (s - static_cast<double>(rows * row) / c.copy.near) / static_cast<double>(rows));

  const int threads = std::min(cores, 8);
  if (threads > 1) {
    double most = c.copy.far;
    for (int i = 0; i < 3; ++i) most = std::max(most, together(threads, little));
    // Cores that do not hold each other up have no common limit.
    c.memory_bytes_per_s = most > 0.7 * threads * c.copy.far ? 0 : most;
  }
  return c;
}

SyncTimes measure_syncs(int n, const std::function<void()>& pair, const std::function<void()>& all) {
  // The first of a batch may find all others waiting. Many batches, since ranks that have just begun may share a core
  // for a while.
  constexpr int kBatches = 10, kTimes = 4;
  auto each = [&](const std::function<void()>& sync) {
    all();
    return least_s(
               kBatches, [] {},
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
