// One pull of one member of a group on several hosts, phase by phase. Header of hosts/'s own sources.
#pragma once

#include <memory>
#include <vector>

#include "holon/array/storage.h"
#include "holon/base/index.h"
#include "holon/comm/hosts/hosts_communicator.h"

namespace holon::comm {

class HostsCommunicator::Block {
 public:
  explicit Block(size_t bytes) : data_(bytes ? allocate_block(bytes) : nullptr), bytes_(bytes) {}
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    if (data_) free_block(data_, bytes_);
  }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_;
  size_t bytes_;
};

class HostsCommunicator::Pulling {
 public:
  Pulling(HostsCommunicator& group, const CallInfo& info, const HostSchedule& schedule, const void* in, size_t in_bytes,
          void* out, size_t out_bytes);

  // Shows the part to this host, then receives from and sends to others; messages are on their way when it returns.
  void start();
  // What needs no other host, and the local addends of what does.
  void pull_local();
  // Waits for what others send, shares it on this host, and ends the collective.
  void finish();

 private:
  size_t bytes_of(int64_t elements) const { return to_size(elements * item_); }
  uint64_t tag_of(const Packet& p) const;
  // dst receives a region of one member of this host, or the sum of those of several.
  void gather(std::byte* dst, const Dims& dst_strides, const std::vector<int>& owners, int64_t start,
              const Dims& strides, const Dims& shape) const;
  bool is_sent_in_place(const Packet& p) const;
  // Whether this member writes to what a packet is sent from while it may be on its way.
  bool is_written(const Packet& p) const;
  void finish_pull(size_t i, std::span<const std::byte* const> shown) const;

  HostsCommunicator& group_;
  CallInfo info_;  // of this host's part of the call
  const HostSchedule& s_;
  const std::byte* in_;
  const size_t in_bytes_;
  std::byte* out_;
  const bool overlap_;  // in and out are the same memory, or share some
  const int64_t item_;

  // Messages come after the memory that they use: what is left of them ends first.
  Block staging_;
  std::byte* shown_;  // where I receive
  std::unique_ptr<Block> packed_;
  std::vector<std::unique_ptr<Block>> sums_;  // of local addends, by pull
  Envelope theirs_{};
  std::span<const std::byte* const> peers_;  // parts of the members on this host
  std::unique_ptr<Network::Transit> envelope_;
  std::vector<std::unique_ptr<Network::Transit>> incoming_, outgoing_;  // by packet
};

}  // namespace holon::comm
