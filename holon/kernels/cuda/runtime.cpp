// The device runtime on CUDA: streams of ranks, memory, copies, errors.
#include "holon/array/device_runtime.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "holon/array/device_allocator.h"
#include "holon/array/device_backend.h"
#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/base/settings.h"
#include "holon/kernels/cuda/capability.h"
#include "holon/kernels/cuda/event_driver.h"
#include "holon/kernels/cuda/pinned.h"
#include "holon/kernels/cuda/stream.h"

namespace holon::kernels::cuda {

namespace {

constexpr int kMostDevices = 64;
DeviceType own_type;
DeviceRuntime* own_runtime = nullptr;
thread_local int current_index = -1;
std::atomic<int> used_index{-1};
thread_local cudaStream_t current_stream = nullptr;
thread_local const char* op_name = "";
thread_local int64_t host_waits = 0;  // for a device

// Pinned memory through which bytes of the host go to a device: pieces are used round and round, each again when the
// copies out of it are done.
struct Staging {
  static constexpr size_t kPiece = size_t{4} << 20;
  static constexpr int kPieces = 4;
  std::byte* at = nullptr;
  std::array<cudaEvent_t, kPieces> copied{};
  int piece = 0, ready = 0;  // pieces before `ready` have been used
  size_t used = 0;           // of the piece
};

// What one rank has on one device. When the rank ends the next one takes it over: the driver may be gone then.
struct RankDevice {
  cudaStream_t stream = nullptr;
  cudaEvent_t crossed = nullptr;
  FaultReport* faults = nullptr;
  Staging staging;
  bool recording = false;
  DeviceAllocator::PoolId pool = 0;  // of the recording
};
struct LeftDevices {
  std::mutex mutex;
  std::array<std::vector<RankDevice>, kMostDevices> of;
};
LeftDevices& left_devices() {
  static auto* left = new LeftDevices;
  return *left;
}
struct RankDevices {
  std::array<RankDevice, kMostDevices> of{};
  RankDevices() = default;
  RankDevices(const RankDevices&) = delete;
  RankDevices& operator=(const RankDevices&) = delete;
  ~RankDevices() {
    LeftDevices& left = left_devices();
    std::lock_guard lock(left.mutex);
    for (size_t i = 0; i < of.size(); ++i)
      if (of[i].stream && !of[i].recording) left.of[i].push_back(of[i]);
  }
};

// Makes another device current for a scope.
class OnDevice {
 public:
  explicit OnDevice(int index) {
    if (cudaGetDevice(&before_) == cudaSuccess && before_ == index)
      before_ = -1;
    else
      check(cudaSetDevice(index), "cudaSetDevice");
  }
  ~OnDevice() {
    if (before_ >= 0) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = -1;
};

// One of which all work is done: what that found wrong was the other rank's.
bool take_over(int index, RankDevice* d) {
  OutsideOfRecording outside;
  LeftDevices& left = left_devices();
  std::lock_guard lock(left.mutex);
  auto& devices = at_index(left.of, index);
  for (size_t i = 0; i < devices.size(); ++i) {
    if (cudaStreamQuery(devices[i].stream) != cudaSuccess) {
      cudaGetLastError();
      continue;
    }
    *d = devices[i];
    devices.erase(devices.begin() + static_cast<ptrdiff_t>(i));
    std::memset(d->faults, 0, sizeof(FaultReport));
    return true;
  }
  return false;
}

RankDevice& rank_device(int index) {
  RankDevice& d = Context::current().part<RankDevices>().of[to_size(index)];
  if (!d.stream && !take_over(index, &d)) {
    const OnDevice on(index);
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

DeviceType device_type() { return own_type; }
DeviceRuntime* device_runtime() { return own_runtime; }

cudaStream_t use_device(int index) {
  // Other libraries of the process choose devices for this thread, too.
  int now = -1;
  if (index != current_index || cudaGetDevice(&now) != cudaSuccess || now != index) {
    check(cudaSetDevice(index), "cudaSetDevice");
    current_index = index;
    used_index.store(index, std::memory_order_relaxed);
  }
  return current_stream = rank_device(index).stream;
}
cudaStream_t stream() { return current_stream; }
int device_index() { return current_index; }
int device_in_use() { return used_index.load(std::memory_order_relaxed); }
int multiprocessors() { return at_index(processor_counts(), current_index); }
int compute_capability() {
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, current_index), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, current_index), "cudaDeviceGetAttribute");
  return 10 * major + minor;
}
size_t shared_bytes_of_block() {
  int bytes = 0;
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, current_index),
        "cudaDeviceGetAttribute");
  return to_size(bytes);
}
void allow_shared_bytes(const void* kernel, size_t bytes) {
  struct Allowed {
    std::mutex mutex;
    std::array<std::unordered_map<const void*, size_t>, kMostDevices> of;
  };
  static Allowed& allowed = *new Allowed;
  std::lock_guard lock(allowed.mutex);
  size_t& most = at_index(allowed.of, current_index)[kernel];
  if (bytes <= most) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cudaFuncSetAttribute");
  most = bytes;
}
size_t memory_of_device() {
  static std::array<std::atomic<size_t>, kMostDevices> known{};
  std::atomic<size_t>& bytes = at_index(known, current_index);
  if (bytes.load(std::memory_order_relaxed) == 0) {
    OutsideOfRecording outside;
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    bytes.store(total, std::memory_order_relaxed);
  }
  return bytes.load(std::memory_order_relaxed);
}
FaultReport* fault_report() { return rank_device(current_index).faults; }
const char* current_op() { return op_name; }

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // it is told here: no later launch of this thread is to blame
  fail_runtime("{}: CUDA reports {} ({}) at {} on cuda:{} ({}). Work on a device is done later than it is requested: "
               "set HOLON_SYNC=1 to "
               "find the op that it comes from.",
               *op_name ? op_name : "cuda", cudaGetErrorName(error), cudaGetErrorString(error), call, current_index,
               rank_text());
}
// The host takes no part when what was recorded is done again.
void note_host_wait(int index, const char* what) {
  ++host_waits;
  if (rank_device(index).recording) [[unlikely]]
    fail_runtime("{}: {} cannot be recorded.", *op_name ? op_name : "cuda", what);
}
void fail(const char* text) { fail_runtime("{}: {}", *op_name ? op_name : "cuda", text); }

