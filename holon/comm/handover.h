// Hands data from some ranks to others without a meeting: givers show what they have and go on, takers read it when
// they come, and a giver may look, or wait, until all of them have.
//
// Calls on one object pair up in their order: the n-th take reads what each giver's n-th post showed. Objects know
// nothing of each other, so any number of posts on different ones may be outstanding. Small data
// (Communicator::kInlineBytes) travels in the control block, larger data is read where it is; between hosts it is
// packed into messages, which wait in memory of the object's own.
//
// A post may tell each taker that its data goes another way, and which (a number other than 0: device_link.h): then the
// taker reads nothing of that giver here, and its take pairs with the post as ever.
//
// What a rank waits for in vain raises as in any call (communicator.h), and so do calls that differ; then the object is
// of no use any more, and all its ranks raise.
#pragma once

#include <memory>
#include <vector>

#include "holon/comm/communicator.h"
#include "holon/comm/hosts/schedule.h"
#include "holon/comm/waiting.h"

namespace holon::comm {

class RemoteHandOver;

class HandOver {
 public:
  static constexpr size_t kMostWays = Communicator::kInlineBytes / sizeof(uint64_t);  // of a post

  // For this rank, which gives, takes or does both, in the context whose thread will use it. pulls_of(k): what the k-th
  // taker pulls; owners are places among the givers, whose order is that of sums. number: of these givers and takers'
  // objects, as all of them count. with_ways: posts tell of other ways, alike on all ranks. Makes the object's place in
  // the control block, and waits for nobody.
  HandOver(std::vector<int> givers, std::vector<int> takers, int number, DType dtype, const PullsOf& pulls_of,
           bool with_ways = false);
  // Waits until takers have what is in memory of the object's own.
  ~HandOver();
  HandOver(const HandOver&) = delete;
  HandOver& operator=(const HandOver&) = delete;

  // Shows [data, data + bytes), which nobody may change until it is released. Releases the post before first, and waits
  // until that before it has been taken. ways: for each of readers(), or the first kMostWays of them; for others it is
  // 0.
  void post(const CallInfo& info, const void* data, size_t bytes, std::span<const uint64_t> ways = {});
  // The takers that read from this rank, by their places.
  std::span<const int> readers() const { return reader_places_; }
  // Waits for the posts that this rank reads from and does its pulls. bytes: of out. Pre: a rank that reads from itself
  // has posted. ways: receives those of the givers, by their places.
  void take(const CallInfo& info, void* out, size_t bytes, std::span<uint64_t> ways = {});
  // Whether what was posted last may be changed. Does not wait.
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
  std::string text_of(CallDetails& call) const;  // "hand-over [0, 1] -> [2], channel 3, post 7, [4, 5] float32, ..."
  void pull(std::byte* out, size_t bytes, std::span<const uint64_t> ways) const;
  void connect(const PullsOf& pulls_of);
  uint64_t owed(uint64_t round) const;

  const std::shared_ptr<World> kept_;  // objects may outlive the rank's context
  World& world_;
  CommStats& stats_;
  const char* site_;
  const bool own_thread_;  // not the rank's second one
  const Patience patience_;
  const std::vector<int> givers_, takers_;
  const int number_;
  const DType dtype_;
  const bool with_ways_;
  int giver_ = -1, taker_ = -1;  // this rank's places

  // Slots of the givers of this host, then of its takers.
  Group group_;
  int table_index_ = 0;
  std::vector<int> slot_ranks_;
  int my_post_ = -1, my_take_ = -1;
  std::vector<int> sources_, readers_;  // slots that I read, and that read me
  std::vector<int> source_places_;      // of sources_ among the givers
  std::vector<int> places_at_sources_;  // of this rank among the readers of each
  std::vector<int> reader_places_;      // of all takers that read me
  std::vector<int> remote_readers_;     // of those on other hosts, which way is theirs
  MemberPulls pulls_;

  CallDetails posting_{}, taking_{};
  uint64_t held_ = 0, bounced_ = 0;  // the last posts that show the caller's memory, or a copy; 0: none
  int64_t work_ns_ = 0;              // about how long it takes to read the last one
  const std::byte* shown_ = nullptr;
  Bounce bounce_;
  std::vector<const std::byte*> pointers_;  // by giver

  std::unique_ptr<RemoteHandOver> remote_;  // where ranks are on several hosts
  std::vector<int> remote_places_;          // of each giver among its incoming messages, -1
};

}  // namespace holon::comm
