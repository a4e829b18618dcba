#include "streams.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace emulator {

namespace {

long setting(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::atol(text) : otherwise;
}

thread_local int device = 0;
thread_local cudaError_t last_error = cudaSuccess;

[[noreturn]] void stop(const char* text) {
  std::fprintf(stderr, "emulator: %s\n", text);
  std::abort();
}

// The memory of all devices: one range of addresses for each, open to the host only while work is done.
class Memory {
 public:
  static Memory& get() {
    static auto* m = new Memory;
    return *m;
  }

  void* take(int of, size_t bytes) {
    std::lock_guard lock(mutex_);
    Device& d = devices_[static_cast<size_t>(of)];
    bytes = (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
    if (d.used + bytes > most_) return nullptr;
    auto found = std::find_if(d.free.begin(), d.free.end(), [&](auto& f) { return f.second >= bytes; });
    char* p;
    if (found != d.free.end()) {
      p = found->first;
      if (found->second > bytes) d.free[p + bytes] = found->second - bytes;
      d.free.erase(p);
    } else {
      // What is large begins at a huge page; smaller blocks find the place before it.
      const size_t gap = bytes < kHugePage ? 0 : (kHugePage - d.top % kHugePage) % kHugePage;
      if (d.top + gap + bytes > kRange) return nullptr;
      if (gap) d.free[d.base + d.top] = gap;
      p = d.base + d.top + gap;
      if (open_ > 0) protect(d.base + d.top, gap + bytes, true);
      d.top += gap + bytes;
    }
    d.used += bytes;
    d.blocks[p] = bytes;
    // What nobody has written yet is all ones (NaN): on a device it is what others have left.
    if (bytes <= kMostFilled) {
      if (open_ == 0) protect(p, bytes, true);
      std::memset(p, 0xff, bytes);
      if (open_ == 0) protect(p, bytes, false);
    }
    return p;
  }

  bool give(void* p) {
    std::lock_guard lock(mutex_);
    for (Device& d : devices_) {
      auto found = d.blocks.find(static_cast<char*>(p));
      if (found == d.blocks.end()) continue;
      d.used -= found->second;
      // Ranges at the end, and pages, are given back: opening and closing them takes time.
      madvise(found->first, found->second, MADV_DONTNEED);
      d.free[found->first] = found->second;
      d.blocks.erase(found);
      while (!d.free.empty()) {
        auto last = std::prev(d.free.end());
        if (last->first + last->second != d.base + d.top) break;
        if (open_ > 0) protect(last->first, last->second, false);
        d.top -= last->second;
        d.free.erase(last);
      }
      return true;
    }
    return false;
  }

  // The device whose allocated memory [p, p + bytes) is, -1 for the host's. Stops where it is a device's but not
  // allocated.
  int owner(const void* p, size_t bytes) {
    std::lock_guard lock(mutex_);
    auto* at = static_cast<const char*>(p);
    for (size_t i = 0; i < devices_.size(); ++i) {
      Device& d = devices_[i];
      if (at < d.base || at >= d.base + kRange) continue;
      auto next = d.blocks.upper_bound(const_cast<char*>(at));
      if (next == d.blocks.begin()) stop("a copy of device memory that is not allocated");
      --next;
      if (at + bytes > next->first + next->second) stop("a copy beyond the end of its device memory");
      return static_cast<int>(i);
    }
    return -1;
  }

  void open() {
    std::lock_guard lock(mutex_);
    if (open_++ == 0) each(true);
  }
  void close() {
    std::lock_guard lock(mutex_);
    if (--open_ == 0) each(false);
  }

  std::vector<std::pair<char*, size_t>> ranges() {
    std::lock_guard lock(mutex_);
    std::vector<std::pair<char*, size_t>> all;
    for (Device& d : devices_) all.emplace_back(d.base, d.top);
    return all;
  }
  size_t used(int of) {
    std::lock_guard lock(mutex_);
    return devices_[static_cast<size_t>(of)].used;
  }
  size_t most() const { return most_; }
  int count() const { return static_cast<int>(devices_.size()); }

 private:
  static constexpr size_t kPage = 4096, kHugePage = size_t{2} << 20, kRange = size_t{64} << 30,
                          kMostFilled = size_t{64} << 20;
  struct Device {
    char* base = nullptr;
    size_t top = 0, used = 0;
    std::map<char*, size_t> blocks, free;
  };

  Memory()
      : devices_(static_cast<size_t>(setting("EMULATED_DEVICES", 2))),
        most_(static_cast<size_t>(setting("EMULATED_MEMORY_MB", 4096)) << 20) {
    for (Device& d : devices_) {
      void* p = mmap(nullptr, kRange + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) stop("no address space for a device");
      d.base = static_cast<char*>(p) + (kHugePage - reinterpret_cast<uintptr_t>(p) % kHugePage) % kHugePage;
      // Fewer pages to open and close for each kernel, unless each is watched.
      madvise(d.base, kRange, counts_traffic() ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    }
  }
  void protect(char* p, size_t bytes, bool readable) {
    if (bytes && mprotect(p, bytes, readable ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) stop("mprotect failed");
  }
  void each(bool readable) {
    for (Device& d : devices_) protect(d.base, d.top, readable);
  }

  std::mutex mutex_;
  std::vector<Device> devices_;
  size_t most_;
  int open_ = setting("EMULATED_STRICT", 1) ? 0 : 1;  // how many are at work in it
};

void do_now(const std::function<void()>& work) {
  struct Open {
    Open() { Memory::get().open(); }
    ~Open() { Memory::get().close(); }
  } open;  // collectives of the emulator throw
  work();
}

bool lazy() {
  static const bool on = setting("EMULATED_LAZY", 0) != 0;
  return on;
}

// Does one piece of work of the stream. Pre: lock is held, nobody is busy.
void do_one(Stream& s, std::unique_lock<std::mutex>& lock, const std::function<void()>& work, bool counts) {
  s.busy = true;
  lock.unlock();
  struct End {  // also of what throws
    Stream& s;
    std::unique_lock<std::mutex>& lock;
    bool counts;
    ~End() {
      lock.lock();
      s.busy = false;
      if (counts) ++s.done;
      s.changed.notify_all();
    }
  } end{s, lock, counts};
  work();
}
void do_first(Stream& s, std::unique_lock<std::mutex>& lock) {
  const auto work = std::move(s.waiting.front());
  s.waiting.pop_front();
  do_one(s, lock, work, true);
}

// Does what waits on the stream, up to the ticket.
void drain(Stream& s, uint64_t ticket) {
  std::unique_lock lock(s.mutex);
  while (s.done < ticket) {
    if (s.busy)
      s.changed.wait(lock);
    else if (s.waiting.empty())
      return;
    else
      do_first(s, lock);
  }
}

void put(Stream& s, std::function<void()> work) {
  s.waiting.push_back(std::move(work));
  ++s.put;
  s.changed.notify_all();
}

void work_beside(Stream& s) {
  std::unique_lock lock(s.mutex);
  for (;;) {
    s.changed.wait(lock, [&] { return !s.busy && !s.waiting.empty(); });
    do_first(s, lock);
  }
}

struct Pinned {
  std::mutex mutex;
  std::map<void*, size_t> blocks;
  size_t used = 0;
};
Pinned& pinned() {
  static auto* p = new Pinned;
  return *p;
}

std::mutex streams_mutex;
std::vector<Stream*>& streams() {
  static auto* all = new std::vector<Stream*>;
  return *all;
}

}  // namespace

std::vector<std::pair<char*, size_t>> memory_ranges() { return Memory::get().ranges(); }

// As on a device, "not ready" stays to be found by cudaGetLastError().
cudaError_t result(cudaError_t e) {
  if (e != cudaSuccess) last_error = e;
  return e;
}

namespace {
std::atomic<long> launches{0};
}

void with_memory(const std::function<void()>& work) { do_now(work); }

void enqueue_rest(Stream* s, std::function<void()> work) {
  if (!s) stop("work for the default stream: every rank has its own");
  std::unique_lock lock(s->mutex);
  if (s->capture) {
    taken_down(s, {std::move(work), {}, false, {}, {}});
    return;
  }
  auto opened = [work = std::move(work)] { do_now(work); };
  if (lazy() || s->busy || s->beside || !s->waiting.empty()) return put(*s, std::move(opened));
  do_one(*s, lock, opened, false);
}

namespace {
// Copies may be put on any stream.
void enqueue_copy(Stream* s, std::function<void()> work, Label label) {
  if (s && !s->capture) ++launches;
  enqueue_rest(s, counted(label, std::move(work)));
}
}  // namespace

// "A kernel launch will fail if it is issued to a stream that is not associated to the current device."
void enqueue(Stream* s, std::function<void()> work, Label label) {
  if (s && s->device != device) stop("a kernel for a stream of a device that is not the current one");
  enqueue_copy(s, std::move(work), label);
}

void enqueue_late(Stream* s, std::function<void()> work) {
  std::lock_guard lock(s->mutex);
  put(*s, std::move(work));
}

void enqueue_beside(Stream* s, std::function<void()> work) {
  std::lock_guard lock(s->mutex);
  put(*s, std::move(work));
  if (!s->beside) std::thread(work_beside, std::ref(*s)).detach();
  s->beside = true;
}

void enqueue_collective(Stream* s, std::function<void()> work, std::function<bool()> hangs,
                        std::function<void()> hung) {
  work = counted({"collective"}, std::move(work));
  {
    std::lock_guard lock(s->mutex);
    if (s->capture) {
      taken_down(s, {std::move(work), {}, true, std::move(hangs), std::move(hung)});
      return;
    }
  }
  ++launches;
  if (hangs()) return enqueue_late(s, std::move(hung));
  enqueue_rest(s, std::move(work));
  drain(*s, s->put);
}

}  // namespace emulator

using namespace emulator;

// Whether the host may touch device memory from now on. Opening and closing it for each kernel takes most of a test's
// time.
extern "C" void emulated_strict(int strict) {
  static bool now = setting("EMULATED_STRICT", 1) != 0;
  if (now == (strict != 0)) return;
  now = !now;
  now ? Memory::get().close() : Memory::get().open();
}

// How often the host has put work on a stream: a recording's launch is one, as a kernel, a copy or a collective is.
extern "C" long emulated_launch_count() { return launches.load(); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (driver < CUDART_VERSION) return result(cudaErrorInsufficientDriver);
  *count = Memory::get().count();
  return result(*count ? cudaSuccess : cudaErrorNoDevice);
}
// EMULATED_DRIVER: the newest CUDA that it knows, as CUDART_VERSION counts; 0: there is none.
cudaError_t cudaDriverGetVersion(int* version) {
  *version = setting("EMULATED_DRIVER", CUDART_VERSION);
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
  if (index < 0 || index >= Memory::get().count()) return result(cudaErrorInvalidDevice);
  device = index;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* index) {
  *index = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int index) {
  if (index < 0 || index >= Memory::get().count()) return result(cudaErrorInvalidDevice);
  *p = {};
  std::snprintf(p->name, sizeof p->name, "emulated device");
  p->totalGlobalMem = Memory::get().most();
  p->major = 9;
  p->multiProcessorCount = 4;
  p->sharedMemPerBlockOptin = emulator::shared_bytes_of_block();
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount       ? 4
      : attribute == cudaDevAttrComputeCapabilityMajor       ? 9
      : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? static_cast<int>(emulator::shared_bytes_of_block())
                                                             : 0;
  return cudaSuccess;
}
static void drain_all() {
  std::vector<Stream*> all;
  {
    std::lock_guard lock(streams_mutex);
    all = streams();
  }
  for (Stream* s : all)
    if (s->device == device) drain(*s, s->put);
}
cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t e = unsafe_call(); e != cudaSuccess) return e;
  count_wait();
  drain_all();
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int a, int b) {
  *can = a != b;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaGetLastError() {
  cudaError_t e = last_error;
  last_error = cudaSuccess;
  return e;
}
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorStreamCaptureMerge: return "cudaErrorStreamCaptureMerge";
    case cudaErrorStreamCaptureUnmatched: return "cudaErrorStreamCaptureUnmatched";
    case cudaErrorStreamCaptureUnjoined: return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
    case cudaErrorCapturedEvent: return "cudaErrorCapturedEvent";
    case cudaErrorStreamCaptureWrongThread: return "cudaErrorStreamCaptureWrongThread";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    default: return "cudaErrorInvalidValue";
  }
}
const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaErrorMemoryAllocation ? "out of memory" : e == cudaSuccess ? "no error" : "an emulated error";
}

