// What a rank sends to and receives from its peers when parts on devices change hands: a collective where one does it,
// else one message from each member to each other, packed and unpacked on the devices.
#pragma once

#include <span>
#include <vector>

#include "holon/array/array.h"
#include "holon/comm/core/communicator.h"

namespace holon::comm {

class DeviceCommunicator;

class DeviceExchange {
 public:
  // The collective that the pulls amount to is taken where they fit it, alike on all members. Pre: they have one phase,
  // except in an all_reduce.
  DeviceExchange(int members, int me, const GroupPulls& pulls);

  // Collective. in: this rank's part, in one piece, or undefined; out likewise, written. Sums are taken in the order of
  // the owners, float16 and bfloat16 in float32; those of all_reduce and reduce_scatter as the communicator does it.
  void run(DeviceCommunicator& group, const CallInfo& info, const Array& in, const Array& out) const;

  // The same in pieces, for who moves the messages himself. Pre: the pulls are those of no collective.
  struct Message {
    int peer = 0;
    int64_t at = 0, count = 0;
    bool direct = false;  // is in the part as it travels, from `start` on
    int64_t start = 0;
  };
  std::span<const Message> sends() const { return sends_; }
  std::span<const Message> receives() const { return receives_; }
  // What sends() need in addition to the part: undefined where all are direct.
  Array pack(const Array& in) const;
  // For receives() that are not direct; undefined where all are.
  Array make_received(DType dtype, Device device) const;
  // The message's elements, a row: in the part, or in what pack() or make_received() has returned.
  static Array row_of(const Message& m, const Array& part, const Array& others);
  bool reads_own() const;  // unpack() reads `in`
  // Makes out of the messages, which have been received.
  void unpack(const Array& in, const Array& received, const Array& out) const;

 private:
  // A region of a part and its place among the packed elements of a message.
  struct Region {
    int64_t start = 0;  // in elements of the part
    Dims strides, shape;
    int64_t at = 0;  // in elements of all messages of the rank
  };
  struct Addend {
    bool own = false;
    int64_t at = 0;  // of the region: in the part, or among what was received
  };
  struct Taken {
    Dims src_strides;  // in this rank's own part
    int64_t dst_start = 0;
    Dims dst_strides, shape;
    std::vector<Addend> addends;
    bool direct = false;  // has been received in its place
  };

  void run_gather(DeviceCommunicator& group, const CallInfo& info, const Array& in, const Array& out) const;
  void run_scatter(DeviceCommunicator& group, const CallInfo& info, const Array& in, const Array& out) const;

  Collective collective_ = Collective::kNone;
  std::vector<Message> sends_, receives_;
  std::vector<Region> packed_;  // what is copied into messages before they are sent
  std::vector<Taken> taken_;
  int64_t send_elements_ = 0, receive_elements_ = 0;  // that are packed, and that are not received in place
  std::vector<Region> pieces_;  // of reduce_scatter: what each member gets; of all_gather: where each one's part is
  bool in_order_ = false;       // the pieces are one after the other
};

}  // namespace holon::comm
