#include "cuda_runtime.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace emulator {

struct Event {
  Stream* stream = nullptr;
  uint64_t ticket = 0;
  Stream* recorded = nullptr;  // the stream of the recording that it is a part of
  bool timing = false;
  std::chrono::steady_clock::time_point at;  // when the work before it was done
};

struct Graph {
  std::vector<std::function<void()>> work;
  bool meets = false;  // other ranks
};

struct Stream {
  int device = 0;
  // Of a recording: the stream that began it, for that one and those that have joined it.
  Stream* capturing = nullptr;
  std::vector<Stream*> joined;
  Graph recorded;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // of a recording that it has begun
  bool spoilt = false;                                        // that has done what a recording may not
  std::mutex mutex;
  std::condition_variable changed;
  bool busy = false;    // some thread does the work that was first; the others wait until it is done
  bool beside = false;  // a thread of its own does its work
  std::deque<std::function<void()>> waiting;
  std::atomic<uint64_t> put = 0, done = 0;  // events are asked on other threads while work is done
};

namespace {

long setting(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::atol(text) : otherwise;
}

thread_local int device = 0;
thread_local cudaError_t last_error = cudaSuccess;

// As on a device, "not ready" stays to be found by cudaGetLastError().
cudaError_t result(cudaError_t e) {
  if (e != cudaSuccess) last_error = e;
  return e;
}

// Recordings that this thread has begun in a mode that is not relaxed, and those of all threads in the global one.
thread_local std::vector<Stream*> own_recordings;
std::atomic<int> global_recordings = 0;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// Whether a call that takes no part in a recording and might be meant to is refused to this thread
// (cudaThreadExchangeStreamCaptureMode); the thread's recordings are of no use then.
bool unsafe_now() {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
  for (Stream* s : own_recordings) s->spoilt = true;
  return !own_recordings.empty() || (thread_mode == cudaStreamCaptureModeGlobal && global_recordings > 0);
}
cudaError_t refused(Stream* recorded = nullptr) {
  if (recorded) recorded->spoilt = true;
  return result(cudaErrorStreamCaptureUnsupported);
}

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
      p = d.base + d.top;
      if (d.top + bytes > kRange) return nullptr;
      d.top += bytes;
      if (open_ > 0) protect(p, bytes, true);
    }
    d.used += bytes;
    d.blocks[p] = bytes;
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

  // The device whose allocated memory [p, p + bytes) is, -1 for the host's. Stops where it is a device's but not allocated.
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

  size_t used(int of) {
    std::lock_guard lock(mutex_);
    return devices_[static_cast<size_t>(of)].used;
  }
  size_t most() const { return most_; }
  int count() const { return static_cast<int>(devices_.size()); }

 private:
  static constexpr size_t kPage = 4096, kRange = size_t{64} << 30;
  struct Device {
    char* base = nullptr;
    size_t top = 0, used = 0;
    std::map<char*, size_t> blocks, free;
  };

  Memory() : devices_(static_cast<size_t>(setting("EMULATED_DEVICES", 2))), most_(static_cast<size_t>(setting("EMULATED_MEMORY_MB", 4096)) << 20) {
    for (Device& d : devices_) {
      void* p = mmap(nullptr, kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) stop("no address space for a device");
      d.base = static_cast<char*>(p);
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

std::mutex streams_mutex;
std::vector<Stream*>& streams() {
  static auto* all = new std::vector<Stream*>;
  return *all;
}

}  // namespace

void with_memory(const std::function<void()>& work) { do_now(work); }

void enqueue(Stream* s, std::function<void()> work) {
  if (!s) stop("work for the default stream: every rank has its own");
  std::unique_lock lock(s->mutex);
  if (s->capturing) {
    s->capturing->recorded.work.push_back(std::move(work));  // in the order of the calls: one of those that are allowed
    return;
  }
  auto opened = [work = std::move(work)] { do_now(work); };
  if (lazy() || s->busy || s->beside || !s->waiting.empty()) return put(*s, std::move(opened));
  do_one(*s, lock, opened, false);
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

void enqueue_meeting(Stream* s, std::function<void()> work) {
  enqueue(s, std::move(work));
  if (s->capturing)
    s->capturing->recorded.meets = true;
  else
    drain(*s, s->put);
}

}  // namespace emulator

using namespace emulator;

// Whether the host may touch device memory from now on. Opening and closing it for each kernel takes most of a test's time.
extern "C" void emulated_strict(int strict) {
  static bool now = setting("EMULATED_STRICT", 1) != 0;
  if (now == (strict != 0)) return;
  now = !now;
  now ? Memory::get().close() : Memory::get().open();
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = Memory::get().count();
  return result(*count ? cudaSuccess : cudaErrorNoDevice);
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
  *value = attribute == cudaDevAttrMultiProcessorCount          ? 4
      : attribute == cudaDevAttrComputeCapabilityMajor         ? 9
      : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? static_cast<int>(emulator::shared_bytes_of_block())
                                                             : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  if (unsafe_now()) return refused();
  std::vector<Stream*> all;
  {
    std::lock_guard lock(streams_mutex);
    all = streams();
  }
  for (Stream* s : all)
    if (s->device == device) drain(*s, s->put);
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
    case cudaErrorNotReady: return "cudaErrorNotReady";
    default: return "cudaErrorInvalidValue";
  }
}
const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaErrorMemoryAllocation ? "out of memory" : e == cudaSuccess ? "no error" : "an emulated error";
}

