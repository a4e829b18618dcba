// One rank's view of all ranks: the control block they share, where their buffers are, and whether they still run.
// A transport is a World: how ranks are reached, not how collectives are done.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "holon/comm/control.h"

namespace holon::comm {

class World {
 public:
  virtual ~World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const ControlBlock& block() const { return block_; }
  int64_t spin_ns() const { return spin_ns_; }
  double timeout_s() const { return timeout_s_; }

  // Where peers find this buffer of mine; nullopt: it is not in memory that they reach.
  virtual std::optional<uint64_t> publish(const void* data, size_t bytes) const = 0;
  // The address at which I read what `rank` has published.
  virtual const std::byte* address(int rank, uint64_t offset) const = 0;
  // How the rank ended, as "has exited" or "was killed or has crashed"; empty while it runs.
  virtual std::string ended(int rank) const = 0;
  // Tells the launcher, if there is one, with which rank the trouble began. Only the first report counts.
  virtual void report_failure(int rank) {}

  // True for the first reason of the world, which is the one that others see.
  bool abort(const std::string& reason);
  // This rank will not communicate any more.
  void finish();

 protected:
  // Reads the settings. cores: what the ranks share among them.
  World(int rank, int size, ControlBlock block, int cores, bool threads);

 private:
  const int rank_, size_;
  const ControlBlock block_;
  int64_t spin_ns_;
  double timeout_s_;
};

// The world of the current context. The first call of a rank that is a process waits for all other ranks to come.
World& world();
// Gives the current context its world, before its first call of world().
void adopt_world(std::shared_ptr<World> world);

}  // namespace holon::comm
