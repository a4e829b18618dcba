// Ranks as threads of one process: everybody's addresses are everybody's.
#pragma once

#include <memory>

#include "holon/comm/core/world.h"
#include "holon/comm/local/thread_network.h"

namespace holon::comm {

// The control block of a world of threads.
class ThreadBlock {
 public:
  // hosts: which of the ranks play at being on their own hosts; empty: all on one.
  explicit ThreadBlock(int world_size, Hosts hosts = {});
  ~ThreadBlock();
  ThreadBlock(const ThreadBlock&) = delete;
  ThreadBlock& operator=(const ThreadBlock&) = delete;
  const ControlBlock& block() const { return block_; }
  const Hosts& hosts() const { return hosts_; }
  const std::shared_ptr<ThreadHub>& hub() const { return hub_; }

 private:
  void* base_;
  ControlBlock block_;
  Hosts hosts_;
  std::shared_ptr<ThreadHub> hub_ = std::make_shared<ThreadHub>();
};

// Pre: rank < the block's world size.
std::shared_ptr<World> make_thread_world(std::shared_ptr<ThreadBlock> block, int rank);

}  // namespace holon::comm
