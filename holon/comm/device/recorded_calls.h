// Collectives between devices that are recorded (DeviceRuntime::begin_capture) and made by each launch of the
// recording.
//
// NCCL takes a call for recorded, or not, on all members of its group alike, and wants a recording launched by all
// ranks that it was recorded with (its user guide, "Using NCCL with CUDA Graphs"): who records sees to that. Recorded
// and other calls of a group may follow each other in any order.
#pragma once

#include <string>
#include <vector>

#include "holon/array/device_runtime.h"
#include "holon/comm/device/device_communicator.h"

namespace holon::comm {

class RecordedCalls {
 public:
  // While it lives, calls of this rank's device communicators are recorded here and not counted as made. All of them
  // must be joined before it begins and before the recording ends (join_device_communication).
  class Scope {
   public:
    explicit Scope(RecordedCalls& calls);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    RecordedCalls& calls_;
    const CommStats before_;
  };

  bool any() const { return !groups_.empty(); }
  // Launches the recording. Its calls are counted, and watched over as others are: what does not come to an end is
  // raised by the rank's next look, naming the first of them. Errors: as a call.
  void launch(DeviceGraph& graph);

  void note(DeviceCommunicator& group, const CallInfo& info);  // by a communicator

 private:
  struct Of {
    DeviceCommunicator* group;
    std::string op;
    DType dtype;
    Dims shape;
    int calls = 0;
  };
  std::vector<Of> groups_;
  CommStats made_;  // by one launch
};

// Whether the setting of some check or log wants each call to pass through the host, so that none can be recorded.
bool calls_need_the_host();

}  // namespace holon::comm
