// Ranks as threads of one process: everybody's addresses are everybody's.
#pragma once

#include <memory>

#include "holon/comm/world.h"

namespace holon::comm {

// The control block of a world of threads.
class ThreadBlock {
 public:
  explicit ThreadBlock(int world_size);
  ~ThreadBlock();
  ThreadBlock(const ThreadBlock&) = delete;
  ThreadBlock& operator=(const ThreadBlock&) = delete;
  const ControlBlock& block() const { return block_; }

 private:
  void* base_;
  ControlBlock block_;
};

// Pre: rank < the block's world size.
std::shared_ptr<World> make_thread_world(std::shared_ptr<ThreadBlock> block, int rank);

}  // namespace holon::comm