Scratch::Scratch(size_t bytes) : storage_(device_runtime()->allocate(current_index, bytes)) {}

namespace {

void raise(FaultReport& slot) {
  const FaultReport r = slot;
  slot.fault = slot.claimed = 0;
  const char* op = r.op && *r.op ? r.op : "an op on a cuda device";
  switch (static_cast<Fault>(r.fault)) {
    case Fault::kTarget:
      fail(ErrorKind::kIndex,
           "{}: target {} at row {} is outside [{}, {}). Check the labels, or pass it as ignore_index.", op, r.value,
           r.position, r.low, r.high);
    case Fault::kDivision: fail_value("{}: an integer is divided by 0.", op);
    case Fault::kWeight:
      fail_value("{}: the weight {} of class {} in row {} is negative or not finite.", op,
                 std::bit_cast<double>(r.value), r.high, r.position);
    case Fault::kFewWeights:
      fail_value("{}: row {} has {} weights above 0; {} are needed.", op, r.position, r.value, r.high);
    default:
      if (r.axis >= 0)
        fail(ErrorKind::kIndex, "{}: index {} is out of range for axis {} of size {} (at position {} of the indices).",
             op, r.value, r.axis, r.high, r.position);
      fail(ErrorKind::kIndex, "{}: index {} at position {} of the indices is outside [{}, {}).", op, r.value,
           r.position, r.low, r.high);
  }
}

class CudaDriver final : public EventDriver {
 public:
  explicit CudaDriver(int index) : index_(index) {}
  void* take(size_t bytes) override {
    OutsideOfRecording outside;
    OnDevice on(index_);
    void* p = nullptr;
    const cudaError_t error = cudaMalloc(&p, bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    check(error, "cudaMalloc");
    return p;
  }
  void give(void* segment) override {
    OutsideOfRecording outside;
    OnDevice on(index_);
    cudaFree(segment);
  }
  Event record(Stream stream) override {
    OnDevice on(index_);
    return EventDriver::record(stream);
  }
  Bytes bytes() override {
    OutsideOfRecording outside;
    OnDevice on(index_);
    Bytes b;
    cudaMemGetInfo(&b.free, &b.total);
    return b;
  }
  std::string name() override { return "cuda:" + std::to_string(index_); }

 private:
  int index_;
};

struct DeviceMemory {
  explicit DeviceMemory(int index) : driver(index), allocator(driver) {}
  CudaDriver driver;
  DeviceAllocator allocator;
};

class CudaStorage final : public Storage {
 public:
  CudaStorage(DeviceAllocator& allocator, DeviceAllocator::Block* block, size_t bytes)
      : Storage(DeviceAllocator::data(block), bytes), allocator_(allocator), block_(block) {}
  ~CudaStorage() override {
    try {
      allocator_.free(block_);
    } catch (...) {  // the driver is gone, or its context is lost: so is the memory
    }
  }
  void record_stream(cudaStream_t stream) { allocator_.record_stream(block_, stream); }

