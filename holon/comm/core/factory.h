// What knows the transports. Communication asks it for a rank's world and for communicators (comm/factory.cpp).
#pragma once

#include <memory>
#include <vector>

#include "holon/base/context.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/core/world.h"

namespace holon::comm {

// Of the group that a communicator is for. Stats and site are the rank's, and outlive it.
struct GroupOfRank {
  std::vector<int> ranks;
  int index = 0;
  CommStats& stats;
  const char* site;
  int channel = 0;
};

class Factory {
 public:
  virtual ~Factory() = default;
  // For a rank that is a process, or the only one. Collective; errors: the others do not come.
  virtual std::shared_ptr<World> make_world(Context& rank) const = 0;
  // Pre: the group names existing ranks, each once, and this one among them.
  virtual std::unique_ptr<Communicator> make_communicator(GroupOfRank group) const = 0;
};

// Set before main(), and never destroyed.
void set_factory(const Factory& factory);

}  // namespace holon::comm