cudaError_t cudaMalloc(void** p, size_t bytes) {
  if (unsafe_now()) return refused();
  *p = Memory::get().take(device, bytes);
  return result(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* p) {
  if (!p) return cudaSuccess;
  if (unsafe_now()) return refused();
  cudaDeviceSynchronize();  // as the real one does
  return result(Memory::get().give(p) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = Memory::get().most();
  *free = *total - Memory::get().used(device);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  if (unsafe_now()) return refused();
  *p = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return result(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void* p) {
  if (unsafe_now()) return refused();
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** to, void* host, unsigned) {
  *to = host;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const bool to_device = Memory::get().owner(to, bytes) >= 0, from_device = Memory::get().owner(from, bytes) >= 0;
  const bool fits = kind == cudaMemcpyDefault || (to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
                                                  from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice));
  if (!fits) return result(cudaErrorInvalidValue);
  enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_index, const void* from, int from_index, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (Memory::get().owner(to, bytes) != to_index || Memory::get().owner(from, bytes) != from_index) return result(cudaErrorInvalidValue);
  enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (Memory::get().owner(p, bytes) < 0) return result(cudaErrorInvalidValue);
  enqueue(stream, [=] { std::memset(p, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new Stream;
  (*stream)->device = device;
  std::lock_guard lock(streams_mutex);
  streams().push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) { return cudaStreamCreateWithFlags(stream, flags); }
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
  if (stream->capturing || unsafe_now()) return refused(stream->capturing);
  drain(*stream, stream->put);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream->capturing || unsafe_now()) return refused(stream->capturing);
  return result(stream->done == stream->put ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new Event;
  (*event)->timing = !(flags & cudaEventDisableTiming);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  std::lock_guard lock(stream->mutex);
  event->stream = stream;
  event->recorded = stream->capturing;
  if (event->timing && !stream->capturing) enqueue(stream, [event] { event->at = std::chrono::steady_clock::now(); });
  event->ticket = stream->put;
  return cudaSuccess;
}
// On one thread a stream's work is done before it goes on: waiting for an event is doing what lies before it.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!event->stream) return cudaSuccess;
  if (event->recorded) {
    if (stream->capturing && stream->capturing != event->recorded) return result(cudaErrorStreamCaptureIsolation);
    if (!stream->capturing) {
      drain(*stream, stream->put);
      stream->capturing = event->recorded;
      event->recorded->joined.push_back(stream);
    }
    return cudaSuccess;
  }
  if (stream->capturing) return result(cudaErrorStreamCaptureIsolation);
  if (event->stream->done < event->ticket)
    enqueue_late(stream, [of = event->stream, ticket = event->ticket] { drain(*of, ticket); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->recorded) return result(cudaErrorCapturedEvent);
  if (unsafe_now()) return refused();
  if (!event->stream) return cudaSuccess;
  return result(event->stream->done >= event->ticket ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->recorded) return result(cudaErrorCapturedEvent);
  if (unsafe_now()) return refused();
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

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(thread_mode, *mode);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream->capturing) return result(cudaErrorInvalidValue);
  stream->capturing = stream;
  stream->recorded = {};
  stream->mode = mode;
  stream->spoilt = false;
  if (mode != cudaStreamCaptureModeRelaxed) own_recordings.push_back(stream);
  if (mode == cudaStreamCaptureModeGlobal) ++global_recordings;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (stream->capturing != stream) return result(cudaErrorInvalidValue);
  stream->capturing = nullptr;
  for (Stream* s : stream->joined) s->capturing = nullptr;
  stream->joined.clear();
  if (stream->mode != cudaStreamCaptureModeRelaxed && std::erase(own_recordings, stream) == 0)
    return result(cudaErrorStreamCaptureWrongThread);
  if (stream->mode == cudaStreamCaptureModeGlobal) --global_recordings;
  Graph recorded = std::move(stream->recorded);
  stream->recorded = {};
  *graph = stream->spoilt ? nullptr : new Graph(std::move(recorded));
  return result(stream->spoilt ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = !stream->capturing    ? cudaStreamCaptureStatusNone
      : stream->capturing->spoilt ? cudaStreamCaptureStatusInvalidated
                                  : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new Graph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  enqueue(stream, [work = exec->work] {
    for (auto& w : work) w();
  });
  if (exec->meets) drain(*stream, stream->put);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
