#include "toy/stream.h"

#include <array>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fork.h"

namespace toy {

namespace {

// Of the process; never destroyed, as memory is freed in the order of streams until the very end.
struct Streams {
  std::mutex mutex;
  std::array<std::vector<Stream*>, kDevices> all, free;  // free: of ranks that have ended
  const holon::ForkMark mark;
};
Streams& streams() {
  static auto* s = new Streams;
  return *s;
}

// A rank's own. When a rank that is a thread ends, the next one takes them over.
struct RankStreams {
  std::array<Stream*, kDevices> of{};
  ~RankStreams() {
    std::lock_guard lock(streams().mutex);
    for (size_t i = 0; i < of.size(); ++i)
      if (of[i]) streams().free[i].push_back(of[i]);
  }
};

}  // namespace

Stream::Stream() { std::thread(&Stream::run, this).detach(); }

void Stream::run() {
  holon::leave_host_language();
  holon::Context context(0, 1, 0, 1);  // kernels know nothing of ranks
  holon::ContextGuard guard(context);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !queue_.empty(); });
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    work = nullptr;
    lock.lock();
    if (error && !error_) error_ = error;
    ++done_;
    changed_.notify_all();
  }
}

void Stream::put(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  ++put_;
  changed_.notify_all();
}

uint64_t Stream::position() {
  std::lock_guard lock(mutex_);
  return put_;
}

bool Stream::done(uint64_t position) {
  std::lock_guard lock(mutex_);
  return done_ >= position;
}

void Stream::wait(uint64_t position) {
  holon::BlockingScope unlocked;  // Python's other threads go on
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= position; });
}

void Stream::check() {
  std::exception_ptr error;
  {
    std::lock_guard lock(mutex_);
    std::swap(error, error_);
  }
  if (error) std::rethrow_exception(error);
}

Stream& stream(int index) {
  const auto i = static_cast<size_t>(index);
  if (streams().mark.inherited())
    holon::fail_runtime(
        "toy devices cannot be used in a process that was forked from one that uses them ({}). Start it "
        "by spawn.",
        holon::rank_text());
  Stream*& own = holon::Context::current().part<RankStreams>().of[i];
  if (own) return *own;
  std::lock_guard lock(streams().mutex);
  if (auto& free = streams().free[i]; !free.empty()) {
    own = free.back();
    free.pop_back();
  } else {
    streams().all[i].push_back(own = new Stream);
  }
  return *own;
}

void wait_for_all_streams(int index) {
  std::vector<Stream*> all;
  {
    std::lock_guard lock(streams().mutex);
    all = streams().all[static_cast<size_t>(index)];
  }
  for (Stream* s : all) s->wait();
}

}  // namespace toy
