// How the processes of a world find each other: all hand in who they are at the store and get everybody's answer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "holon/base/context.h"
#include "holon/comm/bootstrap/address.h"
#include "holon/comm/bootstrap/store.h"
#include "holon/comm/core/world.h"

namespace holon::comm {

struct RankInfo {
  int pid = 0;
  std::string host;     // the same for two ranks exactly when they share a running system
  std::string cores;    // as CoreSet writes them
  std::string socket;   // where the rank takes file descriptors: a name of the abstract Unix namespace
  std::string address;  // where ranks of other hosts reach it, as far as it knew before they had come
};

struct Rendezvous {
  std::unique_ptr<StoreServer> server;  // in rank 0, where nobody else serves the store
  std::unique_ptr<StoreClient> client;
  std::vector<RankInfo> ranks;
  Hosts hosts;                    // nothing where all ranks are on one
  NetworkAddress address;         // this rank's, where they are on several
  std::string store_host, token;  // how to connect to the store once more
  int store_port = 0;
};

// Blocks until all ranks of the world have come to MASTER_ADDR:MASTER_PORT. Errors, all within
// HOLON_RENDEZVOUS_TIMEOUT_S: ranks are missing (named), the port is in use, a rank is there twice, WORLD_SIZE or the
// token differ, ranks are of different builds. At once: ranks are on several hosts and have no token.
Rendezvous rendezvous(const Context& context, const std::string& socket_name);

}  // namespace holon::comm
