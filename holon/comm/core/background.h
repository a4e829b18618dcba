// Communication in the background: a rank's second thread runs jobs while the first one computes.
//
//   auto work = comm::run_in_background([=] { comm::communicator(ranks).all_reduce(in, out, count, float32); });
//   ...                  // compute; in and out are the job's until
//   work.wait();         // throws what the job has thrown
//
// Jobs of a rank run one after the other in the order of the calls, in a Context and on their own channel: their
// collectives pair with those of the peers' jobs, never those that the ranks' own threads make meanwhile. So every rank
// of a group gives the same jobs in the same order. Time-outs and failures are those of any call, and come out of
// wait().
#pragma once

#include <functional>
#include <memory>
#include <vector>

namespace holon::comm {

// A job's handle, for the rank that gave the job. Cheap to copy.
class Work {
 public:
  Work() = default;  // of nothing: done

  bool done() const;
  // Returns when the job has ended, and throws what it threw, each time. What it communicated counts in stats() from
  // the first wait() on.
  void wait();

 private:
  struct State;
  friend class Background;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// The thread is made by the first call. The job keeps the call site (set_call_site()) of this call. Jobs that nobody
// has waited for when the rank ends may not be done.
Work run_in_background(std::function<void()> job);

// For upper layers that keep something in a rank's Context on which all ranks' calls depend: with each job `capture` is
// called on the rank's own thread, and what it returns, if anything, on the second one before the job. Returns true, to
// be called from a static initialiser.
bool inherit_in_background(std::function<void()> (*capture)());
// What they return for the current context.
std::vector<std::function<void()>> inherited_in_background();

// Whether the machine has something to run jobs with while ranks compute: a core for each rank in addition to those of
// its threads (num_threads(), at the first call), or a network. Alike on all ranks that have as many threads; false in
// a world of one. HOLON_OVERLAP=0 or 1 decides instead.
bool background_pays();

// Ends the rank's second thread: what it runs fails, what waits is dropped. To be called when the rank has ended.
void end_background();
// On a rank's second thread: end_background() waits for it.
bool background_must_end();

}  // namespace holon::comm
