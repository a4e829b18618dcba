// A Communicator moves bytes between the ranks of one group. Peers read each other's buffers in place (open ... close):
// a collective is one copy, or one sum, from where the data lies.
//
// Every call below that is marked Collective is made by all ranks of the group in the same order. A rank that calls
// something else, dies, ends or does not come in time makes the others raise a RuntimeError that says so; nothing
// hangs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "holon/array/dims.h"
#include "holon/array/dtype.h"

namespace holon::comm {

// What a rank calls. Op, dtype and fingerprint are compared between the ranks; all of it is shown in errors.
struct CallInfo {
  const char* op;
  DType dtype = DType::kUInt8;
  Dims shape = {};
  uint64_t fingerprint = 0;  // whatever else must be alike, hashed by the caller
};

class HostsCommunicator;

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  std::span<const int> ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int index() const { return index_; }  // this rank's place in ranks()

  // Collective. Shows [data, data + bytes) to the group and returns when every member has shown its own: peer i's lies
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

  // Contiguous collectives over elements of dtype. Sums are taken in the group's order, for float16 and bfloat16 in
  // float32, and have the same bits on every rank. Collective, all of them.
  // out[i] = the sum of all members' in[i]; in may be out.
  virtual void all_reduce(const void* in, void* out, int64_t count, DType dtype);
  // Member k gets counts[k] elements: the sum of everybody's in, after the first counts[0] + ... + counts[k-1].
  virtual void reduce_scatter(const void* in, void* out, std::span<const int64_t> counts, DType dtype);
  // out: the members' parts one after the other, counts[k] elements of member k. in may be in its place in out.
  virtual void all_gather(const void* in, void* out, std::span<const int64_t> counts, DType dtype);
  // Sends send_counts[k] elements to member k and receives recv_counts[k] of it, both packed in the group's order.
  // Pre: in and out do not overlap. Errors: member k sends another number than it is expected to.
  virtual void all_to_all(const void* in, void* out, std::span<const int64_t> send_counts,
                          std::span<const int64_t> recv_counts, DType dtype);
  // data of the member root_index is copied to all.
  virtual void broadcast(void* data, int64_t count, DType dtype, int root_index);

  // Where the group spans several hosts, its own interface; else nullptr.
  virtual HostsCommunicator* across_hosts() { return nullptr; }

  // Buffers of at most this size travel inside the control slots: one synchronisation, no close to wait for.
  static constexpr size_t kInlineBytes = 4096;

 protected:
  Communicator(std::vector<int> ranks, int index) : ranks_(std::move(ranks)), index_(index) {}

  // Errors: not one count for each member, a negative one; no such member.
  void check_counts(const char* op, std::span<const int64_t> counts) const;
  static void check_count(const char* op, int64_t count);
  void check_root(int root_index) const;
  static uint64_t hash_counts(std::span<const int64_t> counts);
  // What every member sends to every other: row i holds member i's counts. Collective. Errors: a pair disagrees.
  std::vector<int64_t> exchange_counts(std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts,
                                       DType dtype);

 private:
  const std::vector<int> ranks_;
  const int index_;
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
