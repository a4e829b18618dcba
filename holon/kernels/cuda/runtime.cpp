// The device runtime on CUDA: streams of ranks, memory, copies, errors.
#include "holon/array/device_runtime.h"

#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/settings.h"
#include "holon/kernels/cuda/stream.h"

namespace holon::kernels::cuda {

namespace {

constexpr int kMostDevices = 64;
thread_local int current_index = -1;
thread_local cudaStream_t current_stream = nullptr;
thread_local const char* op_name = "";

// What one rank has on one device. Never given back: the driver may be gone when threads end.
struct RankDevice {
  cudaStream_t stream = nullptr, communication = nullptr;
  cudaEvent_t computed = nullptr, communicated = nullptr;
  FaultReport* faults = nullptr;
};
struct RankDevices {
  std::array<RankDevice, kMostDevices> of{};
};

RankDevice& rank_device(int index) {
  RankDevice& d = Context::current().part<RankDevices>().of[static_cast<size_t>(index)];
  if (!d.stream) {
    check(cudaStreamCreateWithFlags(&d.stream, cudaStreamNonBlocking), "cudaStreamCreate");
    void* p = nullptr;
    check(cudaHostAlloc(&p, sizeof(FaultReport), cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc");
    std::memset(p, 0, sizeof(FaultReport));
    d.faults = static_cast<FaultReport*>(p);
  }
  return d;
}

std::array<int, kMostDevices>& processor_counts() {
  static std::array<int, kMostDevices> counts{};
  return counts;
}

}  // namespace

cudaStream_t use_device(int index) {
  if (index != current_index) {
    check(cudaSetDevice(index), "cudaSetDevice");
    current_index = index;
  }
  return current_stream = rank_device(index).stream;
}
cudaStream_t stream() { return current_stream; }
cudaStream_t communication_stream() {
  RankDevice& d = rank_device(current_index);
  if (!d.communication) [[unlikely]] {
    check(cudaStreamCreateWithFlags(&d.communication, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaEventCreateWithFlags(&d.computed, cudaEventDisableTiming), "cudaEventCreate");
    check(cudaEventCreateWithFlags(&d.communicated, cudaEventDisableTiming), "cudaEventCreate");
  }
  return d.communication;
}
void wait_for_compute() {
  const cudaStream_t to = communication_stream();
  RankDevice& d = rank_device(current_index);
  check(cudaEventRecord(d.computed, d.stream), "cudaEventRecord");
  check(cudaStreamWaitEvent(to, d.computed, 0), "cudaStreamWaitEvent");
}
void compute_waits_for_communication() {
  const cudaStream_t from = communication_stream();
  RankDevice& d = rank_device(current_index);
  check(cudaEventRecord(d.communicated, from), "cudaEventRecord");
  check(cudaStreamWaitEvent(d.stream, d.communicated, 0), "cudaStreamWaitEvent");
}
void used_for_communication(const Array&) {}  // freed memory waits for all streams of the device
int device_index() { return current_index; }
int multiprocessors() { return processor_counts()[static_cast<size_t>(current_index)]; }
FaultReport* fault_report() { return rank_device(current_index).faults; }
const char* current_op() { return op_name; }

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) [[likely]]
    return;
  fail_runtime("{}: CUDA reports {} ({}) at {} on cuda:{} ({}). Work on a device is done later than it is asked for: set HOLON_SYNC=1 to "
               "find the op that it comes from.",
               *op_name ? op_name : "cuda", cudaGetErrorName(error), cudaGetErrorString(error), call, current_index, rank_text());
}
void fail(const char* text) { fail_runtime("{}: {}", *op_name ? op_name : "cuda", text); }

Scratch::Scratch(size_t bytes) : storage_(device_runtime()->allocate(current_index, bytes)) {}

namespace {

void raise(FaultReport& slot) {
  const FaultReport r = slot;
  slot.fault = 0;
  const char* op = r.op && *r.op ? r.op : "an op on a cuda device";
  switch (static_cast<Fault>(r.fault)) {
    case Fault::kTarget:
      fail(ErrorKind::kIndex, "{}: target {} at row {} is outside [{}, {}). Check the labels, or pass it as ignore_index.", op, r.value, r.position,
           r.low, r.high);
    case Fault::kDivision: fail_value("{}: an integer is divided by 0.", op);
    default:
      if (r.axis >= 0)
        fail(ErrorKind::kIndex, "{}: index {} is out of range for axis {} of size {} (at position {} of the indices).", op, r.value, r.axis,
             r.high, r.position);
      fail(ErrorKind::kIndex, "{}: index {} at position {} of the indices is outside [{}, {}).", op, r.value, r.position, r.low, r.high);
  }
}

class CudaStorage final : public Storage {
 public:
  CudaStorage(void* p, size_t bytes, int index) : Storage(p, bytes), index_(index) {}
  ~CudaStorage() override {
    int before = 0;
    cudaGetDevice(&before);
    cudaSetDevice(index_);
    cudaFree(data());
    cudaSetDevice(before);
  }

