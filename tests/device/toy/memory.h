// The toy's memory. What the host sees of it are addresses that it can neither read nor write; the bytes are elsewhere
// in the process, where only the toy's own work looks for them.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "holon/array/device_allocator.h"
#include "toy/stream.h"

namespace toy {

// With TOY_SHARED=1 the host may read and write it after all: the addresses are those of the bytes.
bool shared_with_host();

// Where the bytes of an address are.
std::byte* bytes_at(const void* address);

// What holon::DeviceAllocator, which caches and shares out memory, asks a device for.
class Memory final : public holon::DeviceDriver {
 public:
  explicit Memory(int index);

  void* take(size_t bytes) override;
  void give(void* segment) override;
  Bytes bytes() override;
  std::string name() override { return "toy:" + std::to_string(index_); }

  Event record(Stream stream) override;
  bool done(Event event) override;
  void wait(Event event) override;
  void drop(Event event) override;

 private:
  const int index_;
  std::mutex mutex_;
  size_t used_ = 0;                     // of the device's addresses, from their beginning on
  std::map<void*, size_t> taken_;       // and how large they are
  std::multimap<size_t, void*> given_;  // by size
};

}  // namespace toy
