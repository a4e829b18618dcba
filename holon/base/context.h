// What a rank has of its own. Ranks may be processes or threads, so nothing that belongs to a rank is a process-wide
// variable: it hangs off the Context that the current thread points to. Not thread-safe: a context is used by one
// thread at a time, and a rank that works in several threads has one for each.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace holon {

class Tracer;

class Context {
 public:
  Context(int rank, int world_size, int local_rank, int local_world_size)
      : rank_(rank), world_size_(world_size), local_rank_(local_rank), local_world_size_(local_world_size) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context();

  // The context that this thread works in. That of a thread which no run_ranks() started and which took no rank
  // (comm::ContextHandoff) is of the process's own rank: of_process() for the first thread that asks, one of its own
  // for every other.
  static Context& current() {
    if (!current_) [[unlikely]]
      current_ = &of_thread();
    return *current_;
  }
  // That of the process's own rank, which RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE describe (Open MPI's and
  // SLURM's names are read too).
  static Context& of_process();
  // Another context of the same rank, for another thread: with nothing in it yet.
  std::unique_ptr<Context> sibling() const;
  // Binds this thread to a context and returns the one before; nullptr represents the process's own.
  static Context* exchange(Context* context) {
    Context* before = current_;
    current_ = context;
    return before;
  }

  // This rank's number and the number of ranks, in the world and on this host.
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  int local_rank() const { return local_rank_; }
  int local_world_size() const { return local_world_size_; }
  // How many siblings there were when this one was made, among those of the rank.
  int number() const { return number_; }
  void set_number(int number) { number_ = number; }
  // True where the ranks of this world are threads of one process.
  bool ranks_are_threads() const { return threads_; }
  void set_ranks_are_threads() { threads_ = true; }
  // Whether a region of automatic casts is open (holon/dispatch/autocast.h). A flag here, since every op asks.
  bool autocast() const { return autocast_; }
  void set_autocast(bool on) { autocast_ = on; }
  // Whether sums are taken in an order that no layout changes (holon/dispatch/layout_free.h).
  bool layout_free() const { return layout_free_; }
  void set_layout_free(bool on) { layout_free_ = on; }
  // Who records ops instead of running them (holon/tensor/tracer.h); nullptr: they run.
  Tracer* tracer() const { return tracer_; }
  void set_tracer(Tracer* tracer) { tracer_ = tracer; }

  // The part of a context that belongs to an upper layer, made on first use: struct with a default constructor.
  template <class T>
  T& part() {
    static const size_t index = next_index();
    if (index >= parts_.size()) [[unlikely]]
      parts_.resize(index + 1);
    auto& slot = parts_[index];
    if (!slot) [[unlikely]]
      slot = std::shared_ptr<void>(new T(), [](void* p) { delete static_cast<T*>(p); });
    return *static_cast<T*>(slot.get());
  }

 private:
  static size_t next_index();
  static Context& of_thread();
  static constinit thread_local Context* current_;  // constinit: read without asking whether it has been initialised

  int rank_, world_size_, local_rank_, local_world_size_;
  int number_ = 0;
  bool threads_ = false, autocast_ = false, layout_free_ = false;
  Tracer* tracer_ = nullptr;
  std::vector<std::shared_ptr<void>> parts_;
};

// Binds the current thread to a context for a scope.
class ContextGuard {
 public:
  explicit ContextGuard(Context& context) : before_(Context::exchange(&context)) {}
  ~ContextGuard() { Context::exchange(before_); }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  Context* before_;
};

// "rank 1 of 4", for messages.
std::string rank_text();

}  // namespace holon
