// Where this host is on the network.
#pragma once

#include <string>

namespace holon::comm {

// The address at which ranks of other hosts reach this one: that of HOLON_NET_INTERFACE where it is set; else the one
// from which this host reaches master_addr; else the first that is no loopback. Errors: no such interface or address.
std::string network_address(const std::string& master_addr);

}  // namespace holon::comm
