// Caching allocator of pinned (page-locked) host memory, which devices read and write while the host goes on. A block
// that is freed is given out again when the copies that use it are done. It knows the devices by a driver only.
//
// Sizes are rounded up to classes, four for each power of two. Blocks of at most 1 MiB are cut from segments of 2 MiB,
// a larger one is a segment of its own.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "holon/array/device_allocator.h"

namespace holon {

// For any number of threads.
class PinnedAllocator {
 public:
  using Stream = DeviceDriver::Stream;
  struct Block;
  static void* data(const Block* block);

  // The driver takes and gives pinned memory; record() is called with the stream's device current on the thread.
  explicit PinnedAllocator(DeviceDriver& driver);
  ~PinnedAllocator();  // gives all segments back
  PinnedAllocator(const PinnedAllocator&) = delete;
  PinnedAllocator& operator=(const PinnedAllocator&) = delete;

  // At least `bytes` bytes, aligned to 512. Errors (RuntimeError): the system pins no more, also with all that was
  // cached given back; names the size, what is in use and what is cached.
  Block* allocate(size_t bytes);
  // The host does not use it any more. Work that was told of by used_on() may.
  void free(Block* block);
  // Work that uses the block has just been put on the stream.
  void used_on(Block* block, Stream stream);

  MemoryStats stats();
  // Gives segments without blocks in use back to the system. Waits for the copies that use freed blocks.
  void release_cached();

 private:
  struct Segment;
  struct State;

  Block* find(size_t bytes);
  Block* carve(size_t bytes);
  Block* take(Block* block);
  void put_back(Block* block);
  void settle();
  void wait_for_pending();
  void give_segments();
  [[noreturn]] void out_of_memory(size_t bytes);

  DeviceDriver& driver_;
  std::mutex mutex_;
  std::unique_ptr<State> s_;
};

}  // namespace holon
