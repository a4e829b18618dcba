#include <memory>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/kernels/cuda/stream.h"

namespace holon::kernels::cuda {

namespace {

class CudaEvent final : public DeviceEvent {
 public:
  CudaEvent(int index, bool timing) : index_(index), timing_(timing) {
    use_device(index);
    check(cudaEventCreateWithFlags(&event_, timing ? cudaEventDefault : cudaEventDisableTiming), "cudaEventCreate");
  }
  // In the driver's own time: work before it may still go on. At the end of the process the driver may be gone, which
  // is not an error here.
  ~CudaEvent() override {
    cudaEventDestroy(event_);
    cudaGetLastError();
  }

  void record() override {
    check(cudaEventRecord(event_, use_device(index_)), "cudaEventRecord");
    recorded_ = true;
  }
  bool query() override {
    use_device(index_);
    note_host_wait(index_, "asking an event");
    const cudaError_t e = cudaEventQuery(event_);
    if (e == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    check(e, "cudaEventQuery");
    return true;
  }
  void synchronize() override {
    use_device(index_);
    note_host_wait(index_, "waiting for an event");
    {
      BlockingScope unlocked;
      check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    }
    device_runtime()->check(index_);
  }
  double elapsed_ms(const DeviceEvent& since) override {
    const auto& begin = static_cast<const CudaEvent&>(since);
    if (!recorded_ || !begin.recorded_)
      fail_runtime("the time between two events: {} was never recorded. Call record() on both.",
                   begin.recorded_ ? "the second" : "the first");
    if (!timing_ || !begin.timing_)
      fail_runtime("the time between two events: {} takes no times. Make both with enable_timing.",
                   begin.timing_ ? "the second" : "the first");
    if (index_ != begin.index_)
      fail_value("the time between two events: they are of cuda:{} and cuda:{}, whose clocks differ.", begin.index_,
                 index_);
    if (!query() || cudaEventQuery(begin.event_) != cudaSuccess) {
      cudaGetLastError();  // "not ready" would be taken for the next launch's
      fail_runtime("the time between two events: the work before them is not done yet. Call synchronize() first.");
    }
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin.event_, event_), "cudaEventElapsedTime");
    return ms;
  }

 private:
  const int index_;
  const bool timing_;
  bool recorded_ = false;
  cudaEvent_t event_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceEvent> make_event(int index, bool timing) { return std::make_unique<CudaEvent>(index, timing); }

}  // namespace holon::kernels::cuda
