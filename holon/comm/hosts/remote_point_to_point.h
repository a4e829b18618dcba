// The messages of a transfer between hosts (comm/point_to_point.h): for each sender and receiver one with what is
// called, and one with the regions that the receiver pulls, packed.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "holon/array/storage.h"
#include "holon/base/index.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/core/network.h"
#include "holon/comm/core/pull.h"
#include "holon/comm/core/world.h"

namespace holon::comm {

class RemotePointToPoint {
 public:
  // key: of the transfer, alike on its ranks and different from those of others. with_ways: calls tell of other ways.
  RemotePointToPoint(World& world, CommStats& stats, DType dtype, uint64_t key, bool with_ways);
  ~RemotePointToPoint();

  // pair: alike on both sides, and of no other two. Regions without elements are left out.
  void add_receiver(int rank, uint64_t pair, std::vector<Pull> regions);
  int add_sender(int rank, uint64_t pair, std::vector<Pull> regions);  // its number among the senders

  // What a call is, for errors.
  struct Call {
    uint64_t round, check;
    std::string op, text;
  };
  // Packs what receivers pull and sends it on its way, but to those whose way is another. Pre: flush().
  void send(Call call, const std::byte* data, std::span<const uint64_t> ways);
  // Waits until receivers have received all of it.
  void flush();
  // Messages may come from now on.
  void start_receive(const Call& call);
  // Waits for them. Errors: a sender has sent something else.
  void finish_receive(const Call& call);
  // A region of the sender, row-major. Pre: finish_receive(). region: among those given to add_sender().
  const std::byte* region(int sender, size_t region) const;
  uint64_t way(int sender) const { return at_index(senders_, sender).note.way; }

 private:
  struct Note {
    uint64_t check;
    uint64_t way;
    char text[320];
  };
  struct Peer {
    int rank = -1;
    uint64_t pair = 0;
    std::vector<Pull> regions;
    std::vector<size_t> at;  // in bytes
    size_t bytes = 0;
    std::byte* memory = nullptr;
    Note note{};
    std::unique_ptr<Network::Transit> note_transit, data_transit;
  };
  Peer peer(int rank, uint64_t pair, std::vector<Pull> regions) const;
  uint64_t tag(const Peer& p, uint64_t round, uint64_t kind) const;
  void start_data(Peer& p, const Call& call);
  void wait(Network::Transit& transit, bool received, const Call& call, const Peer& p);
  [[noreturn]] void fail(const std::string& why);

  World& world_;
  CommStats& stats_;
  const DType dtype_;
  const uint64_t key_;
  const bool with_ways_;
  Call sent_{};
  std::vector<Peer> receivers_, senders_;
  std::string failed_;
};

}  // namespace holon::comm