 private:
  DeviceAllocator& allocator_;
  DeviceAllocator::Block* block_;
};

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(int index, cudaGraphExec_t exec, DeviceAllocator& allocator, DeviceAllocator::PoolId pool)
      : index_(index), exec_(exec), allocator_(allocator), pool_(pool) {}
  ~CudaGraph() override {
    cudaGraphExecDestroy(exec_);
    try {
      allocator_.release(pool_);
    } catch (...) {  // the driver is gone
    }
  }
  DeviceAllocator::PoolId pool() const { return pool_; }
  void launch() override { check(cudaGraphLaunch(exec_, use_device(index_)), "cudaGraphLaunch"); }

 private:
  int index_;
  cudaGraphExec_t exec_;
  DeviceAllocator& allocator_;
  DeviceAllocator::PoolId pool_;
};

class CudaRuntime final : public DeviceRuntime {
 public:
  explicit CudaRuntime(int count) : count_(count) {
    for (int i = 0; i < count; ++i) memory_.push_back(std::make_unique<DeviceMemory>(i));
    for (int i = 0; i < count; ++i)
      cudaDeviceGetAttribute(&at_index(processor_counts(), i), cudaDevAttrMultiProcessorCount, i);
  }

  DeviceCapabilities capabilities() const override {
    return {.peer_copies = true, .pinned_memory = true, .recording = true};
  }
  int device_count() const override { return count_; }
  DeviceProperties properties(int index) override {
    cudaDeviceProp p;
    check(cudaGetDeviceProperties(&p, index), "cudaGetDeviceProperties");
    return {p.name, p.major, p.minor, p.totalGlobalMem, p.multiProcessorCount};
  }

  Ref<Storage> allocate(int index, size_t bytes) override {
    DeviceAllocator& a = allocator(index);
    return make_ref<CudaStorage>(a, a.allocate(use_device(index), bytes), bytes);
  }
  MemoryStats memory_stats(int index) override { return allocator(index).stats(); }
  void reset_peak_memory(int index) override { allocator(index).reset_peak(); }
  void release_cached_memory(int index) override {
    BlockingScope unlocked;
    allocator(index).release_cached();
  }

