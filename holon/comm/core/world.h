// One rank's view of all ranks: the control block they share, where their buffers are, and whether they still run.
// A transport is a World: how ranks are reached, not how collectives are done.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "holon/base/fork.h"
#include "holon/base/index.h"
#include "holon/comm/core/control.h"

namespace holon::comm {

class Network;

// Which host each rank runs on. Hosts are numbered in the order of their first ranks. Nothing: all on one.
struct Hosts {
  std::vector<int> of_rank;
  std::vector<std::string> names;
};

// Says that a forked process was about to communicate. Pre: forked_from() is not empty.
[[noreturn]] void fail_forked(const char* op);

class World {
 public:
  virtual ~World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const ControlBlock& block() const { return block_; }
  // How long a waiting rank spins; where there are more ranks than cores, how often it lets others run instead, before
  // it sleeps.
  int64_t spin_ns() const { return spin_ns_; }
  int yields() const { return yields_; }
  double timeout_s() const { return timeout_s_; }
  // What the ranks of this host share, and how many they are.
  int cores_here() const { return cores_here_; }
  int ranks_here() const { return ranks_here_; }

  int host_of(int rank) const { return hosts_.of_rank.empty() ? 0 : at_index(hosts_.of_rank, rank); }
  const std::string& host_name(int host) const { return at_index(hosts_.names, host); }
  const Hosts& hosts() const { return hosts_; }
  bool several_hosts() const { return hosts_.names.size() > 1; }
  // What connects this rank with those of other hosts. Pre: several_hosts().
  virtual Network& network() const;

  // Where peers of this host find this buffer of mine; nullopt: it is not in memory that they reach.
  virtual std::optional<uint64_t> publish(const void* data, size_t bytes) const = 0;
  // The address at which I read what `rank`, of this host, has published.
  virtual const std::byte* address(int rank, uint64_t offset) const = 0;
  // How the rank, of this host, ended, as "has exited", "was killed or has crashed" or "has failed: ..."; empty while
  // it runs.
  std::string ended(int rank) const;
  // Tells the launcher, if there is one, with which rank the trouble began. Only the first report counts.
  virtual void report_failure(int rank) {}

  // Tells the other hosts why a rank of this one has failed.
  virtual void spread_abort(int rank, const std::string& reason) {}

  // In a process that was forked from one of its ranks, which has nothing to say or to ask there: what would reach the
  // others raises, or does nothing where a rank ends.
  bool inherited() const { return mark_.inherited(); }
  // Errors: the world is inherited. op: what was called.
  void require_own(const char* op) const {
    if (inherited()) [[unlikely]]
      fail_forked(op);
  }

  // True for the first reason of the world, which is the one that others see.
  bool abort(const std::string& reason);
  // This rank will not communicate any more.
  void finish();

 protected:
  // Reads the settings. cores: what the ranks of this host share among them.
  World(int rank, int size, ControlBlock block, int cores, bool threads, Hosts hosts = {});

 private:
  // As ended(), by the rank's process or thread alone.
  virtual std::string how_it_ended(int rank) const = 0;

  const int rank_, size_;
  const ForkMark mark_;
  const ControlBlock block_;
  const Hosts hosts_;
  int64_t spin_ns_;
  int yields_ = 0;
  double timeout_s_;
  int cores_here_, ranks_here_;
};

// The world of the current context. The first call of a rank that is a process waits for all other ranks to come.
World& world();
// Gives the current context its world, before its first call of world().
void adopt_world(std::shared_ptr<World> world);
// The current context has no world: calls of world() raise this (RuntimeError).
void refuse_world(std::string why);

// A rank's threads that communicate have a Context and a channel each, on one World: the groups of different channels
// are different groups, so that their calls are never taken for each other's. 0 is the rank's own thread's.
std::shared_ptr<World> shared_world();
void set_channel(int channel);  // of the current context, before its first communicator()
int channel();

}  // namespace holon::comm
