// What a rank has been doing, for the errors of the others: its last collectives, always recorded, and, when somebody
// waits for it in vain, its stack, which it writes in a signal handler.
//
// A report is in the control block: one rank writes it, all of them read it.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "holon/array/dims.h"
#include "holon/array/dtype.h"

namespace holon::comm {

struct alignas(8) CallNote {
  uint64_t number = 0;  // of the rank's calls, from 1; 0 while it is written
  uint64_t call = 0;    // of the group, from 1
  uint64_t bytes = 0;
  int64_t shape[4] = {};  // its first axes
  int32_t group = 0;      // table index
  uint8_t axes = 0;
  DType dtype = {};
  char op[46] = "";
};

static_assert(std::is_trivially_copyable_v<CallNote>);

struct alignas(64) RankReport {
  static constexpr uint64_t kCalls = 8;

  std::atomic<int32_t> pid, thread;  // thread 0: nobody answers
  std::atomic<uint32_t> state;       // 0 never asked, 1 asked, 2 answered
  std::atomic<int64_t> asked_ns;
  std::atomic<char> found;         // in which state the first who asked found it: the answer itself makes it run
  char c_stack[2000];              // lines of symbols, innermost first
  char host_stack[2000];           // what BlockingHooks::dump_stack wrote
  std::atomic<uint32_t> troubled;  // 0 no, 1 being written, 2 trouble is readable
  char trouble[500];
  std::atomic<uint64_t> calls;  // recorded so far
  CallNote recent[kCalls];

  // Only the rank itself, on any of its threads; sets the number.
  void add(CallNote note);
  // Its last calls, the latest first; fewer where it goes on meanwhile.
  std::vector<CallNote> last_calls(size_t most) const;
};

// Makes this thread answer for its rank until stop_answering(). A process whose program handles the signal itself
// (SIGRTMIN + 7) does not answer.
void answer_for(RankReport& report);
void stop_answering(RankReport& report);

// Something that may be why this process's rank does not come to a later call, e.g. an exception in another thread.
// Only the first one is kept. No effect where ranks are threads.
void note_trouble(std::string_view text);

// For each rank a sentence on where it is, e.g. "is stopped; kill -CONT 123 lets it go on" or "is at train.py:31 in
// step < train.py:60 in <module>". All are asked at once; who has not answered within limit_s is described by what
// the system knows.
std::vector<std::string> ask_where(std::span<RankReport* const> reports, double limit_s);

}  // namespace holon::comm