  void copy_to_host(int index, void* host, const void* device, size_t bytes) override {
    if (bytes == 0) return synchronize(index);
    cudaStream_t s = use_device(index);
    note_host_wait(index, "a copy to the host");
    {
      BlockingScope unlocked;
      check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, s), "a copy to the host");
    }
    synchronize(index);
  }
  void copy_from_host(int index, void* device, const void* host, size_t bytes) override {
    if (bytes == 0) return;
    cudaStream_t s = use_device(index);
    note_host_wait(index, "a copy from the host");
    Staging& staging = rank_device(index).staging;
    if (!staging.at) {
      void* p = nullptr;
      check(cudaHostAlloc(&p, Staging::kPiece * Staging::kPieces, cudaHostAllocPortable), "cudaHostAlloc");
      staging.at = static_cast<std::byte*>(p);
      for (auto& event : staging.copied)
        check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    }
    BlockingScope unlocked(bytes > (64 << 10));
    auto *from = static_cast<const std::byte*>(host), *end = from + bytes;
    for (auto* to = static_cast<std::byte*>(device); from < end;) {
      if (staging.used >= Staging::kPiece) next_piece(staging, s);
      const size_t n = std::min(to_size(end - from), Staging::kPiece - staging.used);
      std::byte* through = staging.at + to_size(staging.piece) * Staging::kPiece + staging.used;
      std::memcpy(through, from, n);
      check(cudaMemcpyAsync(to, through, n, cudaMemcpyHostToDevice, s), "a copy from the host");
      staging.used += (n + 63) / 64 * 64;
      from += n;
      to += n;
    }
  }
  Ref<Storage> allocate_pinned(size_t bytes) override { return cuda::allocate_pinned(bytes); }
  bool has_pinned(const Storage& storage) const override { return is_pinned(storage); }
  MemoryStats pinned_memory_stats() override { return cuda::pinned_memory_stats(); }
  void release_cached_pinned_memory() override { cuda::release_cached_pinned_memory(); }
  void copy_to_pinned(int index, void* host, const void* device, size_t bytes, Storage& pinned) override {
    copy_pinned(index, host, device, bytes, cudaMemcpyDeviceToHost, pinned);
  }
  void copy_from_pinned(int index, void* device, const void* host, size_t bytes, Storage& pinned) override {
    copy_pinned(index, device, host, bytes, cudaMemcpyHostToDevice, pinned);
  }
  void copy_between(int to_index, void* to, int from_index, const void* from, size_t bytes) override {
    if (bytes == 0) return;
    if (to_index == from_index) {
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, use_device(to_index)), "a copy on the device");
      return;
    }
    allow_access(to_index, from_index);
    // After the source's work, and the source's later work after it.
    const cudaStream_t source = use_device(from_index);
    check(cudaEventRecord(crossing(from_index), source), "cudaEventRecord");
    const cudaStream_t target = use_device(to_index);
    check(cudaStreamWaitEvent(target, crossing(from_index), 0), "cudaStreamWaitEvent");
    check(cudaMemcpyPeerAsync(to, to_index, from, from_index, bytes, target), "a copy between devices");
    check(cudaEventRecord(crossing(to_index), target), "cudaEventRecord");
    use_device(from_index);
    check(cudaStreamWaitEvent(source, crossing(to_index), 0), "cudaStreamWaitEvent");
    use_device(to_index);
  }

  void wait_for_all(int index) override {
    use_device(index);
    note_host_wait(index, "sharing memory with another library");
    BlockingScope unlocked;
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  void synchronize(int index) override {
    cudaStream_t s = use_device(index);
    note_host_wait(index, "waiting for the device");
    {
      BlockingScope unlocked;
      check(cudaStreamSynchronize(s), "cudaStreamSynchronize");
    }
    look(index);
  }
  void check(int index) override {
    static const bool sync = settings::flag("HOLON_SYNC");
    if (sync && !rank_device(index).recording) return synchronize(index);
    look(index);
  }
  int64_t host_waits() const override { return cuda::host_waits; }
  std::unique_ptr<DeviceEvent> make_event(int index, bool timing) override { return cuda::make_event(index, timing); }
  void set_op(const char* name) override { op_name = name; }

  void begin_capture(int index, const DeviceGraph* with) override {
    cudaStream_t s = use_device(index);
    RankDevice& d = rank_device(index);
    if (d.recording) cuda::fail("this rank records work already");
    d.pool = allocator(index).begin_recording(s, with ? static_cast<const CudaGraph*>(with)->pool() : 0);
    d.recording = true;
    // Relaxed: what a library does when it is first used, and loading a kernel that has not run yet, may be no part of
    // a recording and yet must be allowed. Waits are refused by note_host_wait(), and by CUDA in any mode.
    const cudaError_t error = cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed);
    if (error != cudaSuccess) {
      end_recording(index);
      allocator(index).release(d.pool);
      check(error, "cudaStreamBeginCapture");
    }
  }
  std::unique_ptr<DeviceGraph> end_capture(int index) override {
    cudaStream_t s = use_device(index);
    RankDevice& d = rank_device(index);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    const char* call = "cudaStreamEndCapture";
    cudaError_t error = cudaStreamEndCapture(s, &graph);
    end_recording(index);
    if (error == cudaSuccess) {
      call = "cudaGraphInstantiate";
      error = cudaGraphInstantiate(&exec, graph, 0);
      cudaGraphDestroy(graph);
    }
    if (error != cudaSuccess) {
      cudaGetLastError();
      allocator(index).release(d.pool);
      check(error, call);
    }
    return std::make_unique<CudaGraph>(index, exec, allocator(index), d.pool);
  }
  void abandon_capture(int index) override {
    RankDevice& d = rank_device(index);
    if (!d.recording) return;
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(use_device(index), &graph) == cudaSuccess && graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    end_recording(index);
    allocator(index).release(d.pool);
  }

 private:
  DeviceAllocator& allocator(int index) { return at_index(memory_, index)->allocator; }
  void end_recording(int index) {
    RankDevice& d = rank_device(index);
    d.recording = false;
    allocator(index).end_recording(d.stream);
  }
  static void copy_pinned(int index, void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Storage& pinned) {
    if (bytes == 0) return;
    cudaStream_t s = use_device(index);
    note_host_wait(index, "a copy between the host and the device");
    check(cudaMemcpyAsync(to, from, bytes, kind, s), "a copy of pinned memory");
    used_on(pinned, s);
  }
  static void next_piece(Staging& staging, cudaStream_t s) {
    check(cudaEventRecord(at_index(staging.copied, staging.piece), s), "cudaEventRecord");
    staging.ready = std::max(staging.ready, staging.piece + 1);
    staging.piece = (staging.piece + 1) % Staging::kPieces;
    staging.used = 0;
    if (staging.piece < staging.ready)
      check(cudaEventSynchronize(at_index(staging.copied, staging.piece)), "cudaEventSynchronize");
  }
  static cudaEvent_t crossing(int index) {
    RankDevice& d = rank_device(index);
    if (!d.crossed) {
      use_device(index);
      check(cudaEventCreateWithFlags(&d.crossed, cudaEventDisableTiming), "cudaEventCreate");
    }
    return d.crossed;
  }
  // Copies between devices that cannot reach each other go through the host.
  void allow_access(int a, int b) {
    std::lock_guard lock(mutex_);
    if (!allowed_.insert({a, b}).second) return;
    for (auto [device, peer] : {std::pair{a, b}, std::pair{b, a}}) {
      OnDevice on(device);
      int can = 0;
      if (cudaDeviceCanAccessPeer(&can, device, peer) == cudaSuccess && can) cudaDeviceEnablePeerAccess(peer, 0);
      cudaGetLastError();  // it may have been allowed before
    }
  }
  static void check(cudaError_t e, const char* call) { cuda::check(e, call); }
  static void look(int index) {
    run_device_check();
    FaultReport& r = *rank_device(index).faults;
    if (*static_cast<volatile int32_t*>(&r.fault)) [[unlikely]]
      raise(r);
  }
  int count_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  std::mutex mutex_;
  std::set<std::pair<int, int>> allowed_;
};

}  // namespace

