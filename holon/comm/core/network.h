// Messages between ranks of different hosts. How they travel is the implementation's: between processes by a library
// that HOLON_NETWORK names (hosts/net/connect.cpp has the table), between ranks that are threads, which only play at
// several hosts, by a copy.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace holon::comm {

class Network {
 public:
  virtual ~Network() = default;

  // Sender and receiver name the same tag, and the same number of bytes. A tag is used once.
  struct Message {
    int rank;  // the other side
    uint64_t tag;
    void* data;  // of a message to be sent it is only read
    size_t bytes;
  };

  // Why messages will not arrive. rank: the other side, if it is its doing.
  struct Failure {
    int rank = -1;
    std::string how;  // empty: none. "has closed its connection", or what `trouble` returned
    explicit operator bool() const { return !how.empty(); }
  };

  // Messages on their way; their memory must stay until both waits have returned without failure, or the Transit is
  // gone.
  class Transit {
   public:
    virtual ~Transit() = default;
    // trouble is asked every 50 ms or so for a reason to give up, empty if there is none, and may throw.
    using Trouble = std::function<std::string()>;
    virtual Failure wait_received(const Trouble& trouble) = 0;
    virtual Failure wait_sent(const Trouble& trouble) = 0;
  };
  virtual std::unique_ptr<Transit> start(std::span<const Message> send, std::span<const Message> receive) = 0;

  // Messages of at most this size are best where more is to be sent: one is summed or copied while the next is on its
  // way. The same on all ranks.
  virtual int64_t piece_bytes() const { return 4 << 20; }

  // A rank whose host has not answered for limit_s though something was sent there; -1: none. From any thread.
  virtual int silent_rank([[maybe_unused]] double limit_s) { return -1; }
};

}  // namespace holon::comm
