#include "holon/kernels/cuda/pinned.h"

#include <unistd.h>

#include "holon/array/pinned_allocator.h"
#include "holon/base/error.h"
#include "holon/kernels/cuda/event_driver.h"
#include "holon/kernels/cuda/stream.h"

namespace holon::kernels::cuda {

namespace {

class HostDriver final : public EventDriver {
 public:
  void* take(size_t bytes) override {
    OutsideOfRecording outside;
    // A thread without a device (a loader's) would wake up the first one, whosever that is.
    if (device_index() < 0)
      check(cudaSetDevice(device_in_use() >= 0 ? device_in_use() : device_of_rank(device_type(), false).index),
            "cudaSetDevice");
    void* p = nullptr;
    // Portable: pinned for all devices.
    const cudaError_t error = cudaHostAlloc(&p, bytes, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    check(error, "cudaHostAlloc");
    return p;
  }
  void give(void* segment) override {
    OutsideOfRecording outside;
    cudaFreeHost(segment);
  }
  Bytes bytes() override { return {}; }
  std::string name() override { return "pinned memory"; }
};

struct PinnedMemory {
  HostDriver driver;
  PinnedAllocator allocator{driver};
  const pid_t process = getpid();
};

// Never destroyed: storages may be freed by static destructors, when the driver is gone.
PinnedMemory& memory() {
  static auto* m = new PinnedMemory;
  return *m;
}

class PinnedStorage final : public Storage {
 public:
  PinnedStorage(PinnedAllocator::Block* block, size_t bytes)
      : Storage(PinnedAllocator::data(block), bytes), block_(block) {}
  // In a process that was forked the memory is the parent's.
  ~PinnedStorage() override {
    if (getpid() == memory().process) memory().allocator.free(block_);
  }
  bool is_pinned() const override { return true; }
  PinnedAllocator::Block* block() const { return block_; }

 private:
  PinnedAllocator::Block* block_;
};

}  // namespace

Ref<Storage> allocate_pinned(size_t bytes) {
  PinnedMemory& m = memory();
  if (getpid() != m.process)
    fail_runtime("pinned memory: {} bytes were requested in a process that was forked from one that uses CUDA, which "
                 "cannot pin. Pin in the process "
                 "that copies to the device: DataLoader(pin_memory=True) does.",
                 bytes);
  return make_ref<PinnedStorage>(m.allocator.allocate(bytes), bytes);
}

void used_on(Storage& pinned, cudaStream_t stream) {
  memory().allocator.used_on(static_cast<PinnedStorage&>(pinned).block(), stream);
}

bool is_pinned(const Storage& storage) { return dynamic_cast<const PinnedStorage*>(&storage); }
MemoryStats pinned_memory_stats() { return memory().allocator.stats(); }
void release_cached_pinned_memory() { memory().allocator.release_cached(); }

}  // namespace holon::kernels::cuda
