// The messages of a hand-over between hosts (comm/handover.h): for each giver and taker one with what is called, and
// one with the boxes that the taker pulls, packed.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "holon/array/storage.h"
#include "holon/comm/communicator.h"
#include "holon/comm/net/network.h"
#include "holon/comm/pull.h"
#include "holon/comm/world.h"

namespace holon::comm {

class RemoteHandOver {
 public:
  // key: of the hand-over, alike on its ranks and different from those of others. with_ways: calls tell of other ways.
  RemoteHandOver(World& world, CommStats& stats, DType dtype, uint64_t key, bool with_ways);
  ~RemoteHandOver();

  // pair: alike on both sides, and of no other two. Boxes without elements are left out.
  void add_taker(int rank, uint64_t pair, std::vector<Pull> boxes);
  int add_giver(int rank, uint64_t pair, std::vector<Pull> boxes);  // its number among the givers

  // What a call is, for errors.
  struct Call {
    uint64_t round, check;
    std::string op, text;
  };
  // Packs what takers pull and sends it on its way, but to those whose way is another. Pre: flush().
  void send(Call call, const std::byte* data, std::span<const uint64_t> ways);
  // Waits until takers have received all of it.
  void flush();
  // Messages may come from now on.
  void start_receive(const Call& call);
  // Waits for them. Errors: a giver has posted something else.
  void finish_receive(const Call& call);
  // A box of the giver, row-major. Pre: finish_receive(). box: among those given to add_giver().
  const std::byte* box(int giver, size_t box) const;
  uint64_t way(int giver) const { return givers_[static_cast<size_t>(giver)].note.way; }

 private:
  struct Note {
    uint64_t check;
    uint64_t way;
    char text[320];
  };
  struct Peer {
    int rank = -1;
    uint64_t pair = 0;
    std::vector<Pull> boxes;
    std::vector<size_t> at;  // in bytes
    size_t bytes = 0;
    std::byte* memory = nullptr;
    Note note{};
    std::unique_ptr<Network::Transit> note_transit, data_transit;
  };
  Peer peer(int rank, uint64_t pair, std::vector<Pull> boxes) const;
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
  std::vector<Peer> takers_, givers_;
  std::string failed_;
};

}  // namespace holon::comm
