// The Communicator of ranks on one host, processes or threads: publishes in the group's slots and waits there.
#pragma once

#include <vector>

#include "holon/comm/core/communicator.h"
#include "holon/comm/core/waiting.h"

namespace holon::comm {

class GroupCommunicator final : public Communicator {
 public:
  GroupCommunicator(World& world, std::vector<int> ranks, int index, CommStats& stats, const char* site, int channel);
  ~GroupCommunicator() override;

  std::span<const std::byte* const> open(const CallInfo& info, const void* data, size_t bytes) override;
  void close() override;

 private:
  // What sleep_until() asks of the call to which `target` belongs.
  struct Wait;

  void exchange_sites();
  void arrive_and_wait();
  void sleep(uint64_t target);
  // Why waiting for target is hopeless; empty while it is not. *ended: the rank that is gone, if that is why.
  std::string trouble(uint64_t target, int64_t waited_ns, int* ended) const;
  // Pre: the group is marked as failed. False: only in a later synchronisation than target, so this one is good.
  bool failed_at(uint64_t target) const;
  [[noreturn]] void raise_failed() const;
  void compare();
  [[noreturn]] void raise_mismatch();
  std::vector<int> missing(uint64_t target) const;
  const CallDetails& my_details() const { return group_.slots[index()].details[calls_ & 1]; }
  std::string call_text() const;  // "group [0-3], call 127, [4, 5] float32, 80 bytes"

  World& world_;
  CommStats& stats_;
  const char* site_;
  const int channel_;
  const WaitPolicy wait_policy_;
  int table_index_ = 0;
  Group group_;
  uint64_t calls_ = 0;     // opens
  uint64_t arrivals_ = 0;  // synchronisations: opens, and closes that waited
  bool open_ = false, must_wait_ = false;
  int64_t work_ns_ = 0;  // about how long members may read what the call has shown
  StagingBuffer staging_;
  std::vector<const std::byte*> pointers_;
};

}  // namespace holon::comm
