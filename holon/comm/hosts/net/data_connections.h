// Connections for data between ranks of different hosts: who is at the other end is known before a byte of data moves.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "holon/comm/bootstrap/rendezvous.h"
#include "holon/comm/bootstrap/socket.h"

namespace holon::comm {

// A connection of this rank with every rank of every other host, by rank. Of two ranks the higher one connects; the
// other listens, at its own address only, until all that it waits for have shown that they know the token: whoever else
// comes is dropped. Collective over the world. Errors: they do not reach each other within timeout_s; what trouble,
// which is asked now and then, says.
std::map<int, Fd> connect_hosts(int rank, const Rendezvous& rendezvous, double timeout_s,
                                const std::function<std::string()>& trouble);

}  // namespace holon::comm
