// HOLON_LOG=boxing: every boxing, explicit or implicit, in one line when it is done.
#pragma once

#include <cstdint>

#include "holon/base/log.h"
#include "holon/boxing/planner.h"

namespace holon::boxing {

// "matmul: S(0) -> B on placement(...), float32 [4, 5]: all_gather; rank 0 of 2 reads 40 bytes; took 3.1 us, predicted
// 2.6 us".
class LiveLog {
 public:
  explicit LiveLog(const Plan& plan) : plan_(log::enabled(log::Channel::kBoxing) ? &plan : nullptr) {
    if (plan_) [[unlikely]]
      begin();
  }
  ~LiveLog() {
    if (plan_) [[unlikely]]
      end();
  }
  LiveLog(const LiveLog&) = delete;
  LiveLog& operator=(const LiveLog&) = delete;

 private:
  void begin();
  void end();
  const Plan* plan_;
  int64_t start_ns_ = 0;
  int exceptions_ = 0;
};

// The op that inserts this rank's next boxing by itself; lives as long as the process.
void set_cause(const char* op);

}  // namespace holon::boxing
