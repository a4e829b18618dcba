// What ranks write, passed on by the launcher in whole lines. A reader that has stopped (a pager, a terminal that is
// held by Ctrl-S) holds up the ranks' output and never the launcher.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace holon::comm {

// A stream of the launcher's own, written by a thread.
class Output {
 public:
  explicit Output(int fd);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // from: who writes. A line that somebody else has begun is ended first.
  void write(const void* from, std::string_view text);
  // Whether there is so much to write that the ranks should wait.
  bool full() const;
  // Waits until all is written. False: nobody has taken a byte for so long.
  bool drain(std::chrono::milliseconds timeout);

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's too, which may be held in a write for ever
  const void* open_ = nullptr;    // whose line has not ended
};

// One stream of a rank.
class Lines {
 public:
  using Clock = std::chrono::steady_clock;

  // label: before each line.
  Lines(Output& output, std::string label) : output_(output), label_(std::move(label)) {}
  void add(std::string_view text);
  // What has no end of line is passed on in a while, as a prompt: when.
  std::optional<Clock::time_point> due() const;
  void pass_on_what_is_due(Clock::time_point now);
  void end() { end_begun(); }  // all of it, now
  // From now on Python's tracebacks are left out.
  void leave_out_tracebacks() { leave_out_tracebacks_ = true; }
  bool has_had_traceback() const { return had_traceback_; }

 private:
  void line(std::string_view text);
  void end_begun();
  bool belongs_to_traceback(std::string_view text);

  Output& output_;
  const std::string label_;
  std::string begun_;  // a line's part that has not been passed on
  Clock::time_point since_;
  bool in_line_ = false;  // part of a line has been passed on
  bool leave_out_tracebacks_ = false, in_traceback_ = false, had_traceback_ = false;
};

}  // namespace holon::comm
