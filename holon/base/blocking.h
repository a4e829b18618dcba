// A scope in which this thread may wait or compute for long without touching the host language. The Python package
// installs hooks that release the interpreter's lock; in a C++ program nothing happens.
#pragma once

#include <cstddef>
#include <cstdint>

namespace holon {

struct BlockingHooks {
  void* (*enter)() = nullptr;  // returns what leave() needs
  void (*leave)(void*) = nullptr;
  // Called now and then during a long wait, between enter and leave. May throw, to end the wait (Ctrl-C).
  void (*poll)() = nullptr;
  // Writes where the user's program is, e.g. "train.py:31", ended by a 0; "" where it is not known.
  void (*where)(char* text, size_t size) = nullptr;
  // A number for the place that `where` describes, quicker than its text; 0 where it is not known.
  uint64_t (*place)() = nullptr;
  // Writes the name of the function that this line is in, with its class: "Block.forward".
  void (*function)(char* text, size_t size) = nullptr;
  // Writes this thread's stack in the host language to a file. Called in a signal handler: no locks, no allocation.
  void (*dump_stack)(int fd) = nullptr;
};

void set_blocking_hooks(BlockingHooks hooks);
const BlockingHooks& blocking_hooks();  // none on a thread that leave_host_language() was called on
// From now on this thread never touches the host language: it is the core's own, and may outlive the interpreter.
void leave_host_language();

class BlockingScope {
 public:
  explicit BlockingScope(bool active = true) {
    if (active && blocking_hooks().enter) state_ = blocking_hooks().enter();
  }
  ~BlockingScope() {
    if (state_) blocking_hooks().leave(state_);
  }
  BlockingScope(const BlockingScope&) = delete;
  BlockingScope& operator=(const BlockingScope&) = delete;

 private:
  void* state_ = nullptr;
};

}  // namespace holon
