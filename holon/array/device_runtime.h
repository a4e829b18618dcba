// What a backend (device_backend.h) does with its devices: memory, copies, the order of work. What it cannot do, its
// capabilities leave out, and the layers above do without.
//
// Work on a device is put in order on the current rank's stream, and a call returns before that work is done unless it
// says that it waits. What a kernel finds wrong is raised by the next call that waits or looks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "holon/array/device.h"
#include "holon/array/storage.h"

namespace holon {

struct DeviceProperties {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  size_t total_bytes = 0;
  int multiprocessors = 0;
};

// Work that was recorded instead of done, to be done as often as wanted.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Puts all of it on the current rank's stream. Pre: the memory it was recorded with is still there.
  virtual void launch() = 0;
};

// Where a kernel that is recorded finds the numbers of its draw: in memory of the device, so that each launch draws
// what its step is to draw. It takes *seed for its seed and adds *base to its counter; where they are nullptr it goes
// by its arguments alone. Kernels that draw set `read`; those that do not know of this cannot be recorded.
struct RecordedDraw {
  const uint64_t* seed = nullptr;
  const int64_t* base = nullptr;
  bool read = false;
};
// For the kernels that this thread runs in its scope.
class RecordedDrawScope {
 public:
  explicit RecordedDrawScope(RecordedDraw& draw);
  ~RecordedDrawScope();
  RecordedDrawScope(const RecordedDrawScope&) = delete;
  RecordedDrawScope& operator=(const RecordedDrawScope&) = delete;
};
RecordedDraw* recorded_draw();  // nullptr outside of such scopes

// A place in the order of a rank's work on a device. Of the rank that made it.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Moves it behind all work so far.
  virtual void record() = 0;
  // Whether the work before it is done. True for one that was never recorded.
  virtual bool query() = 0;
  virtual void synchronize() = 0;
  // Milliseconds from the one to the other as the device has counted them. Errors: one of them is not recorded, not
  // done, made without timing, or of another device.
  virtual double elapsed_ms(const DeviceEvent& since) = 0;
};

struct DeviceCapabilities {
  bool host_access = false;    // the host may read and write its memory while no work is under way there
  bool peer_copies = false;    // copy_between() takes two devices; else bytes travel through the host
  bool pinned_memory = false;  // allocate_pinned() and what is said to be of pinned memory
  bool recording = false;      // begin_capture() and its like, RecordedDraw in kernels that draw, RecordedUpdate
};

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual DeviceCapabilities capabilities() const = 0;
  virtual int device_count() const = 0;
  virtual DeviceProperties properties(int index) = 0;

  // Uninitialised memory, aligned to 256 bytes, usable from here on in the stream's order; freed in that order too.
  // Errors: out of memory, naming the size and what is in use.
  virtual Ref<Storage> allocate(int index, size_t bytes) = 0;
  virtual MemoryStats memory_stats(int index) = 0;
  virtual void reset_peak_memory(int index) = 0;
  virtual void release_cached_memory(int index) = 0;

  // Waits until the bytes have arrived.
  virtual void copy_to_host(int index, void* host, const void* device, size_t bytes) = 0;
  // The host's bytes may be changed as soon as it returns.
  virtual void copy_from_host(int index, void* device, const void* host, size_t bytes) = 0;
  // Memory of the host's that is page-locked, aligned to 512 bytes, from cached blocks; one is used again when the
  // copies below that use it are done. Errors: the system pins no more, naming the size and what is in use.
  virtual Ref<Storage> allocate_pinned(size_t bytes);
  virtual bool has_pinned(const Storage&) const { return false; }  // it is of allocate_pinned()
  virtual MemoryStats pinned_memory_stats() { return {}; }
  virtual void release_cached_pinned_memory() {}
  // Put on the stream, and not waited for: the host's bytes must not be changed (or looked at) before it is done. The
  // memory itself may be freed at once. Pre: the host's bytes are in `pinned`, for which has_pinned() is true.
  virtual void copy_to_pinned(int index, void* host, const void* device, size_t bytes, Storage& pinned);
  virtual void copy_from_pinned(int index, void* device, const void* host, size_t bytes, Storage& pinned);
  // On one device, or between two with peer_copies.
  virtual void copy_between(int to_index, void* to, int from_index, const void* from, size_t bytes) = 0;

  // Waits for all of the rank's work on the device. Errors: what that work found wrong.
  virtual void synchronize(int index) = 0;
  // Waits for all work of the process on the device, also of other libraries, with which memory is shared.
  virtual void wait_for_all(int index) { synchronize(index); }
  // Errors: what work that is done has found wrong. Does not wait, except under HOLON_SYNC=1.
  virtual void check(int index) = 0;
  // How often this thread has waited for a device or copied between it and the host: such work cannot be recorded.
  virtual int64_t host_waits() const { return 0; }
  virtual std::unique_ptr<DeviceEvent> make_event(int index, bool timing) = 0;
  // The op that the next work belongs to, for errors. The name is never freed.
  virtual void set_op(const char*) {}

  // What the rank puts on its stream of the device from begin to end is recorded and not done. Memory that is freed in
  // between is not given to others while the graph lives. Errors: work that cannot be recorded, e.g. a wait.
  // with: a recording whose memory this one may use too, as the two are never done at once.
  virtual void begin_capture(int index, const DeviceGraph* with = nullptr);
  virtual std::unique_ptr<DeviceGraph> end_capture(int index);
  // Ends a recording that has failed; no effect without one.
  virtual void abandon_capture(int) {}
};

// nullptr where there is no library or no device, and for the CPU. Loads a library that is known by name on the first
// call; thread-safe.
DeviceRuntime* device_runtime(DeviceType type);
inline DeviceRuntime* device_runtime(const Device& device) { return device_runtime(device.type); }
// In a few words, for errors. Pre: device_runtime(type) is nullptr.
const std::string& why_no_device(DeviceType type);
// That of the first type with pinned memory, nullptr where there is none.
DeviceRuntime* pinning_runtime();

// Uninitialised memory of a device, the host's included.
Ref<Storage> allocate_storage(size_t size_bytes, Device device);

// What else a check of a device raises, in addition to what its kernels report: set by the layer that moves data
// between devices.
void set_device_check(void (*check)());
// By the backend, in DeviceRuntime::check() and synchronize().
void run_device_check();

}  // namespace holon
