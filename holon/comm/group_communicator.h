// The Communicator of ranks on one host, processes or threads: publishes in the group's slots and waits there.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "holon/comm/communicator.h"
#include "holon/comm/world.h"

namespace holon::comm {

class GroupCommunicator final : public Communicator {
 public:
  GroupCommunicator(World& world, std::vector<int> ranks, int index, CommStats& stats, const char* site, int channel);
  ~GroupCommunicator() override;

  std::span<const std::byte* const> open(const CallInfo& info, const void* data, size_t bytes) override;
  void close() override;

 private:
  // A copy of a caller's buffer in memory that peers reach.
  struct Bounce {
    void* data = nullptr;
    size_t bytes = 0;
    Bounce() = default;
    Bounce(Bounce&& o) noexcept : data(std::exchange(o.data, nullptr)), bytes(o.bytes) {}
    Bounce& operator=(Bounce&& o) noexcept {
      std::swap(data, o.data), std::swap(bytes, o.bytes);
      return *this;
    }
    ~Bounce();
  };
  class Sleeping;

  void record(const CallDetails& details);  // in the rank's report
  void note_site();                         // where the user's program is, once per call
  void exchange_sites();
  void arrive_and_wait();
  bool spin(uint64_t target) const;
  void sleep(uint64_t target);
  // Why waiting for target is hopeless; empty while it is not. *ended: the rank that is gone, if that is why.
  std::string trouble(uint64_t target, int64_t waited_ns, int* ended) const;
  // Pre: the group is marked as failed. False: only in a later synchronisation than target, so this one is good.
  bool failed_at(uint64_t target) const;
  [[noreturn]] void raise_failed() const;
  void compare();
  [[noreturn]] void raise_mismatch();
  std::vector<int> missing(uint64_t target) const;
  int rank_of(const RankReport& report) const;
  std::string last_seen(int rank) const;  // "Its last call was ... . "
  const CallDetails& my_details() const { return group_.slots[index()].details[calls_ & 1]; }
  std::string call_text() const;  // "group [0-3], call 127, [4, 5] float32, 80 bytes"

  World& world_;
  CommStats& stats_;
  const char* site_;
  const int channel_;
  const int64_t spin_ns_;
  const int yields_;
  int table_index_ = 0;
  Group group_;
  uint64_t calls_ = 0;     // opens
  uint64_t arrivals_ = 0;  // synchronisations: opens, and closes that waited
  bool open_ = false, must_wait_ = false;
  int64_t work_ns_ = 0;  // about how long members may read what the call has shown
  Bounce bounce_;
  std::vector<const std::byte*> pointers_;
};

}  // namespace holon::comm
