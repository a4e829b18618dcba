// Boxing that an op inserts by itself is an event: counted always, and silent, logged or an error as the scope says.
// So is what kernels exchange with other ranks themselves, which is counted only.
// Everything here belongs to the rank of the current thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "holon/array/dtype.h"
#include "holon/base/error.h"
#include "holon/boxing/planner.h"
#include "holon/global/spec.h"

namespace holon::boxing {

// What happens on a boxing that an op inserts by itself.
enum class Policy : uint8_t { kSilent, kWarn, kRaise };
// "silent", "warn", "raise". Errors: another text.
Policy parse_policy(std::string_view text);

// Which parameters ops redistribute by themselves where that reads other ranks' memory: those that no signature of the
// op does without, or whichever come cheaper to redistribute than the other inputs.
enum class ParameterPolicy : uint8_t { kKeep, kGather };
// "keep", "gather". Errors: another text.
ParameterPolicy parse_parameter_policy(std::string_view text);

// One boxing that an op inserted.
struct BoxingEvent {
  const char* op;  // lives as long as the process
  const GlobalSpec* from;
  const GlobalSpec* to;
  Dims shape;
  DType dtype;
  int64_t bytes = 0;      // that this rank reads from its peers
  int64_t max_bytes = 0;  // that any rank does, so that all ranks judge alike
  std::string site = {};  // the user's file and line, where the host language knows it
  bool parameter = false;
  // The op's kernel reads the input in this layout itself (attention over a split sequence, exchanged experts): no
  // conversion before it would avoid that, so that policies let it through. bytes: all that the kernel has read.
  bool inside = false;
  std::string str() const;
};

// The event of a boxing by its plan, which is looked up if it is not given.
BoxingEvent implicit_event(const char* op, const GlobalSpec* from, const GlobalSpec* to, const Dims& shape,
                           DType dtype);
BoxingEvent implicit_event(const char* op, const Plan& plan);

// A boxing that the policy does not allow. in_backward: the message says so, and what to change.
struct RefusedBoxing final : Error {
  explicit RefusedBoxing(std::string message, bool said = false)
      : Error(ErrorKind::kRuntime, std::move(message)), in_backward(said) {}
  bool in_backward;
};

// To be called before the boxing, on every rank. Errors (RefusedBoxing): under Policy::kRaise, if any rank reads bytes
// and the event is not inside a kernel.
void record_implicit(const BoxingEvent& event);

// What this rank's ops have inserted since the last reset.
struct BoxingCounters {
  int64_t events = 0;      // mere views and zeros included
  int64_t moves = 0;       // events in which some rank reads from another
  int64_t bytes = 0;       // that this rank has read
  int64_t parameters = 0;  // moves of parameters
};
// This rank's counters.
BoxingCounters boxing_counters();
void reset_boxing_counters();
// The last events, oldest first; at most 64.
std::vector<BoxingEvent> recent_events();

// The policy of this rank.
Policy boxing_policy();
void set_boxing_policy(Policy policy);
namespace detail {
extern std::atomic<bool> any_was_strict;  // of the ranks of this process
bool this_rank_was_strict();
}  // namespace detail
// Whether it is kRaise, or has been before.
inline bool was_strict() {
  return detail::any_was_strict.load(std::memory_order_relaxed) && detail::this_rank_was_strict();
}

// Under kKeep, a parameter that is redistributed nevertheless is told once for each line of the program.
ParameterPolicy parameter_policy();
void set_parameter_policy(ParameterPolicy policy);

// Sets the policy for parameters until the end of its scope.
class ParameterPolicyGuard {
 public:
  explicit ParameterPolicyGuard(ParameterPolicy policy) : before_(parameter_policy()) { set_parameter_policy(policy); }
  // "keep" or "gather".
  explicit ParameterPolicyGuard(const std::string& policy) : ParameterPolicyGuard(parse_parameter_policy(policy)) {}
  ~ParameterPolicyGuard() { set_parameter_policy(before_); }
  ParameterPolicyGuard(const ParameterPolicyGuard&) = delete;
  ParameterPolicyGuard& operator=(const ParameterPolicyGuard&) = delete;

 private:
  ParameterPolicy before_;
};

// Until the end of its scope ops redistribute what an op made of ops computes on the way, such as a loss's sums of
// rows: events are inside that op, for no conversion of its inputs would avoid them.
class InsideGuard {
 public:
  InsideGuard();
  ~InsideGuard();
  InsideGuard(const InsideGuard&) = delete;
  InsideGuard& operator=(const InsideGuard&) = delete;
};

// Sets the policy until the end of its scope.
class BoxingPolicyGuard {
 public:
  explicit BoxingPolicyGuard(Policy policy) : before_(boxing_policy()) { set_boxing_policy(policy); }
  // "silent", "warn" or "raise".
  explicit BoxingPolicyGuard(const std::string& policy) : BoxingPolicyGuard(parse_policy(policy)) {}
  ~BoxingPolicyGuard() { set_boxing_policy(before_); }
  BoxingPolicyGuard(const BoxingPolicyGuard&) = delete;
  BoxingPolicyGuard& operator=(const BoxingPolicyGuard&) = delete;

 private:
  Policy before_;
};

}  // namespace holon::boxing
