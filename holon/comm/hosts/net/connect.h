// The connections with other hosts.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "holon/comm/bootstrap/rendezvous.h"
#include "holon/comm/core/network.h"

namespace holon::comm {

// Connects this rank with every rank of every other host; all show that they know the token. Collective over the world.
// Errors: they do not reach each other within timeout_s; what trouble, which is asked now and then, says.
std::unique_ptr<Network> connect_network(int rank, const Rendezvous& rendezvous, double timeout_s,
                                         const std::function<std::string()>& trouble);

}  // namespace holon::comm
