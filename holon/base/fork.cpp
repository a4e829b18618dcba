#include "holon/base/fork.h"

#include <omp.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"

// Of LLVM's OpenMP runtime (and Intel's), which may also have been loaded in place of the one that was linked.
extern "C" __attribute__((weak)) void __kmpc_fork_call(...);

namespace holon {

namespace detail {
const Context* process_context();  // context.cpp; nullptr: not made yet
}  // namespace detail

namespace {

constexpr size_t kMostHooks = 16, kMostMutexes = 256;
// A thread that holds a mutex may wait for what the forking one has, as the interpreter's lock. Then the child gets a
// new mutex, and what that guards as it is.
constexpr auto kTimeout = std::chrono::milliseconds(200);

// Plain arrays, which static objects of other files may add to before this file's are made.
constinit std::atomic<size_t> mutex_count{0}, hook_count{0};
constinit ProcessMutex* mutexes[kMostMutexes] = {};
constinit bool held[kMostMutexes] = {};
constinit ForkHooks hooks[kMostHooks] = {};
constinit int parent = 0;

std::string& parent_text() {
  static auto* text = new std::string;
  return *text;
}

// libgomp's threads are gone in the child, which would wait for them in its first loop: they are ended before, and made
// again when they are needed. LLVM's runtime sees to that itself.
void end_idle_threads() {
  if (!__kmpc_fork_call) omp_pause_resource_all(omp_pause_soft);
}

// In any order, so never waiting for one while holding others.
void hold_all() {
  const size_t n = mutex_count.load();
  const auto give_up = std::chrono::steady_clock::now() + kTimeout;
  for (;;) {
    size_t got = 0;
    while (got < n && (!mutexes[got] || mutexes[got]->try_lock())) ++got;
    if (got == n) {
      std::fill_n(held, n, true);
      return;
    }
    for (size_t i = 0; i < got; ++i)
      if (mutexes[i]) mutexes[i]->unlock();
    if (std::chrono::steady_clock::now() > give_up) break;
    std::this_thread::yield();
  }
  for (size_t i = 0; i < n; ++i) held[i] = mutexes[i] && mutexes[i]->try_lock();
}

void before() {
  parent = getpid();
  end_idle_threads();
  hold_all();
  for (size_t i = 0; i < hook_count.load(); ++i)
    if (hooks[i].before) hooks[i].before();
}

void in_parent() {
  for (size_t i = 0; i < hook_count.load(); ++i)
    if (hooks[i].in_parent) hooks[i].in_parent();
  for (size_t i = 0; i < mutex_count.load(); ++i)
    if (std::exchange(held[i], false) && mutexes[i]) mutexes[i]->unlock();
}

void in_child() {
  detail::fork_generation.fetch_add(1);
  for (size_t i = 0; i < mutex_count.load(); ++i) {
    held[i] = false;
    if (mutexes[i]) new (static_cast<std::mutex*>(mutexes[i])) std::mutex;  // of a thread that is not here, maybe
  }
  Context* current = Context::exchange(nullptr);
  Context::exchange(current);
  const Context* rank = current && current->world_size() > 1 ? current : detail::process_context();
  if (rank && rank->world_size() > 1 && parent_text().empty())
    parent_text() = fmt::format("rank {} of {} (process {})", rank->rank(), rank->world_size(), parent);
  for (size_t i = 0; i < hook_count.load(); ++i)
    if (hooks[i].in_child) hooks[i].in_child();
  omp_set_num_threads(1);
}

// Handlers of a child run in the order of their registration. LLVM's runtime registers its own, which lets it start
// over, when it is first used: that comes before ours, which use it.
[[maybe_unused]] const bool registered = [] {
  (void)omp_get_max_threads();
  parent_text();
  return pthread_atfork(before, in_parent, in_child) == 0;
}();

}  // namespace

const std::string& forked_from() { return parent_text(); }

ProcessMutex::ProcessMutex() {
  const size_t at = mutex_count.fetch_add(1);
  HOLON_CHECK(at < kMostMutexes, "more than {} mutexes of the process", kMostMutexes);
  mutexes[at] = this;
}

bool at_fork(ForkHooks h) {
  const size_t at = hook_count.fetch_add(1);
  HOLON_CHECK(at < kMostHooks, "more than {} hooks of forks", kMostHooks);
  hooks[at] = h;
  return true;
}

}  // namespace holon
