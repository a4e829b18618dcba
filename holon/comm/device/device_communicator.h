// Collectives between ranks whose data is on devices: what Communicator is for the CPU's memory.
//
// A call is put in order after the rank's work so far and before what follows on its device, and returns at once:
// nothing waits on the host except the making of the group. Every call is made by all members in the same order. What
// goes wrong later (a member dies, does not come in time, the library fails) raises from the rank's next call here, or
// where it next waits for or looks at its device (DeviceRuntime); then nothing of the world goes on.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "holon/array/array.h"
#include "holon/array/device.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/device/device_link.h"

namespace holon::comm {

// Bytes for, or of, a member.
struct DeviceMessage {
  int peer;  // place in ranks()
  void* data;
  size_t bytes;
};

class DeviceExchange;

class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;
  DeviceCommunicator(const DeviceCommunicator&) = delete;
  DeviceCommunicator& operator=(const DeviceCommunicator&) = delete;

  std::span<const int> ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int index() const { return index_; }

  // Collective, all of them; pointers are to memory of this rank's device. bool is summed as "or". The order of a sum
  // is the library's, and the same on every rank; float16 and bfloat16 may be rounded between additions.
  void all_reduce(const CallInfo& info, const void* in, void* out, int64_t count, DType dtype);  // in may be out
  // in: size() pieces of `count` elements; out: the sum of everybody's piece index().
  void reduce_scatter(const CallInfo& info, const void* in, void* out, int64_t count, DType dtype);
  // out: size() pieces of `count` elements, in the members' order.
  void all_gather(const CallInfo& info, const void* in, void* out, int64_t count, DType dtype);
  void broadcast(const CallInfo& info, void* data, size_t bytes, int root_index);
  // At most one message to each peer and one from each, all at once; what one side sends the other receives. Members
  // without any call it, too.
  void exchange(const CallInfo& info, std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives);
  // Does this member's pulls, by one of the calls above (device_exchange.h), and counts what is read from others. in:
  // its part, in one piece, or undefined; out likewise, written.
  void pull(const CallInfo& info, const GroupPulls& pulls, const Array& in, const Array& out);

  // Errors: what has gone wrong since. Does not wait.
  virtual void check() = 0;
  // What follows on the device waits for all calls so far.
  virtual void join() = 0;
  // Around the launch of calls of this group that were recorded: they are watched over as a call is. info: what they
  // are.
  virtual void before_launch() = 0;
  virtual void after_launch(const CallInfo& info) = 0;
  // Ends what is under way, here and, as far as the library can, on the peers. The communicator is of no use from then
  // on.
  virtual void abort(const std::string& reason) = 0;

 protected:
  DeviceCommunicator(std::vector<int> ranks, int index) : ranks_(std::move(ranks)), index_(index) {}
  static bool overlaps();  // in a DeviceOverlapScope
  // Notes that this one's call is the last one of the scope; returns whose the one before was, nullptr at first. Calls
  // of one scope may read each other's results.
  DeviceCommunicator* follows_in_overlap();

 private:
  virtual void do_all_reduce(const CallInfo& info, const void* in, void* out, int64_t count, DType dtype) = 0;
  virtual void do_reduce_scatter(const CallInfo& info, const void* in, void* out, int64_t count, DType dtype) = 0;
  virtual void do_all_gather(const CallInfo& info, const void* in, void* out, int64_t count, DType dtype) = 0;
  virtual void do_broadcast(const CallInfo& info, void* data, size_t bytes, int root_index) = 0;
  virtual void do_exchange(const CallInfo& info, std::span<const DeviceMessage> sends,
                           std::span<const DeviceMessage> receives) = 0;
  // Counts the call and, with HOLON_CHECK=1, compares it with the other members' before it reaches the devices.
  void begin(const CallInfo& info, uint64_t count);

  const std::vector<int> ranks_;
  const int index_;
  std::unordered_map<uint64_t, std::shared_ptr<const DeviceExchange>> exchanges_;  // by the pulls' keys
};

// What a backend makes them with.
class DeviceCommunicatorFactory {
 public:
  static constexpr size_t kIdBytes = 128;
  virtual ~DeviceCommunicatorFactory() = default;
  // Why there can be none, in a few words; empty: there can.
  virtual std::string missing() = 0;
  // Tells devices of a host apart, whatever their numbers are in each process; empty: ranks may share the device.
  virtual std::string identity(int device_index) = 0;
  virtual void make_id(std::byte* id) = 0;  // kIdBytes
  // Collective among the ranks, on which id is the same. Errors: a rank does not come, the library.
  virtual std::unique_ptr<DeviceCommunicator> make(std::span<const int> ranks, int index, const std::byte* id,
                                                   int device_index) = 0;
  // The same for the link of two ranks, one of which is this one. From its own thread.
  virtual std::unique_ptr<DeviceWire> make_wire(int from, int to, const std::byte* id, int device_index) = 0;
};
// By a backend (on_device_registration), for its devices; the factory is never freed.
void set_device_communicator_factory(DeviceType type, DeviceCommunicatorFactory* factory);
DeviceCommunicatorFactory* device_communicator_factory(DeviceType type);  // nullptr where the backend has none

// Of exactly these ranks, in this order, made on first use and kept by the rank. nullptr, on all of them alike, where
// their devices have no way to each other (no library, two ranks on one device): then data travels through the hosts'
// memory, and rank 0 of them says so once. Collective on first use. Errors: as communicator(ranks).
DeviceCommunicator* device_communicator(std::span<const int> ranks, Device device);

// In its scope what this rank computes next does not wait for its collectives, which run in parallel: their results
// may be used, and the memory that they read or write given to others, after join_device_communication() only.
class DeviceOverlapScope {
 public:
  DeviceOverlapScope();
  ~DeviceOverlapScope();
  DeviceOverlapScope(const DeviceOverlapScope&) = delete;
  DeviceOverlapScope& operator=(const DeviceOverlapScope&) = delete;
};
// Does not wait on the host. Errors: as check_device_communication().
void join_device_communication();
// Whether collectives run in parallel with computing, if there is a choice: not with HOLON_OVERLAP=0.
bool device_overlap_wanted();

// Raises what has gone wrong in this rank's device communication. Does not wait; cheap.
void check_device_communication();
// By the backend, from any thread: from now on the check above looks.
void note_device_failure();

}  // namespace holon::comm
