// Watches over a world of several hosts, in a thread of each rank: what happens on one host is told to the ranks of all
// others at once, whatever they are doing, and a host of which nothing is heard any more is given up.
//
// A rank leaves its will in the store, which announces it when the rank's connection ends without a message; one rank
// of each host listens there, and the next one does when that has ended.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "holon/comm/bootstrap/rendezvous.h"
#include "holon/comm/core/control.h"
#include "holon/comm/core/network.h"
#include "holon/comm/local/fd_exchange.h"

namespace holon::comm {

class Sentry {
 public:
  // local: the ranks of this host. processes: of each rank of the world, those of this host watched. Starts the thread,
  // which runs for as long as the process.
  Sentry(ControlBlock block, int rank, std::vector<int> local, const std::vector<Watched>& processes,
         const Rendezvous& rendezvous);
  // What other ranks are to hear of this one if its connection to the store ends, e.g. "was killed".
  static void leave_will(const Rendezvous& rendezvous, int rank, const std::string& what);
  // From now on its connections are looked after too. It must stay until the rank has finished.
  void look_after(Network& network);
  // Why the world has failed; empty while it has not.
  std::string trouble() const;
  // The rank ends in order: nobody is to miss it.
  void leave(StoreClient& store) const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's too
};

}  // namespace holon::comm
