// A rank of the exchange of descriptors, as a test plays it.
#pragma once

#include <string>

#include "holon/comm/bootstrap/socket.h"

namespace holon::comm::test {

// Connects to the leader as the rank of that place and sends it a descriptor of memory of so many bytes; what follows
// is the test's. Errors: the leader is not reached.
Fd introduce(const std::string& leader, int place, long size_bytes);

}  // namespace holon::comm::test
