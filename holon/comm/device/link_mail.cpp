#include "holon/comm/device/link_mail.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <thread>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/comm/core/network.h"

namespace holon::comm {

namespace {

constexpr auto kTick = std::chrono::milliseconds(1);

// Channels of groups are small numbers, and from 2^61 on those of transfers.
constexpr int64_t kChannels = int64_t{1} << 60;

// A group of two slots, the sender's and the receiver's. payload[0] of the sender's is a ring of sizes, and `arrived`
// of the receiver's says how many have been read; payload[1] of each has what is exchanged, and published[0].check
// counts it.
class SlotMail final : public LinkMail {
 public:
  SlotMail(World& world, int from, int to, int key) : me_(world.rank() == from ? 0 : 1) {
    const std::array<int, 2> ranks{from, to};
    group_ = world.block().group(world, ranks, kChannels + key);
  }

  void exchange(int round, const void* mine, void* theirs, const std::function<std::string()>& give_up) override {
    const auto half = to_size(round) * kCardBytes;
    const auto count = static_cast<uint64_t>(round) + 1;
    std::memcpy(group_.slots[me_].payload[1] + half, mine, kCardBytes);
    cards(me_).store(count);
    while (cards(1 - me_).load() < count) {
      if (const std::string why = give_up(); !why.empty()) fail_runtime("{}", why);
      std::this_thread::sleep_for(kTick);
    }
    std::memcpy(theirs, group_.slots[1 - me_].payload[1] + half, kCardBytes);
  }

  bool has_room(uint64_t number) override { return number <= group_.slots[1].arrived.load() + kRing; }
  void tell_size(uint64_t number, uint64_t bytes) override {
    std::memcpy(place(number), &bytes, sizeof bytes);  // seen by who is told of the message, which is later
  }
  uint64_t size_of(uint64_t number, const std::function<std::string()>&) override {
    uint64_t bytes = 0;
    std::memcpy(&bytes, place(number), sizeof bytes);
    group_.slots[1].arrived.store(number);
    return bytes;
  }

 private:
  static constexpr uint64_t kRing = Communicator::kInlineBytes / sizeof(uint64_t);
  static_assert(2 * kCardBytes <= Communicator::kInlineBytes);
  std::atomic_ref<uint64_t> cards(int slot) const { return std::atomic_ref(group_.slots[slot].published[0].check); }
  std::byte* place(uint64_t number) const { return group_.slots[0].payload[0] + number % kRing * sizeof(uint64_t); }

  const int me_;
  Group group_;
};

class NetworkMail final : public LinkMail {
 public:
  NetworkMail(World& world, int from, int to, int key)
      : world_(world), peer_(world.rank() == from ? to : from), key_(hash_words(from, to, key)) {}

  void exchange(int round, const void* mine, void* theirs, const std::function<std::string()>& give_up) override {
    const auto side = static_cast<uint64_t>(world_.rank() < peer_), turn = static_cast<uint64_t>(round) * 2;
    std::array<std::byte, kCardBytes> card;
    std::memcpy(card.data(), mine, kCardBytes);
    Network::Message out{peer_, tag(0, turn + side), card.data(), kCardBytes};
    Network::Message in{peer_, tag(0, turn + 1 - side), theirs, kCardBytes};
    const auto sent = world_.network().start({&out, 1}, {&in, 1});
    must_arrive(sent->wait_received(give_up));
    must_arrive(sent->wait_sent(give_up));
  }

  bool has_room(uint64_t) override { return told_.size() < kMostTold; }
  // The receiver hears the size of a message before it receives it, and a library holds no more than some on the way:
  // those of long ago have arrived.
  void note_done(uint64_t number) override {
    while (!told_.empty() && told_.front().number + kOnTheWay <= number) {
      must_arrive(told_.front().transit->wait_sent([&, begun = std::chrono::steady_clock::now()] {
        if (auto& aborted = world_.block().aborted(); aborted.is_set())
          return fmt::format("rank {} has failed: {}", aborted.rank, aborted.text);
        if (std::chrono::steady_clock::now() - begun < std::chrono::duration<double>(world_.timeout_s()))
          return std::string();
        return fmt::format("message {} was not announced within {:g} s", told_.front().number, world_.timeout_s());
      }));
      told_.pop_front();
    }
  }
  void tell_size(uint64_t number, uint64_t bytes) override {
    Told& t = told_.emplace_back();
    t.number = number;
    t.bytes = std::make_unique<uint64_t>(bytes);
    Network::Message out{peer_, tag(1, number), t.bytes.get(), sizeof bytes};
    t.transit = world_.network().start({&out, 1}, {});
  }
  uint64_t size_of(uint64_t number, const std::function<std::string()>& give_up) override {
    uint64_t bytes = 0;
    Network::Message in{peer_, tag(1, number), &bytes, sizeof bytes};
    must_arrive(world_.network().start({}, {&in, 1})->wait_received(give_up));
    return bytes;
  }

 private:
  static constexpr size_t kMostTold = 4096, kOnTheWay = 256;
  struct Told {
    uint64_t number;
    std::unique_ptr<uint64_t> bytes;
    std::unique_ptr<Network::Transit> transit;
  };
  uint64_t tag(uint64_t kind, uint64_t number) const { return hash_words(key_, 0x6c696e6b, kind, number); }
  void must_arrive(const Network::Failure& failure) const {
    if (failure)
      fail_runtime("the link with rank {} on {}: {}", peer_, world_.host_name(world_.host_of(peer_)), failure.how);
  }

  World& world_;
  const int peer_;
  const uint64_t key_;
  std::deque<Told> told_;
};

}  // namespace

std::unique_ptr<LinkMail> make_link_mail(World& world, int from, int to, int key) {
  if (world.host_of(from) == world.host_of(to)) return std::make_unique<SlotMail>(world, from, to, key);
  return std::make_unique<NetworkMail>(world, from, to, key);
}

}  // namespace holon::comm