void used_on_stream(const Array& a, cudaStream_t stream) {
  if (auto* storage = dynamic_cast<CudaStorage*>(a.storage.get())) storage->record_stream(stream);
}

namespace {

// What an error at the start says, with the versions of the driver and of the toolkit that this was built with.
std::string driver_text(cudaError_t error) {
  std::string text = cudaGetErrorString(error);
  if (error != cudaErrorInsufficientDriver && error != cudaErrorSystemDriverMismatch) return text;
  int driver = 0;  // the newest CUDA that it knows; 0: there is none
  cudaDriverGetVersion(&driver);
  const auto version = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
  // https://docs.nvidia.com/deploy/cuda-compatibility: the first driver of each major version.
  constexpr int kMajor = CUDART_VERSION / 1000, kFirst = kMajor == 12 ? 525 : 580;
  return fmt::format(
      "{}. This backend is built with CUDA {}, which needs driver {} or newer; {}. Install a newer driver, or build "
      "with a toolkit that yours knows (12.4 or newer).",
      text, version(CUDART_VERSION), kFirst,
      driver ? fmt::format("the driver here knows CUDA up to {}", version(driver)) : "there is no driver here");
}

// Of a process that was forked from one that used a device, CUDA answers with an error, too.
DeviceRuntime* start(DeviceType type, std::string* why_not) {
  own_type = type;
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    *why_not = error == cudaSuccess ? "CUDA finds no device" : "CUDA reports: " + driver_text(error);
    cudaGetLastError();
    return nullptr;
  }
  return own_runtime = new CudaRuntime(std::min(count, kMostDevices));
}

}  // namespace

}  // namespace holon::kernels::cuda

HOLON_DEVICE_BACKEND("cuda", holon::kernels::cuda::start)
