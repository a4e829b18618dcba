#include "holon/boxing/live_log.h"

#include <chrono>
#include <exception>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"

namespace holon::boxing {

namespace {

struct Cause {
  const char* op = nullptr;
};

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void set_cause(const char* op) { Context::current().part<Cause>().op = op; }

void LiveLog::begin() {
  const int rank = Context::current().rank();
  if (!plan_->from()->placement.contains(rank) && !plan_->to()->placement.contains(rank)) {
    set_cause(nullptr);
    plan_ = nullptr;
    return;
  }
  exceptions_ = std::uncaught_exceptions();
  start_ns_ = now_ns();
}

void LiveLog::end() {
  const double us = static_cast<double>(now_ns() - start_ns_) * 1e-3;
  auto& cause = Context::current().part<Cause>().op;
  const char* op = cause ? cause : "to_global";
  cause = nullptr;
  auto &from = *plan_->from(), &to = *plan_->to();
  std::string where = from.placement == to.placement
      ? from.nd_sbp.str() + " -> " + to.nd_sbp.str() + " on " + to.placement.str()
      : from.str() + " -> " + to.str();
  std::string steps;
  for (auto& s : plan_->steps()) steps += (steps.empty() ? "" : ", ") + std::string(name(s.kind));
  std::string how = std::uncaught_exceptions() > exceptions_ ? "failed after" : "took";
  log::line(log::Channel::kBoxing,
            fmt::format("{}: {}, {} {}: {}; {} reads {} bytes; {} {:.3g} us, predicted {:.3g} us", op, where,
                        holon::name(plan_->dtype()), plan_->shape(), steps, rank_text(),
                        plan_->read_bytes(Context::current().rank()), how, us, plan_->predicted_s() * 1e6));
}

}  // namespace holon::boxing
