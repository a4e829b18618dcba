// A Communicator moves bytes between the ranks of one group. Everything that it moves it moves by pulls (pull.h): each
// member takes the regions that it needs from where the others have them, adding where there are addends, so that a
// collective is one copy, or one sum.
//
// Every call below that is marked Collective is made by all ranks of the group in the same order. A rank that calls
// something else, dies, ends or does not come in time makes the others raise a RuntimeError that says so; nothing
// hangs.
//
// A communicator belongs to the context that requested it: one thread at a time uses it. Threads of a rank that
// communicate at the same time have a context each (context_handoff.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "holon/array/dims.h"
#include "holon/array/dtype.h"
#include "holon/comm/core/pull.h"

namespace holon::comm {

// What a rank calls. Op, dtype and fingerprint are compared between the ranks; all of it is shown in errors.
struct CallInfo {
  const char* op;
  DType dtype = DType::kUInt8;
  Dims shape = {};
  uint64_t fingerprint = 0;  // whatever else must be alike, hashed by the caller
  bool continues = false;    // a part of the call before, counted there
};
// Comes after the name of a call of a rank that adds up as no layout changes (Context::layout_free()): whether ranks do
// must be alike, too.
inline constexpr char kLayoutFree[] = " (layout_free)";

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // The group's ranks in order, and how many they are.
  std::span<const int> ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int index() const { return index_; }  // this rank's place in ranks()

  // Collective. Shows [data, data + bytes) to the group and returns when every member has shown its own: peer i's is
  // at result[i], to be read until close(), and is aligned as the peer's own up to 64 bytes. Buffers of at most
  // kInlineBytes are copied at once, and so are buffers outside the memory that peers can reach. An open() after an
  // open() closes the first one. Errors: the group's calls differ (all members raise), a member is gone or late.
  virtual std::span<const std::byte* const> open(const CallInfo& info, const void* data, size_t bytes) = 0;
  // Collective. Returns when all members are done reading; at once, if all members' buffers had been copied inline.
  virtual void close() = 0;

  // Collective. Returns when all members have called it.
  void barrier();
  // Collective. out, of size() * bytes, receives every member's bytes in the group's order.
  void all_gather_bytes(const CallInfo& info, const void* mine, size_t bytes, void* out);

  // Collective. Does this member's pulls, of elements of info.dtype. in: its part, null where nobody reads one; out:
  // its result, null where it pulls nothing. A member may write to its out what others read of its in only where these
  // bytes are at most kInlineBytes, or the others read them in another phase. Counts what is read from others.
  void pull(const CallInfo& info, const GroupPulls& pulls, const void* in, size_t in_bytes, void* out,
            size_t out_bytes);

  // Contiguous collectives over elements of dtype. Sums are taken in the group's order, in pairs (add_n.h; on several
  // hosts: on each first, then over hosts), for float16 and bfloat16 in float32, and have the same bits on every rank.
  // Collective, all of them.
  // out[i] = the sum of all members' in[i]; in may be out.
  void all_reduce(const void* in, void* out, int64_t count, DType dtype);
  // Member k gets counts[k] elements: the sum of everybody's in, after the first counts[0] + ... + counts[k-1].
  void reduce_scatter(const void* in, void* out, std::span<const int64_t> counts, DType dtype);
  // out: the members' parts one after the other, counts[k] elements of member k. in may be in its place in out.
  void all_gather(const void* in, void* out, std::span<const int64_t> counts, DType dtype);
  // Sends send_counts[k] elements to member k and receives recv_counts[k] of it, both packed in the group's order.
  // Pre: in and out do not overlap. Errors: member k sends another number than it is expected to.
  void all_to_all(const void* in, void* out, std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts,
                  DType dtype);
  // data of the member root_index is copied to all.
  void broadcast(void* data, int64_t count, DType dtype, int root_index);

  // Buffers of at most this size travel inside the control slots: one synchronisation, no close to wait for.
  static constexpr size_t kInlineBytes = 4096;

 protected:
  // reads_peers: a member can read all others' buffers between open() and close(), so that this is how it pulls.
  Communicator(std::vector<int> ranks, int index, bool reads_peers)
      : ranks_(std::move(ranks)), index_(index), reads_peers_(reads_peers) {}

 private:
  // How members pull that cannot read all others' buffers.
  virtual void do_pull(const CallInfo& info, const GroupPulls& pulls, const void* in, size_t in_bytes, void* out,
                       size_t out_bytes);
  // pull(), knowing the type of the pulls: a small collective takes no longer than its own loop would.
  template <class Pulls>
  void pull_these(const CallInfo& info, const Pulls& pulls, const void* in, size_t in_bytes, void* out,
                  size_t out_bytes);
  // Errors: not one count for each member, a negative one.
  void check_counts(const char* op, std::span<const int64_t> counts) const;
  // What every member sends to every other: row i holds member i's counts. Collective. Errors: a pair disagrees.
  std::vector<int64_t> exchange_counts(std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts,
                                       DType dtype);

  const std::vector<int> ranks_;
  const int index_;
  const bool reads_peers_;
};

// The communicator of these ranks, made on first use and kept by the rank's context. Errors: no ranks, one that the
// world does not have, one twice, or this rank not among them (ValueError); the world does not come together
// (RuntimeError).
Communicator& communicator(std::span<const int> ranks);

// What this rank has communicated. Each operation adds exactly the bytes that it reads from peers' buffers.
struct CommStats {
  uint64_t calls = 0;
  uint64_t bytes_read = 0;
  uint64_t bytes_received = 0;   // from other hosts, by this rank for all of its host
  uint64_t device_messages = 0;  // sent over links from this rank's device to others (device_link.h)
};
CommStats& stats();
// For callers of open() who read peers' buffers themselves.
void note_bytes(uint64_t bytes);

// What this rank is about to do, e.g. the user's file and line: shown in errors of later calls, here and on the peers,
// until it is set again. nullptr or "": nothing.
void set_call_site(const char* text);
const char* call_site();  // "" if nothing is set

// What the rank's calls belong to from now on, e.g. a compiled step, alike on all ranks; 0: nothing. A rank whose call
// belongs to something else disagrees with the others, even where bytes and arguments are the same.
void set_call_owner(uint64_t owner);
uint64_t call_owner();

// Connects to the other ranks of the world now rather than at the first communicator of several ranks. Collective.
void join_world();

// Tells the other ranks that this one has failed, so that what they wait for raises with this reason. Only the first
// reason of a world counts: returns whether this was it. No effect before the world is connected.
bool abort_world(const std::string& reason);

}  // namespace holon::comm
