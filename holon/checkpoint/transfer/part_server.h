// A rank's parts of tensors, for the ranks of another job.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "holon/array/array.h"
#include "holon/comm/bootstrap/socket.h"
#include "holon/global/slice.h"

namespace holon::checkpoint {

// The region of a tensor that this rank has, in the host's memory.
struct ServedPart {
  Region region;
  Array array;
};

// Answers requests (wire.h) on a thread of its own as long as it lives, for all who prove the token.
class PartServer {
 public:
  // listener: a socket that listens. The parts must not change.
  PartServer(comm::Fd listener, const std::string& token, const std::string& session,
             std::unordered_map<std::string, ServedPart> parts);
  ~PartServer();
  PartServer(const PartServer&) = delete;
  PartServer& operator=(const PartServer&) = delete;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace holon::checkpoint
