// The Communicator of ranks on several hosts: what crosses is sent once for each host (hosts/schedule.h), and is shared
// there through memory.
//
// A call that fails takes the whole world with it: ranks of other hosts cannot be told in any other way that what they
// wait for will not come.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "holon/base/index.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/core/network.h"
#include "holon/comm/core/world.h"
#include "holon/comm/hosts/schedule.h"

namespace holon::comm {

class HostsCommunicator final : public Communicator {
 public:
  HostsCommunicator(World& world, std::vector<int> ranks, int index, CommStats& stats, const char* site);
  ~HostsCommunicator() override;

  // Brings every member's buffer to every host: meant for the small things that ranks tell each other.
  std::span<const std::byte* const> open(const CallInfo& info, const void* data, size_t bytes) override;
  void close() override;

 private:
  class Block;  // memory that the ranks of this host reach
  class Pulling;
  enum Tag : uint64_t { kEnvelope = 1, kSizes, kData };
  // What a leader tells the next host of its call: bytes on the wire.
  struct Envelope {
    uint64_t fingerprint;
    DType dtype;
    char op[47];
    char text[320];  // op, shape, dtype, bytes, the user's line
  };

  // Sums are taken on each host first, then in the order of hosts.
  void do_pull(const CallInfo& info, const GroupPulls& pulls, const void* in, size_t in_bytes, void* out,
               size_t out_bytes) override;
  void check_order(const CallInfo& info, std::span<const Pull> pulls) const;
  void pull_or_throw(const CallInfo& info, const HostSchedule& s, const void* in, size_t in_bytes, void* out,
                     size_t out_bytes);
  // That of a phase, kept where the pulls have a key.
  std::shared_ptr<const HostSchedule> schedule_of(const GroupPulls& pulls, int phase, DType dtype);
  std::span<const std::byte* const> open_or_throw(const CallInfo& info, const void* data, size_t bytes);
  template <class F>
  auto guarded(const CallInfo& info, F&& f);
  void begin(const CallInfo& info, size_t bytes);
  void compare(const Envelope& theirs, int their_rank) const;
  void wait(Network::Transit& transit, bool received);
  std::string trouble(int64_t start_ns) const;
  std::string call_text() const;
  uint64_t tag(uint64_t kind, uint64_t a = 0, uint64_t b = 0) const;
  // The ranks that lead the hosts before and after this one, in a ring.
  struct Neighbours {
    int before, next;
  };
  Neighbours neighbours() const {
    const size_t n = by_host_.size(), me = to_size(my_host_);
    return {rank_of(by_host_[(me + n - 1) % n][0]), rank_of(by_host_[(me + 1) % n][0])};
  }
  int rank_of(int member) const { return at_index(ranks(), member); }
  bool leads() const { return local_->index() == 0; }

  World& world_;
  CommStats& stats_;
  const char* site_;
  std::vector<int> host_of_;               // of each member
  std::vector<std::vector<int>> by_host_;  // members of each of the group's hosts, in the order of their first members
  int my_host_ = 0;                        // place there
  Communicator* local_ = nullptr;          // of the members on this host
  std::vector<int> local_place_;           // of each member among its host's
  uint64_t hash_ = 0, check_ = 0, calls_ = 0;
  Envelope mine_{};
  std::string failed_;
  std::unordered_map<uint64_t, std::shared_ptr<const HostSchedule>> schedules_;
  std::unique_ptr<Block> shown_;  // what open() has gathered
  std::vector<const std::byte*> pointers_;
};

}  // namespace holon::comm
