// The order of a rank's work on a device: a queue, and a thread that does what is in it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>

namespace toy {

inline constexpr int kDevices = 4;

class Stream {
 public:
  Stream();

  // Behind all work so far. Returns at once.
  void put(std::function<void()> work);
  // Of what has been put last.
  uint64_t position();
  bool done(uint64_t position);
  void wait(uint64_t position);
  void wait() { wait(position()); }
  // Raises what work that is done has found wrong, once.
  void check();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  uint64_t put_ = 0, done_ = 0;
  std::exception_ptr error_;
};

// The current rank's stream of a device, made on first use. Errors: the process was forked from one that has streams.
Stream& stream(int index);
void wait_for_all_streams(int index);

}  // namespace toy
