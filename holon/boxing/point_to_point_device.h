// The crossing of a transfer (point_to_point.h) where parts are on devices: each sender packs one message for each
// receiver on its device, and receivers make their parts of them on theirs. Sums are taken in the order of the senders,
// float16 and bfloat16 in float32.
//
// Between devices a message goes over a link (comm/device/device_link.h), if that is made by the time of the send; else
// it waits in the host's memory, as it does between a device and the CPU. Each send says which way each message has
// gone.
#pragma once

#include <memory>
#include <vector>

#include "holon/boxing/planner.h"
#include "holon/comm/device/device_exchange.h"
#include "holon/comm/device/device_link.h"
#include "holon/comm/point_to_point.h"

namespace holon::boxing {

// PointToPoint has what the calls mean, and their errors. Over links they are put in order with what this rank does on
// its device: the part may be written after release(), and the result read after receive(), by what follows there.
// send() and release() do not wait on the host, and receive() waits there for the senders' send() only: it is the
// devices that wait. Through the host's memory, send() waits for the device and release() for the receivers' calls.
class DeviceCrossing {
 public:
  // Pre: the plan outlives the object; the rank is in one of the step's placements.
  DeviceCrossing(const Plan& plan, size_t step, int rank, int channel);
  ~DeviceCrossing();
  DeviceCrossing(const DeviceCrossing&) = delete;
  DeviceCrossing& operator=(const DeviceCrossing&) = delete;

  // Finds its place in the world, and begins to make the links.
  void bind();
  void send(const Array& part);    // row-major
  void receive(const Array& out);  // row-major, on the target's device
  bool try_release();
  void release();

 private:
  struct Outgoing {
    comm::DeviceExchange::Message message;
    size_t reader;    // its place among object_->readers()
    int64_t host_at;  // in shown_
    comm::DeviceLink* link;
    uint64_t way = 0;  // over the link; 0: through the host's memory, or nothing is under way
  };
  struct Incoming {
    comm::DeviceExchange::Message message;
    size_t sender;
    int64_t host_at;  // in staged_
    comm::DeviceLink* link;
  };
  void make();

  const Plan& plan_;
  const size_t step_;
  const int rank_, channel_;
  std::unique_ptr<const comm::DeviceExchange> exchange_;
  std::unique_ptr<comm::PointToPoint> object_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  size_t senders_ = 0;
  int64_t shown_elements_ = 0, staged_elements_ = 0;
  bool reads_own_ = false;
  Array shown_, staged_;  // in the host's memory: what is sent, and what is received
  Array sent_, own_;      // the part, until it is released, and until this rank has read it
};

}  // namespace holon::boxing
