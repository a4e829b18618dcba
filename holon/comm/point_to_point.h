// Point-to-point transfers from some ranks to others, which do not call at the same time: senders offer their data and
// continue, receivers copy it when they call, and a sender may ask, or wait, until all of them have.
//
// Calls on one object pair up in their order: the n-th receive reads what each sender's n-th send showed. Objects know
// nothing of each other, so any number of sends on different ones may be outstanding. Small data
// (Communicator::kInlineBytes) travels in the control block, larger data is read where it is; between hosts it is
// packed into messages, which wait in memory of the object's own.
//
// A send may tell each receiver that its data goes another way, and which (a number other than 0: device_link.h): then
// the receiver reads nothing of that sender here, and its receive pairs with the send as ever.
//
// What a rank waits for in vain raises as in any call (communicator.h), and so do calls that differ; then the object is
// of no use any more, and all its ranks raise.
#pragma once

#include <memory>
#include <vector>

#include "holon/comm/core/communicator.h"
#include "holon/comm/core/pull.h"
#include "holon/comm/core/waiting.h"

namespace holon::comm {

class RemotePointToPoint;

class PointToPoint {
 public:
  static constexpr size_t kMostWays = Communicator::kInlineBytes / sizeof(uint64_t);  // of a send

  // For this rank, which sends, receives or does both, in the context whose thread will use it. pulls_of(k): what the
  // k-th receiver pulls; owners are places among the senders, whose order is that of sums. number: of these senders and
  // receivers' objects, as all of them count. with_ways: sends tell of other ways, alike on all ranks. Makes the
  // object's place in the control block, and waits for nobody.
  PointToPoint(std::vector<int> senders, std::vector<int> receivers, int number, DType dtype, const PullsOf& pulls_of,
               bool with_ways = false);
  // Waits until receivers have what is in memory of the object's own.
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  // Shows [data, data + bytes), which nobody may change until it is released. Releases the send before first, and waits
  // until the one before that has been received. ways: for each of readers(), or the first kMostWays of them; for
  // others it is 0.
  void send(const CallInfo& info, const void* data, size_t bytes, std::span<const uint64_t> ways = {});
  // The receivers that read from this rank, by their places.
  std::span<const int> readers() const { return reader_places_; }
  // Waits for the sends that this rank reads from and does its pulls. bytes: of out. Pre: a rank that reads from itself
  // has sent. ways: receives those of the senders, by their places.
  void receive(const CallInfo& info, void* out, size_t bytes, std::span<uint64_t> ways = {});
  // Whether what was sent last may be changed. Does not wait.
  bool try_release();
  void release();

 private:
  struct Wait;

  bool have_arrived(const std::vector<int>& slots, uint64_t round) const;
  void wait_for(const std::vector<int>& slots, uint64_t round, CallDetails& call, int64_t work_ns);
  void arrive(int slot, uint64_t round);
  void check_failed() const;
  void fail(const std::string& why);
  [[noreturn]] void raise_mismatch(int slot, uint64_t round);
  std::string trouble(const Wait& wait, int64_t waited_ns, int* ended) const;
  std::string text_of(CallDetails& call) const;  // "transfer [0, 1] -> [2], channel 3, send 7, [4, 5] float32, ..."
  void pull(std::byte* out, size_t bytes, std::span<const uint64_t> ways) const;
  void connect(const PullsOf& pulls_of);
  uint64_t owed(uint64_t round) const;

  const std::shared_ptr<World> kept_;  // objects may outlive the rank's context
  World& world_;
  CommStats& stats_;
  const char* site_;
  const bool own_thread_;  // not the rank's second one
  const WaitPolicy wait_policy_;
  const std::vector<int> senders_, receivers_;
  const int number_;
  const DType dtype_;
  const bool with_ways_;
  int sender_ = -1, receiver_ = -1;  // this rank's places

  // Slots of the senders of this host, then of its receivers.
  Group group_;
  int table_index_ = 0;
  std::vector<int> slot_ranks_;
  int my_send_ = -1, my_receive_ = -1;
  std::vector<int> sources_, readers_;  // slots that I read, and that read me
  std::vector<int> source_places_;      // of sources_ among the senders
  std::vector<int> places_at_sources_;  // of this rank among the readers of each
  std::vector<int> reader_places_;      // of all receivers that read me
  std::vector<int> remote_readers_;     // of those on other hosts, which way is theirs
  std::vector<Pull> pulls_;

  CallDetails sending_{}, receiving_{};
  uint64_t held_ = 0, staged_round_ = 0;  // the last sends that show the caller's memory, or a copy; 0: none
  int64_t work_ns_ = 0;                   // about how long it takes to read the last one
  const std::byte* shown_ = nullptr;
  StagingBuffer staging_;
  std::vector<const std::byte*> pointers_;  // by sender

  std::unique_ptr<RemotePointToPoint> remote_;  // where ranks are on several hosts
  std::vector<int> remote_places_;              // of each sender among its incoming messages, -1
};

}  // namespace holon::comm