 private:
  int index_;
};

class CudaRuntime final : public DeviceRuntime {
 public:
  explicit CudaRuntime(int count) : count_(count) {
    for (int i = 0; i < count; ++i)
      cudaDeviceGetAttribute(&processor_counts()[static_cast<size_t>(i)], cudaDevAttrMultiProcessorCount, i);
  }

  int device_count() const override { return count_; }
  DeviceProperties properties(int index) override {
    cudaDeviceProp p;
    check(cudaGetDeviceProperties(&p, index), "cudaGetDeviceProperties");
    return {p.name, p.major, p.minor, p.totalGlobalMem, p.multiProcessorCount};
  }

  Ref<Storage> allocate(int index, size_t bytes) override {
    use_device(index);
    void* p = nullptr;
    check(cudaMalloc(&p, bytes ? bytes : 1), "cudaMalloc");
    return Ref<Storage>(new CudaStorage(p, bytes, index));
  }
  MemoryStats memory_stats(int) override { return {}; }
  void reset_peak_memory(int) override {}
  void release_cached_memory(int) override {}

  void copy_to_host(int index, void* host, const void* device, size_t bytes) override {
    if (bytes == 0) return synchronize(index);
    BlockingScope unlocked;
    check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, use_device(index)), "a copy to the host");
    synchronize(index);
  }
  void copy_from_host(int index, void* device, const void* host, size_t bytes) override {
    if (bytes == 0) return;
    BlockingScope unlocked;
    cudaStream_t s = use_device(index);
    check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, s), "a copy from the host");
    check(cudaStreamSynchronize(s), "a copy from the host");
  }
  void copy_between(int to_index, void* to, int from_index, const void* from, size_t bytes) override {
    if (bytes == 0) return;
    if (to_index == from_index) {
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, use_device(to_index)), "a copy on the device");
      return;
    }
    synchronize(from_index);
    check(cudaMemcpyPeerAsync(to, to_index, from, from_index, bytes, use_device(to_index)), "a copy between devices");
    synchronize(to_index);
  }
  void fill_bytes(int index, void* device, int value, size_t bytes) override {
    if (bytes) check(cudaMemsetAsync(device, value, bytes, use_device(index)), "cudaMemset");
  }

  void synchronize(int index) override {
    BlockingScope unlocked;
    check(cudaStreamSynchronize(use_device(index)), "cudaStreamSynchronize");
    look(index);
  }
  void check(int index) override {
    static const bool sync = settings::flag("HOLON_SYNC");
    if (sync) return synchronize(index);
    look(index);
  }
  void set_op(const char* name) override { op_name = name; }

  void begin_capture(int index) override {
    check(cudaStreamBeginCapture(use_device(index), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  }
  std::unique_ptr<DeviceGraph> end_capture(int) override { cuda::fail("recording is not there yet"); }
  void abandon_capture(int) override {}

 private:
  static void check(cudaError_t e, const char* call) { cuda::check(e, call); }
  static void look(int index) {
    FaultReport& r = *rank_device(index).faults;
    if (*static_cast<volatile int32_t*>(&r.fault)) [[unlikely]]
      raise(r);
  }
  int count_;
};

}  // namespace

}  // namespace holon::kernels::cuda

// Of a process that was forked from one that used a device, CUDA answers with an error, too.
extern "C" __attribute__((visibility("default"))) holon::DeviceRuntime* holon_cuda_runtime(std::string* why_not) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    *why_not = error == cudaSuccess ? "CUDA finds no device" : std::string("CUDA reports: ") + cudaGetErrorString(error);
    cudaGetLastError();
    return nullptr;
  }
  if (count > holon::kernels::cuda::kMostDevices) count = holon::kernels::cuda::kMostDevices;
  return new holon::kernels::cuda::CudaRuntime(count);
}
