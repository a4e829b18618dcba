// A trace of what every rank did and when, for Perfetto (ui.perfetto.dev) or chrome://tracing. HOLON_TRACE=file.json
// turns it on for a whole run; off, a span costs one load and a branch.
//
// Each process writes the events of its ranks to file.json.rankN, a line each, as they come; the last process to end,
// or the launcher, joins the parts to file.json. A rank that is killed leaves what it has written.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace holon::tracing {

namespace detail {
extern constinit std::atomic<bool> on;
void record(std::string_view name, const char* category, int64_t start_ns, std::string&& args);
int64_t now_ns();
}  // namespace detail

inline bool on() { return detail::on.load(std::memory_order_relaxed); }

// A slice of the trace, from here to the end of the scope, on this thread of this rank. Spans of a thread nest.
class Span {
 public:
  // Pre: name lives as long as the span, category as long as the process.
  Span(std::string_view name, const char* category) {
    if (on()) [[unlikely]]
      name_ = name, category_ = category, start_ns_ = detail::now_ns();
  }
  ~Span() {
    if (category_) [[unlikely]]
      detail::record(name_, category_, start_ns_, std::move(args_));
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  // Whether arguments are worth making.
  explicit operator bool() const { return category_ != nullptr; }
  // Shown with the slice. Pre: the span is on.
  void arg(std::string_view key, std::string_view value);
  void arg(std::string_view key, int64_t value);
  void arg(std::string_view key, double value);

 private:
  std::string_view name_;
  const char* category_ = nullptr;  // nullptr: the trace was off
  int64_t start_ns_ = 0;
  std::string args_;  // JSON, without the braces
};

// Begins and ends a trace of this process. A second start() without a stop() has no effect. Errors: there is no folder
// to write the file to (RuntimeError).
void start(const std::string& path);
// Writes what is left and joins the parts, unless other ranks' processes still write theirs. No effect where none runs.
void stop();

// Added to this process's times, so that those of several hosts agree.
void set_clock_offset_ns(int64_t offset);

// Joins what the processes of a run left at path.rank* to one valid JSON file at path, and removes the parts. False:
// one is still being written, or there are none; or, unless `all_ended` says that there will be no more, some are
// missing. What was joined since add_to_since stays in the file.
bool join_parts(const std::string& path, bool all_ended,
                std::filesystem::file_time_type add_to_since = std::filesystem::file_time_type::max());

}  // namespace holon::tracing
