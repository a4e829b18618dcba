// Where this host is on the network, and the connections with others.
#pragma once

#include <memory>
#include <string>

#include "holon/comm/bootstrap/store.h"
#include "holon/comm/net/network.h"
#include "holon/comm/world.h"

namespace holon::comm {

// The address at which ranks of other hosts reach this one: that of HOLON_NET_INTERFACE where it is set; else the one
// from which this host reaches master_addr; else the first that is no loopback. Errors: no such interface or address.
std::string network_address(const std::string& master_addr);

// Connects this rank with every rank of every other host, through the store. Collective over the world. Errors: they do
// not reach each other within timeout_s.
std::unique_ptr<Network> connect_network(int rank, const Hosts& hosts, const std::string& address, StoreClient& store,
                                         double timeout_s);

}  // namespace holon::comm
