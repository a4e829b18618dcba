// Caching allocator of one device's memory, in the order of streams: what is freed on a stream is used again there at
// once, and by other streams when the work before it is done. It knows the device by a driver only.
//
// Memory comes in segments: 2 MiB for blocks of at most 1 MiB, 20 MiB for those below 10 MiB, one of its own (a
// multiple of 2 MiB) for each larger one. Segments are split, and free neighbours joined; the smallest block that fits
// is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "holon/array/storage.h"

namespace holon {

class DeviceDriver {
 public:
  using Stream = void*;
  using Event = void*;
  struct Bytes {
    size_t free = 0, total = 0;
  };
  virtual ~DeviceDriver() = default;
  virtual void* take(size_t bytes) = 0;     // nullptr: the device has no more
  virtual void give(void* segment) = 0;     // waits for the device's work itself
  virtual Event record(Stream stream) = 0;  // what is on the stream now
  virtual bool done(Event event) = 0;
  virtual void wait(Event event) = 0;
  virtual void drop(Event event) = 0;
  virtual Bytes bytes() = 0;
  virtual std::string name() = 0;
};

// For any number of threads. Pre: no stream is nullptr.
class DeviceAllocator {
 public:
  using Stream = DeviceDriver::Stream;
  using PoolId = uint64_t;
  struct Block;
  static void* data(const Block* block);

  explicit DeviceAllocator(DeviceDriver& driver);
  ~DeviceAllocator();  // gives all segments back
  DeviceAllocator(const DeviceAllocator&) = delete;
  DeviceAllocator& operator=(const DeviceAllocator&) = delete;

  // At least `bytes` bytes, aligned to 512, for work that is put on the stream from here on. Errors (RuntimeError): out
  // of memory, also with all that was cached given back; names the size, what is in use and cached, and what the device
  // has.
  Block* allocate(Stream stream, size_t bytes);
  // No further work uses it.
  void free(Block* block);
  // Work on this stream, too, uses it. For all such work that has been put there when it is freed.
  void record_stream(Block* block, Stream stream);

  // A recording (CUDA graph) of the stream begins: its memory comes from a pool of its own, and what is freed on the
  // stream meanwhile is not given to others, until the pool is released. Pre: the stream is not being recorded. with:
  // the pool of an earlier recording of the stream, of which one more release() is needed then.
  PoolId begin_recording(Stream stream, PoolId with = 0);
  void end_recording(Stream stream);
  // The recording is not done any more; its last run has been put on the stream.
  void release(PoolId pool);

  MemoryStats stats();
  void reset_peak();
  // Gives segments without live blocks back to the device. Waits for the device's work.
  void release_cached();

 private:
  struct Segment;
  struct Pool;
  struct StreamState;
  struct Pending;
  struct State;

  Block* find(Pool& pool, bool small, Stream stream, size_t bytes);
  Block* grow(Pool& pool, bool small, size_t bytes);
  Block* reclaim(bool small, Stream stream, size_t bytes);
  Block* give_out(Block* block, Stream stream, size_t bytes);
  void cut(Block* block, size_t bytes);
  void put_back(Block* block);
  void insert(Block* block);
  void remove(Block* block);
  Block* join(Block* block);
  void lend(bool small, Stream to, size_t bytes);
  void settle(Stream stream, uint64_t until);
  void settle_all();
  void look_at_pending(bool wait);
  void give_segments();
  bool recording(Stream stream) const;
  [[noreturn]] void out_of_memory(size_t bytes);

  DeviceDriver& driver_;
  std::mutex mutex_;
  std::unique_ptr<State> s_;
};

}  // namespace holon
