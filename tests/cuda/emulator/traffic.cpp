// What work moves in the memory of devices (EMULATED_TRAFFIC=1, between two calls of emulated_traffic()): that memory
// is closed when a piece of work begins, and its first read and first write of each page of 4 KiB are counted. So a
// kernel that reads an array twice counts once, as if caches were large enough; what is smaller than a page counts as
// one.
//
// Of one rank: pieces of work of several threads are not told apart.
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "streams.h"

namespace emulator {
namespace {

constexpr uintptr_t kPage = 4096;

struct Moved {
  int64_t times = 0, read = 0, written = 0;
};

// Of the piece of work under way, for the handler.
struct UnderWay {
  std::vector<std::pair<char*, size_t>> ranges;
  int64_t read = 0, written = 0;
  std::atomic<bool> counts = false;
};
UnderWay& under_way() {
  static auto* u = new UnderWay;
  return *u;
}

std::mutex mutex;
std::map<std::pair<std::string, const void*>, Moved>& moved() {
  static auto* all = new std::map<std::pair<std::string, const void*>, Moved>;
  return *all;
}
std::atomic<int64_t> waits{0};
std::atomic<bool> counting{false};

void protect(char* at, size_t bytes, int how) {
  if (bytes && mprotect(at, bytes, how) != 0) std::abort();
}

// The first access of a page, or the first write after reads.
void on_fault(int, siginfo_t* info, void* context) {
  UnderWay& u = under_way();
  auto* at = static_cast<char*>(info->si_addr);
  if (u.counts)
    for (auto& [base, bytes] : u.ranges)
      if (at >= base && at < base + bytes) {
#ifdef __x86_64__
        const bool writes = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2;
#else
#error "how does a handler know a write here?"
#endif
        (writes ? u.written : u.read) += kPage;
        protect(at - reinterpret_cast<uintptr_t>(at) % kPage, kPage, writes ? PROT_READ | PROT_WRITE : PROT_READ);
        return;
      }
  signal(SIGSEGV, SIG_DFL);  // as without a handler
}

void install() {
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
}

}  // namespace

bool counts_traffic() {
  static const bool on = [] {
    const char* text = std::getenv("EMULATED_TRAFFIC");
    if (!text || std::atoi(text) == 0) return false;
    install();
    return true;
  }();
  return on;
}

void count_wait() { waits.fetch_add(1, std::memory_order_relaxed); }

std::function<void()> counted(Label label, std::function<void()> work) {
  if (!counts_traffic()) return work;
  return [label, work = std::move(work)] {
    if (!counting) return work();
    UnderWay& u = under_way();
    u.ranges = memory_ranges();
    u.read = u.written = 0;
    for (auto& [at, bytes] : u.ranges) protect(at, bytes, PROT_NONE);
    u.counts = true;
    struct End {
      ~End() {
        UnderWay& u = under_way();
        u.counts = false;
        for (auto& [at, bytes] : u.ranges) protect(at, bytes, PROT_READ | PROT_WRITE);
      }
    };
    {
      End end;
      work();
    }
    const std::lock_guard lock(mutex);
    Moved& m = moved()[{label.kind, label.kernel}];
    ++m.times;
    m.read += u.read;
    m.written += u.written;
  };
}

}  // namespace emulator

// How often the host has waited for a stream, an event or a device.
extern "C" int64_t emulated_wait_count() { return emulator::waits; }

// Begins to count, and writes a line for each kind of work that was counted since the last call: "KIND ADDRESS TIMES
// READ WRITTEN", bytes; the address is where in the module a kernel begins (hexadecimal), else 0. And "wait 0 TIMES 0
// 0": how often the host waited for a device. null: counts no more.
extern "C" void emulated_traffic(const char* path) {
  using namespace emulator;
  counting = path != nullptr;
  if (!counting) return;
  FILE* file = std::fopen(path, "w");
  if (!file) return;
  const std::lock_guard lock(mutex);
  for (auto& [of, m] : moved()) {
    Dl_info module = {};
    ptrdiff_t at = 0;
    if (of.second && dladdr(of.second, &module) != 0)
      at = static_cast<const char*>(of.second) - static_cast<const char*>(module.dli_fbase);
    std::fprintf(file, "%s %tx %" PRId64 " %" PRId64 " %" PRId64 "\n", of.first.c_str(), at, m.times, m.read,
                 m.written);
  }
  moved().clear();
  static int64_t waits_before = 0;
  const int64_t now = waits, waited = now - std::exchange(waits_before, now);
  std::fprintf(file, "wait 0 %" PRId64 " 0 0\n", waited);
  std::fclose(file);
}
