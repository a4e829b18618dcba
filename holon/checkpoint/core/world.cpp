#include "holon/checkpoint/core/world.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/base/settings.h"
#include "holon/comm/core/communicator.h"

namespace holon::checkpoint {

namespace {

comm::Communicator& whole_world() {
  std::vector<int> ranks(to_size(Context::current().world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return comm::communicator(ranks);
}

}  // namespace

std::vector<std::string> share(const char* op, const std::string& mine) {
  int n = Context::current().world_size();
  if (n == 1) return {mine};
  auto& world = whole_world();
  std::vector<uint64_t> sizes(to_size(n));
  uint64_t size = mine.size();
  world.all_gather_bytes({op}, &size, sizeof size, sizes.data());
  std::vector<std::string> texts(sizes.size());
  uint64_t largest = *std::max_element(sizes.begin(), sizes.end());
  if (largest == 0) return texts;
  std::string padded = mine, all(largest * sizes.size(), '\0');
  padded.resize(largest);
  world.all_gather_bytes({op}, padded.data(), largest, all.data());
  for (size_t r = 0; r < texts.size(); ++r) texts[r] = all.substr(r * largest, sizes[r]);
  return texts;
}

std::string share_from(const char* op, int root, const std::string& mine) {
  if (Context::current().world_size() == 1) return mine;
  auto& world = whole_world();
  auto size = static_cast<int64_t>(mine.size());
  world.broadcast(&size, 1, int64, root);
  std::string text = mine;
  text.resize(to_size(size));
  if (size > 0) world.broadcast(text.data(), size, uint8, root);
  return text;
}

namespace {

using Clock = std::chrono::steady_clock;

// The first letter of what a rank says of its step; the rest is a result or a reason.
enum Status : char { kBusy = 'b', kDone = 'd', kFailed = 'f', kInterrupted = 'i', kSuperseded = 's' };

// So little is read or written at once on the rank's own thread.
constexpr size_t kLittle = size_t{1} << 20;
constexpr int kTimeoutFactor = 10;  // times the collectives' time-out
constexpr auto kSlice = std::chrono::milliseconds(50);

// One call of together() on a rank. Until all are done the ranks exchange what they say, again and again.
class Session {
 public:
  explicit Session(const char* op) : op_(op), timeout_s_(settings::number("HOLON_COMM_TIMEOUT_S")), before_(current) {
    current = this;
    set_next();
  }
  ~Session() { current = before_; }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  static thread_local Session* current;

  // The others know of the failure that is on its way, or cannot be told.
  bool over() const { return over_; }
  bool interrupted() const { return interrupted_; }

  // Says that this rank is busy, if it is time to. Errors: another one has failed.
  void beat() {
    if (Clock::now() >= next_) exchange(std::string(1, kBusy));
  }

  // Returns what all ranks say when none is busy.
  std::vector<std::string> finish(const std::string& mine) {
    for (;;) {
      auto all = exchange(mine);
      if (std::none_of(all.begin(), all.end(), [](auto& text) { return text[0] == kBusy; })) return all;
    }
  }

  // beat(), and the host language may end the step.
  void heartbeat() {
    if (auto poll = blocking_hooks().poll) try {
        poll();
      } catch (...) {
        interrupted_ = true;
        throw;
      }
    beat();
  }

  void run(const std::function<void()>& io) {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::exception_ptr error, stopped;
    std::thread thread;
    try {
      thread = std::thread([&, threads = num_threads()] {
        leave_host_language();
        set_num_threads(threads);
        try {
          io();
        } catch (...) {
          error = std::current_exception();
        }
        std::lock_guard lock(mutex);
        done = true;
        changed.notify_one();
      });
    } catch (const std::system_error&) {  // no thread is to be had: then the others wait as they do elsewhere
      io();
      return beat();
    }
    {
      BlockingScope unlocked;
      const auto start = Clock::now();
      std::unique_lock lock(mutex);
      while (!changed.wait_for(lock, kSlice, [&] { return done; })) {
        if (stopped) continue;  // what io uses is the caller's
        lock.unlock();
        try {
          look(start);
        } catch (...) {
          stopped = std::current_exception();
        }
        lock.lock();
      }
    }
    thread.join();
    if (stopped) std::rethrow_exception(stopped);
    if (error) std::rethrow_exception(error);
    beat();
  }

 private:
  void look(Clock::time_point start) {
    heartbeat();
    if (double s = std::chrono::duration<double>(Clock::now() - start).count(); s > kTimeoutFactor * timeout_s_)
      fail_runtime("the file system has not answered for {:.0f} s. Is it still there?", s);
  }

  void set_next() {
    next_ = Clock::now() + std::chrono::milliseconds(static_cast<int>(std::min(timeout_s_ / 4, 1.0) * 1000));
  }

  // Errors: share()'s; a rank says that it has failed.
  std::vector<std::string> exchange(const std::string& mine) {
    over_ = true;
    auto all = share(op_, mine);
    for (Status status : {kFailed, kInterrupted})
      for (size_t r = 0; r < all.size(); ++r) {
        if (all[r].empty() || all[r][0] != status) continue;
        if (status == kInterrupted) fail_runtime("{}: rank {} was interrupted.", op_, r);
        throw StepFailed(static_cast<ErrorKind>(all[r][1]), fmt::format("{}: rank {}: {}", op_, r, all[r].substr(2)));
      }
    over_ = false;
    set_next();
    return all;
  }

  const char* op_;
  const double timeout_s_;
  Session* const before_;
  Clock::time_point next_;
  bool over_ = false, interrupted_ = false;
};

thread_local Session* Session::current = nullptr;

std::string failure(ErrorKind kind, std::string_view text) {
  return fmt::format("{:c}{:c}{}", static_cast<char>(kFailed), static_cast<char>(kind), text);
}

std::string describe(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Superseded& e) {
    return std::string(1, kSuperseded) + e.what();
  } catch (const Error& e) {
    return failure(e.kind(), e.what());
  } catch (const std::exception& e) {
    return failure(ErrorKind::kRuntime, e.what());
  } catch (...) {
    return failure(ErrorKind::kRuntime, "an error of an unknown kind");
  }
}

}  // namespace

std::vector<std::string> results_together(const char* op, const std::function<std::string()>& step) {
  if (Context::current().world_size() == 1) try {
      return {step()};
    } catch (const Superseded&) {
      throw;
    } catch (const Error& e) {
      throw StepFailed(e.kind(), e.what());
    }
  Session session(op);
  std::string mine;
  std::exception_ptr error;
  try {
    mine = std::string(1, kDone) + step();
  } catch (...) {
    if (session.over()) throw;
    error = std::current_exception();
    mine = session.interrupted() ? std::string(1, kInterrupted) : describe(error);
  }
  std::vector<std::string> all;
  try {
    all = session.finish(mine);
  } catch (...) {
    if (session.interrupted()) std::rethrow_exception(error);
    throw;
  }
  for (auto& text : all)
    if (text[0] == kSuperseded) throw Superseded(ErrorKind::kRuntime, text.substr(1));
  for (auto& text : all) text.erase(0, 1);
  return all;
}

void together(const char* op, const std::function<void()>& step) {
  results_together(op, [&] {
    step();
    return std::string();
  });
}

void run_io(size_t bytes, const std::function<void()>& io) {
  Session* session = Session::current;
  if (!session) return io();
  if (bytes > kLittle) return session->run(io);
  io();
  session->beat();
}

void heartbeat() {
  if (Session* session = Session::current) return session->heartbeat();
  if (auto poll = blocking_hooks().poll) poll();
}

}  // namespace holon::checkpoint
