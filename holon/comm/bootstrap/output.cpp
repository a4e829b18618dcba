#include "holon/comm/bootstrap/output.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "holon/base/index.h"

namespace holon::comm {

namespace {

constexpr size_t kFull = 4 << 20, kLongestLine = 64 << 10;
constexpr auto kPromptAfter = std::chrono::milliseconds(500);

}  // namespace

struct Output::State {
  explicit State(int to) : fd(to) {}
  const int fd;
  std::mutex mutex;
  std::condition_variable changed;
  std::string waiting;   // to be written
  size_t taken = 0;      // bytes, ever
  bool writing = false;  // something that is in `waiting` no more
  bool over = false;

  static void run(std::shared_ptr<State> s) {
    std::string text;
    std::unique_lock lock(s->mutex);
    for (;;) {
      s->changed.wait(lock, [&] { return s->over || !s->waiting.empty(); });
      if (s->waiting.empty()) return;
      text.clear();
      text.swap(s->waiting);
      s->writing = true;
      for (size_t at = 0; at < text.size();) {
        lock.unlock();
        const ssize_t n = ::write(s->fd, text.data() + at, text.size() - at);
        const int error = errno;
        if (n < 0 && error == EAGAIN) {  // whoever has the other end may have made it so
          pollfd ready{s->fd, POLLOUT, 0};
          poll(&ready, 1, 1000);
        }
        lock.lock();
        if (n < 0 && error != EAGAIN && error != EINTR) break;  // nobody reads any more
        if (n > 0) at += to_size(n), s->taken += to_size(n);
        s->changed.notify_all();
      }
      s->writing = false;
      s->changed.notify_all();
    }
  }
};

Output::Output(int fd) : state_(std::make_shared<State>(fd)) {
  // Signals are for the launcher's own thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(&State::run, state_).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Output::~Output() {
  std::lock_guard lock(state_->mutex);
  state_->over = true;
  state_->changed.notify_all();
}

void Output::write(const void* from, std::string_view text) {
  if (text.empty()) return;
  std::lock_guard lock(state_->mutex);
  if (open_ && open_ != from) state_->waiting += '\n';
  state_->waiting += text;
  open_ = text.back() == '\n' ? nullptr : from;
  state_->changed.notify_all();
}

bool Output::full() const {
  std::lock_guard lock(state_->mutex);
  return state_->waiting.size() > kFull;
}

bool Output::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(state_->mutex);
  auto done = [&] { return state_->waiting.empty() && !state_->writing; };
  while (!done()) {
    const size_t before = state_->taken;
    if (!state_->changed.wait_for(lock, timeout, [&] { return done() || state_->taken != before; })) return false;
  }
  return true;
}

void Lines::add(std::string_view text) {
  if (begun_.empty()) since_ = Clock::now();
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) {
      begun_ += text;
      if (begun_.size() > kLongestLine) end_begun();
      return;
    }
    begun_ += text.substr(0, end + 1);
    text.remove_prefix(end + 1);
    line(begun_);
    begun_.clear();
    since_ = Clock::now();
  }
}

void Lines::line(std::string_view text) {
  if (!in_line_ && leave_out_tracebacks_ && belongs_to_traceback(text)) return;
  if (text.starts_with("Traceback (most recent call last):")) had_traceback_ = true;
  output_.write(this, in_line_ || label_.empty() ? std::string(text) : label_ + std::string(text));
  in_line_ = text.back() != '\n';
}

// Indented lines and empty ones, up to the one that names the exception.
bool Lines::belongs_to_traceback(std::string_view text) {
  if (text.starts_with("Traceback (most recent call last):")) return in_traceback_ = true;
  if (text.starts_with("During handling of the above exception") || text.starts_with("The above exception was"))
    return true;
  if (!in_traceback_) return false;
  in_traceback_ = text[0] == ' ' || text[0] == '\n';
  return true;
}

void Lines::end_begun() {
  if (begun_.empty()) return;
  line(begun_);
  begun_.clear();
}

std::optional<Lines::Clock::time_point> Lines::due() const {
  if (begun_.empty()) return std::nullopt;
  return since_ + kPromptAfter;
}

void Lines::pass_on_what_is_due(Clock::time_point now) {
  if (auto at = due(); at && *at <= now) end_begun();
}

}  // namespace holon::comm
