// A rank for a thread that it starts itself.
//
//   comm::ContextHandoff rank;  // in the rank's own thread
//   std::jthread worker([rank] {
//     auto scope = rank.enter();  // this thread is of the rank, too, to the end of the scope
//     ...
//   });
//
// Each has its own gradient mode, autocast and random state, and its own communicators: its collectives pair with those
// that the peers' threads with the same handoff make, never those of the ranks' own threads. So ranks whose threads
// communicate make their handoffs in the same order. Where ranks are processes, one thread may communicate without, the
// first that does so; all others may compute only.
#pragma once

#include <functional>
#include <memory>

#include "holon/base/context.h"

namespace holon::comm {

class ContextHandoff {
 public:
  // As long as it lives, its thread is of the rank.
  class Scope {
   public:
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class ContextHandoff;
    struct State;
    explicit Scope(std::shared_ptr<State> state);
    std::shared_ptr<State> state_;
    Context* before_;
  };

  // Of the current thread's rank. Connects a world of several processes (collective then). Errors: this thread has been
  // handed its rank itself.
  ContextHandoff();
  // Binds the calling thread. What the scope before left (random numbers drawn, calls made) goes on. Errors: another
  // thread is in a scope of this handoff.
  [[nodiscard]] Scope enter() const;

 private:
  std::shared_ptr<Scope::State> state_;
};

// For upper layers, in addition to inherit_in_background(): `capture` is called where a handoff is made, and what it
// returns on the thread that enters it first. Returns true, to be called from a static initialiser.
bool inherit_in_handoff(std::function<void()> (*capture)());

}  // namespace holon::comm
