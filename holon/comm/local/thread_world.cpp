#include "holon/comm/local/thread_world.h"

#include <sys/mman.h>

#include <cstring>

#include "holon/base/error.h"
#include "holon/comm/core/cores.h"

namespace holon::comm {

ThreadBlock::ThreadBlock(int world_size, Hosts hosts) : hosts_(std::move(hosts)) {
  base_ = mmap(nullptr, ControlBlock::kRegionBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
               -1, 0);
  if (base_ == MAP_FAILED)
    fail_runtime("there is no address space for the control block of {} ranks ({} MiB): {}.", world_size,
                 ControlBlock::kRegionBytes >> 20, strerror(errno));
  block_ = ControlBlock(base_, false);
  block_.create(world_size);
}

ThreadBlock::~ThreadBlock() { munmap(base_, ControlBlock::kRegionBytes); }

namespace {

class ThreadWorld final : public World {
 public:
  ThreadWorld(std::shared_ptr<ThreadBlock> block, int rank)
      : World(rank, block->block().world_size(), block->block(), CoreSet::of_this_process().count(), true,
              block->hosts()),
        block_(std::move(block)),
        network_(block_->hub(), rank) {}

  std::optional<uint64_t> publish(const void* data, size_t) const override { return reinterpret_cast<uint64_t>(data); }
  const std::byte* address(int, uint64_t offset) const override { return reinterpret_cast<const std::byte*>(offset); }
  std::string how_it_ended(int rank) const override {
    return block().rank_entry(rank).finished.load() ? "has ended" : "";
  }

  Network& network() const override { return network_; }

 private:
  std::shared_ptr<ThreadBlock> block_;
  mutable ThreadNetwork network_;
};

}  // namespace

std::shared_ptr<World> make_thread_world(std::shared_ptr<ThreadBlock> block, int rank) {
  return std::make_shared<ThreadWorld>(std::move(block), rank);
}

}  // namespace holon::comm
