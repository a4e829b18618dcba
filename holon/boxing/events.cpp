#include "holon/boxing/events.h"

#include <set>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/log.h"
#include "holon/base/settings.h"
#include "holon/boxing/live_log.h"
#include "holon/boxing/planner.h"

namespace holon::boxing {

// Where a rank has no state yet, the environment decides.
std::atomic<bool> detail::any_was_strict = settings::text("HOLON_BOXING_POLICY") == "raise";

namespace {

constexpr size_t kRecent = 64;

struct RankState {
  Policy policy = parse_policy(settings::text("HOLON_BOXING_POLICY"));
  bool was_strict = policy == Policy::kRaise;
  ParameterPolicy parameters = parse_parameter_policy(settings::text("HOLON_PARAMETER_BOXING"));
  std::set<std::string> told;  // of parameters that were redistributed
  BoxingCounters counters;
  int inside = 0;                   // open guards
  std::vector<BoxingEvent> recent;  // a ring once it is full
  size_t oldest = 0;
};

RankState& state() { return Context::current().part<RankState>(); }

}  // namespace

Policy parse_policy(std::string_view text) {
  if (text == "silent") return Policy::kSilent;
  if (text == "warn") return Policy::kWarn;
  if (text == "raise") return Policy::kRaise;
  fail_value("boxing policy \"{}\": expected \"silent\", \"warn\" or \"raise\".", text);
}

ParameterPolicy parse_parameter_policy(std::string_view text) {
  if (text == "keep") return ParameterPolicy::kKeep;
  if (text == "gather") return ParameterPolicy::kGather;
  fail_value("parameter policy \"{}\": expected \"keep\" or \"gather\".", text);
}

namespace {

// Whoever splits a parameter counts on its memory, so that a copy is told: once for each line of the program, or for
// each op and layout where lines are not known, by one rank.
void tell_of_parameter(RankState& s, const BoxingEvent& e) {
  const bool speaks = e.from->placement.ranks()[0] == Context::current().rank();
  if (!speaks || s.parameters == ParameterPolicy::kGather || s.policy == Policy::kWarn) return;
  std::string key = e.op;
  key += e.site.empty() ? fmt::format("{}{}{}", e.from->str(), e.to->str(), e.shape) : e.site;
  if (!s.told.insert(std::move(key)).second) return;
  log::warn(fmt::format("a parameter is redistributed in each call: {}. No signature of the op avoids it for these "
                        "inputs. Convert another input by to_global, give the parameter another sbp, or allow it with "
                        "boxing.parameter_policy(\"gather\"). Reported once.",
                        e));
}

}  // namespace

std::string BoxingEvent::str() const {
  std::string where = from->placement == to->placement
      ? from->nd_sbp.str() + " -> " + to->nd_sbp.str() + " on " + to->placement.str()
      : from->str() + " -> " + to->str();
  return fmt::format("{}: {}{}, {} {}, {} bytes read by {}{}", op, where, inside ? " inside the op" : "",
                     holon::name(dtype), shape, bytes, rank_text(), site.empty() ? "" : ", at " + site);
}

BoxingEvent implicit_event(const char* op, const GlobalSpec* from, const GlobalSpec* to, const Dims& shape,
                           DType dtype) {
  return from == to ? BoxingEvent{op, from, to, shape, dtype} : implicit_event(op, plan(from, to, shape, dtype));
}

BoxingEvent implicit_event(const char* op, const Plan& plan) {
  BoxingEvent e{op, plan.from(), plan.to(), plan.shape(), plan.dtype()};
  e.bytes = plan.read_bytes(Context::current().rank());
  e.max_bytes = plan.max_read_bytes();
  if (auto line = blocking_hooks().where) {
    char text[256];
    line(text, sizeof text);
    e.site = text;
  }
  return e;
}

void record_implicit(const BoxingEvent& given) {
  auto& s = state();
  BoxingEvent event = given;
  event.inside |= s.inside > 0;
  const bool moves = event.max_bytes > 0, avoidable = moves && !event.inside;
  if (avoidable && s.policy == Policy::kRaise)
    throw RefusedBoxing(fmt::format(
        "{}. The op would have to move data implicitly, and the boxing policy is \"raise\": convert the input "
        "first with to_global, or allow it with boxing_policy(\"silent\").",
        event));
  ++s.counters.events;
  s.counters.moves += moves;
  s.counters.bytes += event.bytes;
  if (moves && event.parameter) {
    ++s.counters.parameters;
    tell_of_parameter(s, event);
  }
  if (s.recent.size() < kRecent) {
    s.recent.push_back(event);
  } else {
    s.recent[s.oldest] = event;
    s.oldest = (s.oldest + 1) % kRecent;
  }
  if (log::enabled(log::Channel::kBoxing) && !event.inside) set_cause(event.op);
  if (avoidable && s.policy == Policy::kWarn) log::warn("implicit boxing: " + event.str());
}

InsideGuard::InsideGuard() { ++state().inside; }
InsideGuard::~InsideGuard() { --state().inside; }

BoxingCounters boxing_counters() { return state().counters; }

void reset_boxing_counters() {
  auto& s = state();
  s.counters = {};
  s.recent.clear();
  s.oldest = 0;
}

std::vector<BoxingEvent> recent_events() {
  auto& s = state();
  std::vector<BoxingEvent> events;
  for (size_t i = 0; i < s.recent.size(); ++i) events.push_back(s.recent[(s.oldest + i) % s.recent.size()]);
  return events;
}

Policy boxing_policy() { return state().policy; }
void set_boxing_policy(Policy policy) {
  state().policy = policy;
  if (policy != Policy::kRaise) return;
  state().was_strict = true;
  detail::any_was_strict = true;
}
bool detail::this_rank_was_strict() { return state().was_strict; }

ParameterPolicy parameter_policy() { return state().parameters; }
void set_parameter_policy(ParameterPolicy policy) { state().parameters = policy; }

}  // namespace holon::boxing
