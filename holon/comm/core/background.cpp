#include "holon/comm/core/background.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fork.h"
#include "holon/base/parallel.h"
#include "holon/base/settings.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/core/world.h"

namespace holon::comm {

struct Work::State {
  std::function<void()> job;
  std::vector<std::function<void()>> inherited;
  std::string site;
  uint64_t owner = 0;

  std::mutex mutex;
  std::condition_variable changed;
  const ForkMark mark = {};
  std::atomic<bool> done = false;
  std::exception_ptr error;
  CommStats stats;  // of the job, until a wait() has taken them
};

namespace {
thread_local const std::atomic<bool>* must_end = nullptr;

auto& captures() {
  static std::vector<std::function<void()> (*)()> list;
  return list;
}
}  // namespace

bool inherit_in_background(std::function<void()> (*capture)()) {
  captures().push_back(capture);
  return true;
}

std::vector<std::function<void()>> inherited_in_background() {
  std::vector<std::function<void()>> list;
  for (auto capture : captures())
    if (auto apply = capture()) list.push_back(std::move(apply));
  return list;
}

bool background_must_end() { return must_end && must_end->load(); }

class Background {
 public:
  Background() : world_(shared_world()) {
    context_ = Context::current().sibling();
    thread_ = std::thread([this] { run(); });
  }
  ~Background() { end(); }

  bool inherited() const { return mark_.inherited(); }

  void end() {
    if (!thread_.joinable()) return;
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    world_->block().wake_all();  // it may sleep in a group
    thread_.join();
  }

  Work give(std::function<void()> job) {
    auto state = std::make_shared<Work::State>();
    state->job = std::move(job);
    state->inherited = inherited_in_background();
    state->site = call_site();
    state->owner = call_owner();
    if (auto where = blocking_hooks().where; where && state->site.empty()) {
      char line[sizeof(CallDetails::site)];
      where(line, sizeof line);
      state->site = line;
    }
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(state);
    }
    changed_.notify_one();
    return Work(std::move(state));
  }

 private:
  void run() {
    must_end = &ended_;
    leave_host_language();
    set_num_threads(1);  // the rank's own thread has its cores
    ContextGuard guard(*context_);
    adopt_world(world_);
    set_channel(1);
    while (auto state = next()) {
      set_call_site(state->site.c_str());
      set_call_owner(state->owner);
      const CommStats before = stats();
      std::exception_ptr error;
      try {
        for (auto& apply : state->inherited) apply();
        state->job();
      } catch (...) {
        error = std::current_exception();
      }
      {
        std::lock_guard lock(state->mutex);
        state->error = error;
        state->stats = {stats().calls - before.calls, stats().bytes_read - before.bytes_read,
                        stats().bytes_received - before.bytes_received,
                        stats().device_messages - before.device_messages};
        state->done = true;
      }
      state->changed.notify_all();
    }
    context_.reset();  // while it still is the thread's, for the parts that look at it when they go
  }

  std::shared_ptr<Work::State> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || !queue_.empty(); });
    if (ended_) return nullptr;
    auto state = std::move(queue_.front());
    queue_.pop_front();
    return state;
  }

  const ForkMark mark_;
  const std::shared_ptr<World> world_;
  std::unique_ptr<Context> context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Work::State>> queue_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

namespace {

struct BackgroundPart {
  ~BackgroundPart() { leave_inherited(); }
  // Its thread is the parent's, and nobody may wait for it.
  void leave_inherited() {
    if (background && background->inherited()) (void)background.release();
  }

  std::unique_ptr<Background> background;
  int overlap = -1;  // what background_pays() has found
};

BackgroundPart& part() { return Context::current().part<BackgroundPart>(); }

}  // namespace

Work run_in_background(std::function<void()> job) {
  auto& p = part();
  p.leave_inherited();
  if (!p.background) {
    p.background = std::make_unique<Background>();
    // A process ends without destroying its context, and a thread must not run on into that. (Registered after the
    // world's own handler, so it comes first.)
    if (&Context::current() == &Context::of_process()) {
      static Background* of_process;
      static pid_t process;
      of_process = p.background.get();
      process = getpid();
      // Of a fork of a fork there may be several.
      std::atexit([] {
        if (getpid() == std::exchange(process, 0)) of_process->end();  // a fork has no such thread
      });
    }
  }
  return p.background->give(std::move(job));
}

bool Work::done() const { return !state_ || state_->done.load(); }

void Work::wait() {
  if (!state_) return;
  State& s = *state_;
  if (!s.done.load()) {
    BlockingScope unlocked;
    std::unique_lock lock(s.mutex);
    while (!s.changed.wait_for(lock, std::chrono::milliseconds(50), [&] { return s.done.load(); })) {
      lock.unlock();
      if (s.mark.inherited())
        fail_runtime("work in the background of process {} does not continue in process {}, which was forked from it. "
                     "Wait for it before the fork.",
                     getppid(), getpid());
      if (auto poll = blocking_hooks().poll) poll();
      lock.lock();
    }
  }
  s.job = nullptr;  // here, as what it holds may be the host language's
  std::lock_guard lock(s.mutex);
  CommStats& mine = stats();
  mine.calls += s.stats.calls;
  mine.bytes_read += s.stats.bytes_read;
  mine.bytes_received += s.stats.bytes_received;
  mine.device_messages += s.stats.device_messages;
  s.stats = {};
  if (s.error) std::rethrow_exception(s.error);
}

bool background_pays() {
  if (std::string wanted = settings::text("HOLON_OVERLAP"); !wanted.empty())
    return settings::flag("HOLON_OVERLAP") && Context::current().world_size() > 1;
  auto& p = part();
  if (p.overlap < 0) {
    p.overlap = 0;
    if (Context::current().world_size() > 1) {
      World& w = world();
      p.overlap = w.several_hosts() || w.cores_here() >= w.ranks_here() * (num_threads() + 1);
    }
  }
  return p.overlap;
}

void end_background() {
  part().leave_inherited();
  part().background.reset();
}

}  // namespace holon::comm
