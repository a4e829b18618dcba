#include "holon/comm/core/factory.h"

#include <algorithm>
#include <memory>

#include "holon/comm/hosts/hosts_communicator.h"
#include "holon/comm/local/group_communicator.h"
#include "holon/comm/local/self_communicator.h"
#include "holon/comm/local/thread_world.h"
#include "holon/comm/process_world.h"

namespace holon::comm {

namespace {

class Transports final : public Factory {
 public:
  std::shared_ptr<World> make_world(Context& rank) const override {
    return rank.world_size() == 1 ? make_thread_world(std::make_shared<ThreadBlock>(1), 0) : join_processes(rank);
  }

  std::unique_ptr<Communicator> make_communicator(GroupOfRank group) const override {
    auto& ranks = group.ranks;
    if (ranks.size() == 1) return std::make_unique<SelfCommunicator>(ranks[0], group.stats);
    World& w = world();
    if (std::any_of(ranks.begin(), ranks.end(), [&](int r) { return w.host_of(r) != w.host_of(ranks[0]); }))
      return std::make_unique<HostsCommunicator>(w, std::move(ranks), group.index, group.stats, group.site);
    return std::make_unique<GroupCommunicator>(w, std::move(ranks), group.index, group.stats, group.site,
                                               group.channel);
  }
};

[[maybe_unused]] const bool is_set = [] {
  static const auto* transports = new Transports;
  set_factory(*transports);
  return true;
}();

}  // namespace

}  // namespace holon::comm
