// What the library does when the process forks. The child has one thread, its own memory (holon/array/storage.cpp)
// and no ranks to communicate with (holon/comm/core/world.h); for its parent nothing changes.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace holon {

namespace detail {
// Here, for the launcher, which links to little of the library and forks only to start others.
inline constinit std::atomic<uint32_t> fork_generation{0};
}  // namespace detail

// Whether what an object relies on, its threads and connections, is of the process that this one was forked from.
class ForkMark {
 public:
  bool inherited() const { return made_in_ != detail::fork_generation.load(std::memory_order_relaxed); }

 private:
  uint32_t made_in_ = detail::fork_generation.load(std::memory_order_relaxed);
};

// "rank 1 of 2 (process 4711)" in a process that was forked from one of several ranks; else empty.
const std::string& forked_from();

// A mutex of the whole process, for which a fork waits: the child finds it free, and what it guards whole. To be
// leaked, or static.
class ProcessMutex : public std::mutex {
 public:
  ProcessMutex();
};

// What a layer does around a fork: before it, when all process mutexes are held, and after it, in the parent before
// they are released, in the child when it is its only thread. nullptr: nothing. No hook throws.
struct ForkHooks {
  void (*before)() = nullptr;
  void (*in_parent)() = nullptr;
  void (*in_child)() = nullptr;
};
// Called in the order of these calls. Returns true, to be called from a static initialiser.
bool at_fork(ForkHooks hooks);

}  // namespace holon
