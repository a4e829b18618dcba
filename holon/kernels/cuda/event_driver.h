// What the allocators of device and of pinned memory have in common: the events that say when memory is free again.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <vector>

#include "holon/array/device_allocator.h"
#include "holon/base/blocking.h"
#include "holon/kernels/cuda/stream.h"

namespace holon::kernels::cuda {

// Called under the allocator's lock, except wait().
class EventDriver : public DeviceDriver {
 public:
  // Pre: the stream is of the current device.
  Event record(Stream stream) override {
    OutsideOfRecording outside;
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    auto& unused = unused_[device];
    cudaEvent_t event = nullptr;
    if (unused.empty()) {
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
      device_of_[event] = device;
    } else {
      event = unused.back();
      unused.pop_back();
    }
    check(cudaEventRecord(event, static_cast<cudaStream_t>(stream)), "cudaEventRecord");
    return event;
  }
  bool done(Event event) override {
    OutsideOfRecording outside;
    const cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (error == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    check(error, "cudaEventQuery");
    return true;
  }
  void wait(Event event) override {
    BlockingScope unlocked;
    OutsideOfRecording outside;
    check(cudaEventSynchronize(static_cast<cudaEvent_t>(event)), "cudaEventSynchronize");
  }
  // An event can be recorded again on streams of its own device only.
  void drop(Event event) override {
    auto* e = static_cast<cudaEvent_t>(event);
    unused_[device_of_.at(e)].push_back(e);
  }

 private:
  std::map<int, std::vector<cudaEvent_t>> unused_;
  std::map<cudaEvent_t, int> device_of_;
};

}  // namespace holon::kernels::cuda
