// Messages between ranks that are threads: whoever comes second copies.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "holon/comm/core/network.h"

namespace holon::comm {

// What the ranks of a world share.
class ThreadHub {
 private:
  friend class ThreadNetwork;
  struct End {
    std::byte* data;
    size_t bytes;
    bool* done;
  };
  struct Pending {
    End sender{}, receiver{};
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::tuple<int, int, uint64_t>, Pending> pending_;  // by source, destination, tag
};

class ThreadNetwork final : public Network {
 public:
  ThreadNetwork(std::shared_ptr<ThreadHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  std::unique_ptr<Transit> start(std::span<const Message> send, std::span<const Message> receive) override;

 private:
  class Flight;
  std::shared_ptr<ThreadHub> hub_;
  int rank_;
};

}  // namespace holon::comm
