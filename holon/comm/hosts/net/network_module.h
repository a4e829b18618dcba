// What a module with a network exports, and what it is called with (hosts/net/connect.cpp loads it).
#pragma once

#include <functional>
#include <map>
#include <string>

#include "holon/comm/bootstrap/socket.h"
#include "holon/comm/core/network.h"

namespace holon::comm {

struct NetworkStart {
  int rank = 0, size = 0;
  std::string address;            // of this host, by which the others reach it: the network listens nowhere else
  std::map<int, Fd> connections;  // with every rank of every other host; both ends have shown that they know the token
  double timeout_s = 0;           // for all that is done before the network is returned
  std::function<std::string()> trouble;  // asked now and then for a reason to give up, empty if there is none
};

// Collective over the world. The caller owns the result. Errors: the network cannot be used.
using NetworkEntry = Network*(NetworkStart* start);

}  // namespace holon::comm
