// One way from a rank's device to another's, for messages that are sent before anybody wants them: what transfers
// between devices go over (holon/boxing/point_to_point_device.h).
//
//   sender:    if (link.open()) way = link.send(info, message);  // the receiver hears of it by comm/point_to_point.h
//              link.join(way);                                   // the message's memory may be written again
//   receiver:  Array arrived = link.receive(info, way, into);    // into, or memory of the link's
//              link.join(way);                                   // what follows on the device may read it
//
// Nothing waits on the host for a device. Messages have numbers, 1, 2, ..., and arrive in their order; the receiver may
// ask for them in any. For a later one it also receives those before it, into memory of the link's, where they stay
// until they are requested.
//
// A link is made in the background, which needs both ranks; until then, and where there can be none, open() is false
// and data travels as it would without. What goes wrong afterwards (a rank ends or dies, or does not come within the
// communication time-out while the other's device waits for it, the library fails) raises as in a DeviceCommunicator's
// calls.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "holon/array/array.h"
#include "holon/base/context.h"
#include "holon/comm/core/communicator.h"

namespace holon::comm {

// What a backend moves messages with: two devices, one direction, its own stream on each.
class DeviceWire {
 public:
  virtual ~DeviceWire() = default;
  // Put in order after what this rank has put on its device so far; what it puts there next does not wait. Messages are
  // received in the order, and with the sizes, in which they are sent. Return their number: 1, 2, ...
  virtual uint64_t send(const CallInfo& info, const void* data, size_t bytes) = 0;
  virtual uint64_t receive(const CallInfo& info, void* data, size_t bytes) = 0;
  // Whether this side of it is done. Does not wait.
  virtual bool done(uint64_t number) = 0;
  // What follows on the device waits for it. The communication time-out begins when the device has come there.
  virtual void join(uint64_t number) = 0;
  // Freed, the array's memory is given to others only when what has been put on the wire is done.
  virtual void uses(const Array& a) = 0;
  // Errors: what has gone wrong. Does not wait.
  virtual void check() = 0;
};

// Of the rank that made it.
class DeviceLink {
 public:
  // One of from and to is this rank; device is its own. Begins to make the link. Both ranks do so, once in a context.
  DeviceLink(int from, int to, Device device);
  ~DeviceLink();
  DeviceLink(const DeviceLink&) = delete;
  DeviceLink& operator=(const DeviceLink&) = delete;

  // Sender. Whether a message may be sent now. Does not wait. Errors: the link has failed.
  bool open();
  // message: in one piece, not empty; nobody writes to it until it is joined. Pre: open().
  uint64_t send(const CallInfo& info, const Array& message);
  bool done(uint64_t number) { return wire().done(number); }
  void uses(const Array& a) { wire().uses(a); }

  // Receiver. Puts the message of this number, of which the sender has told, into `into`, in one piece, unless it has
  // been received already: then returns where it is. Each number once. May wait for this side of the link to be made,
  // and for word of a sender on another host. Errors: that fails; a message of another size than `into`.
  Array receive(const CallInfo& info, uint64_t number, const Array& into);

  void join(uint64_t number) { wire().join(number); }
  void check();
  // Whether all that has been sent is done, or will not be. Does not wait.
  bool idle();
  double timeout_s() const;

 private:
  struct Making;  // shared with the thread that makes it
  DeviceWire& wire();
  void await(const CallInfo& info);

  const int from_, to_;
  const Device device_;
  const std::shared_ptr<Making> making_;
  uint64_t count_ = 0, done_ = 0;    // sent, or received; of what was sent
  std::map<uint64_t, Array> early_;  // received, but not requested: bytes
};

// The link of this rank's context, made on first use. nullptr: there can be none (no backend, or HOLON_CUDA_LINKS=0).
DeviceLink* device_link(int from, int to, Device device);
// Raises what has gone wrong on this rank's links. Does not wait.
void check_device_links();
// At the end of a rank, before the others hear of it: waits until what it has sent is done, its receiver has ended, or
// for the communication time-out.
void finish_device_links(Context& context);

}  // namespace holon::comm
