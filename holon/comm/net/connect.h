// The connections with other hosts.
#pragma once

#include <memory>
#include <string>

#include "holon/comm/bootstrap/store.h"
#include "holon/comm/net/network.h"
#include "holon/comm/world.h"

namespace holon::comm {

// Connects this rank with every rank of every other host, through the store. Collective over the world. Errors: they do
// not reach each other within timeout_s.
std::unique_ptr<Network> connect_network(int rank, const Hosts& hosts, const std::string& address, StoreClient& store,
                                         double timeout_s);

}  // namespace holon::comm