cudaError_t cudaMalloc(void** p, size_t bytes) {
  if (const cudaError_t e = unsafe_call(); e != cudaSuccess) return e;
  *p = Memory::get().take(device, bytes);
  return result(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* p) {
  if (!p) return cudaSuccess;
  if (const cudaError_t e = unsafe_call(); e != cudaSuccess) return e;
  drain_all();  // as the real one does
  return result(Memory::get().give(p) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = Memory::get().most();
  *free = *total - Memory::get().used(device);
  return cudaSuccess;
}
// Pages of its own, which are gone when it is freed: a copy that comes later crashes.
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  if (const cudaError_t e = unsafe_call(); e != cudaSuccess) return e;
  static const size_t most = static_cast<size_t>(setting("EMULATED_PINNED_MB", 4096)) << 20;
  std::lock_guard lock(pinned().mutex);
  *p = nullptr;
  if (pinned().used + bytes > most) return result(cudaErrorMemoryAllocation);
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return result(cudaErrorMemoryAllocation);
  pinned().used += bytes;
  pinned().blocks[*p = at] = bytes;
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** p, size_t bytes) { return cudaHostAlloc(p, bytes, cudaHostAllocDefault); }
cudaError_t cudaFreeHost(void* p) {
  if (!p) return cudaSuccess;
  if (const cudaError_t e = unsafe_call(); e != cudaSuccess) return e;
  std::lock_guard lock(pinned().mutex);
  auto found = pinned().blocks.find(p);
  if (found == pinned().blocks.end()) return result(cudaErrorInvalidValue);
  munmap(p, found->second);
  pinned().used -= found->second;
  pinned().blocks.erase(found);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** to, void* host, unsigned) {
  *to = host;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const bool to_device = Memory::get().owner(to, bytes) >= 0, from_device = Memory::get().owner(from, bytes) >= 0;
  const bool fits = kind == cudaMemcpyDefault ||
      (to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
       from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice));
  if (!fits) return result(cudaErrorInvalidValue);
  enqueue_copy(stream, [=] { std::memcpy(to, from, bytes); }, {"copy"});
  return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_index, const void* from, int from_index, size_t bytes,
                                cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (Memory::get().owner(to, bytes) != to_index || Memory::get().owner(from, bytes) != from_index)
    return result(cudaErrorInvalidValue);
  enqueue_copy(stream, [=] { std::memcpy(to, from, bytes); }, {"copy"});
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (Memory::get().owner(p, bytes) < 0) return result(cudaErrorInvalidValue);
  enqueue_copy(stream, [=] { std::memset(p, value, bytes); }, {"fill"});
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new Stream;
  (*stream)->device = device;
  std::lock_guard lock(streams_mutex);
  streams().push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  drain(*stream, stream->put);
  {
    std::lock_guard lock(streams_mutex);
    std::erase(streams(), stream);
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream->capture) {
    stream->capture->invalid = true;
    return result(cudaErrorStreamCaptureUnsupported);
  }
  if (const cudaError_t e = unsafe_call(); e != cudaSuccess) return e;
  count_wait();
  drain(*stream, stream->put);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream->capture) {
    stream->capture->invalid = true;
    return result(cudaErrorStreamCaptureUnsupported);
  }
  if (const cudaError_t e = unsafe_call(); e != cudaSuccess) return e;
  return result(stream->done == stream->put ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new Event;
  (*event)->timing = !(flags & cudaEventDisableTiming);
  (*event)->device = device;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event->device != stream->device) return result(cudaErrorInvalidResourceHandle);
  if (event->timing && !stream->capture)
    enqueue_rest(stream, [event] { event->at = std::chrono::steady_clock::now(); });
  std::lock_guard lock(stream->mutex);
  if (stream->capture && stream->capture->invalid) return result(cudaErrorStreamCaptureInvalidated);
  event->stream = stream;
  event->capture = stream->capture;
  event->ticket = stream->put;
  event->after = stream->after;
  return cudaSuccess;
}
// On one thread a stream's work is done before it goes on: waiting for an event is doing what lies before it.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!event->stream) return cudaSuccess;
  if (stream->capture || event->capture) return wait_on_recorded(stream, event);
  if (event->stream->done < event->ticket)
    enqueue_late(stream, [of = event->stream, ticket = event->ticket] { drain(*of, ticket); });
  return cudaSuccess;
}
// Of an event that is part of a recording nothing can be said.
static cudaError_t may_ask(cudaEvent_t event) {
  if (event->capture) {
    event->capture->invalid = true;
    return result(cudaErrorCapturedEvent);
  }
  return unsafe_call();
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t e = may_ask(event); e != cudaSuccess) return e;
  if (!event->stream) return cudaSuccess;
  return result(event->stream->done >= event->ticket ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t e = may_ask(event); e != cudaSuccess) return e;
  count_wait();
  if (event->stream) drain(*event->stream, event->ticket);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  if (!from->timing || !to->timing || !from->stream || !to->stream) return result(cudaErrorInvalidValue);
  if (cudaEventQuery(from) != cudaSuccess || cudaEventQuery(to) != cudaSuccess) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new Graph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const Node& n : exec->nodes)
    if (n.hangs && n.hangs()) {
      ++launches;
      enqueue_late(stream, n.hung);
      return cudaSuccess;
    }
  ++launches;
  enqueue_rest(stream, [exec] { do_in_order(*exec); });
  if (exec->collective) drain(*stream, stream->put);
  return cudaSuccess;
}
// What has been launched is done first.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  drain_all();
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
