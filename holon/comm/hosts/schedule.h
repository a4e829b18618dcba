// How a group that spans several hosts does its pulls: what crosses from one host to another, once each, and who reads
// what from whose memory. Pure: every member works out the same from the same arguments.
//
// A region that several ranks of one host want from another crosses once, and they share it. A sum over members of
// another host is taken there first, so that one region crosses instead of one per addend. The work is spread: the i-th
// rank of a host sends to and receives from the i-th rank of another where it has the choice.
#pragma once

#include <span>
#include <vector>

#include "holon/comm/core/pull.h"

namespace holon::comm {

// A region that crosses: that of one member, or the sum over several members of one host, in this order.
struct Packet {
  std::vector<int> addends;
  int64_t src_start = 0;
  Dims src_strides;
  Dims shape;
  int peer = -1;   // the receiver of what I send, the sender of what I receive
  int number = 0;  // counts the packets of this pair
  int64_t elements = 0;
  int64_t at = 0;  // in elements, in the memory that the receiver shows to its host
};

// One addend of a pull (or all it is): the sum over members of my host, or a packet that one of them has received.
struct Term {
  std::vector<int> owners;  // empty: staged
  int holder = -1;
  int64_t at = 0;
  int packet = -1;  // its place in `receive`, if this member is the holder
};

struct HostPull {
  std::vector<Term> terms;  // in the order of hosts, which is that of their first members
  int64_t src_start = 0;
  Dims src_strides;  // of the owners of my host
  int64_t dst_start = 0;
  Dims dst_strides;
  Dims shape;
  bool local() const { return terms.size() == 1 && !terms[0].owners.empty(); }
};

struct HostSchedule {
  std::vector<Packet> send, receive;  // this member's
  std::vector<HostPull> pulls;        // this member's
  // Where this member receives: in the new part itself, if every region is a stretch of it that needs nothing added;
  // else in staging memory of this many elements.
  bool direct = false;
  int64_t shown_elements = 0;
  bool reads_before = false;  // some member of my host reads peers' parts: to copy, or to sum before it sends
  bool reads_staged = false;  // some member of my host reads what another has received
};

// host_of: the host of each member. item_bytes: so that staged packets begin at cache lines. piece_bytes: larger
// regions are cut into packets of this size (Network::piece_bytes()).
HostSchedule make_schedule(std::span<const int> host_of, int me, const PullsOf& pulls_of, int64_t item_bytes,
                           int64_t piece_bytes);

}  // namespace holon::comm
