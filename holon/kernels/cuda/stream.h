// The current rank's stream, and errors of the CUDA libraries.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "holon/array/array.h"
#include "holon/array/device_runtime.h"
#include "holon/kernels/cuda/faults.h"

namespace holon::kernels::cuda {

// The number of this backend's type of devices, and what it does for them.
DeviceType device_type();
DeviceRuntime* device_runtime();

// Makes the device current on this thread and returns the rank's stream of it, in the order of which all of its work
// is done. Holds for the launches that follow.
cudaStream_t use_device(int index);
inline cudaStream_t use_device_of(const Array& a) { return use_device(a.device.index); }
// That of the last use_device() on this thread, and its device.
cudaStream_t stream();
int device_index();
// A device that some thread of the process has used, -1 for none.
int device_in_use();
// How many blocks fit on the current device at once, for grids that stride over more.
int multiprocessors();
// What a block may have of shared memory on the current device, where its kernel asks for it.
size_t shared_bytes_of_block();
// Asks for it: blocks of the kernel have up to so many bytes on the current device. Quick where they have already.
void allow_shared_bytes(const void* kernel, size_t bytes);
// All memory of the current device.
size_t memory_of_device();

// A stream next to the rank's, for communication in parallel with computation. Each communicator has its own: sums
// along one axis of ranks do not queue behind those along another.
class CommunicationStream {
 public:
  explicit CommunicationStream(int device_index);
  // Leaves it to the next one, since the driver may be gone.
  ~CommunicationStream();
  CommunicationStream(const CommunicationStream&) = delete;
  CommunicationStream& operator=(const CommunicationStream&) = delete;

  cudaStream_t get() const { return stream_; }
  // What is put on it from here on begins after all that the compute stream, stream(), has now...
  void wait_for_compute();
  // ... and the other way round. None of these waits on the host.
  void compute_waits();
  void wait_for(CommunicationStream& other);

 private:
  const int device_index_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t computed_ = nullptr, communicated_ = nullptr;
};

// The array's memory is used on another stream: freed, it is given to others only when that is done.
void used_on_stream(const Array& a, cudaStream_t stream);

// Errors (RuntimeError): the call failed; names it, the op in progress and what CUDA says.
void check(cudaError_t error, const char* call);
[[noreturn]] void fail(const char* text);

std::unique_ptr<DeviceEvent> make_event(int index, bool timing);
// Counts a wait of the host, which cannot be recorded. Errors: the rank is recording.
void note_host_wait(int index, const char* what);

// What records a stream may not do meanwhile (cudaMalloc, looking at events) is allowed in this scope: it has no part
// in the recording.
class OutsideOfRecording {
 public:
  OutsideOfRecording() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~OutsideOfRecording() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  OutsideOfRecording(const OutsideOfRecording&) = delete;
  OutsideOfRecording& operator=(const OutsideOfRecording&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Of the current device and rank; is in host memory that the device can write.
FaultReport* fault_report();
// The name of the op in progress, for FaultReport::op.
const char* current_op();

// Memory for the time of one kernel or a few, in the stream's order.
class Scratch {
 public:
  explicit Scratch(size_t bytes);
  template <class T>
  T* data() const {
    return reinterpret_cast<T*>(storage_->data());
  }

 private:
  Ref<Storage> storage_;
};

}  // namespace holon::kernels::cuda
