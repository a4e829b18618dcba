// Where this host is on the network: for the store, and for the data of other hosts.
#pragma once

#include <string>
#include <vector>

#include "holon/comm/bootstrap/tcp.h"

namespace holon::comm {

struct NetworkAddress {
  std::string ip;
  std::string why;    // how it was chosen, for messages: "eth0, as HOLON_NET_INTERFACE says"
  bool sure = false;  // else a guess: nothing has been reached by it
};

// The address at which ranks of other hosts reach this one: that of HOLON_NET_INTERFACE where it is set; else the one
// by which this host has reached the store; else, where that is the loopback one and ranks are on several hosts, the
// first of an interface that is up. Errors: there is no such interface, or it has no address.
NetworkAddress network_address(const Address& by_which_the_store_was_reached, bool several_hosts);

// Where the store of MASTER_ADDR is to listen: at the addresses of this host that the name means here. Where it means
// none, or none that others reach though ranks are on several hosts: at the one of HOLON_NET_INTERFACE, else at all.
// Errors: the name has no address within limit_s.
std::vector<Address> store_addresses(const std::string& master_addr, int port, bool several_hosts, double limit_s);

// Whether one of the name's addresses is of this host. Errors: it has none within limit_s.
bool is_this_host(const std::string& name, double limit_s);

// "eth0 10.0.0.2, lo 127.0.0.1": of the interfaces that are up.
std::string list_interfaces();

}  // namespace holon::comm
