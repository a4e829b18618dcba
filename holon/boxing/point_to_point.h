// Point-to-point transfer: boxing from one placement to another in two halves, which do not wait for each other, as
// from a pipeline's stage to the next.
//
//   auto h = PointToPoint::prepare(from, to, shape, float32, channel);
//   h.send(in, send_scratch);    // ranks of the source: shows the part, and returns at once
//   h.receive(out, receive_scratch);   // ranks of the target: waits for the sends that it reads, pulls, says that it
//   is done h.release();                 // ranks of the source: waits until all receivers are done
//
// A rank that a call does not concern returns from it at once, so every rank may make all calls; a rank in both
// placements sends before it receives. Each object has its own channel: any number of objects may have sends
// outstanding, received in any order. One object has one send outstanding: a second send() releases the first one
// before it shows the next. So a schedule that lets a stage run k micro-batches ahead of the next one takes turns among
// k objects, and then waits for nobody whom it does not have to wait for.
//
// Between devices the calls are in the devices' order, and wait little (point_to_point_device.h). They need no scratch
// memory.
//
// Small parts (4 KiB) and parts for other hosts are copied when they are sent; other parts are read where they are.
// Sums over ranks of several hosts are taken in the order of the source's ranks.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "holon/boxing/prepared.h"

namespace holon::boxing {

// Belongs to the rank that prepared it, and to the thread that makes its first call. Preparing is pure; the first call
// (or bind()) finds its place in the world without waiting for anybody.
class PointToPoint {
 public:
  // channel: any number that no other object between these ranks uses at the same time, the same on all of them. It may
  // be used again when every send has been received. Where the plan has more steps than the crossing, those before it
  // run in send(), collectively between the source's ranks, and those after it in receive(), between the target's.
  // Between equal placements receive() does everything, and is collective. Errors: an nd_sbp that does not fit its
  // placement or the shape; channel < 0 (ValueError).
  static PointToPoint prepare(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype, int channel,
                              Input input = Input::kContiguous);

  const Plan& plan() const;
  bool has_in() const;
  bool has_out() const;
  const Dims& in_shape() const;
  const Dims& out_shape() const;
  int64_t read_bytes() const;  // by this rank, in one send() and receive()
  // send() is collective between the source's ranks; receive() between the target's.
  bool send_communicates() const;
  bool receive_communicates() const;

  // Bytes of the scratch arrays of each call. send() keeps its own, as it keeps `in`, until release() or a
  // try_release() that returns true; receive()'s are free when it returns.
  std::span<const size_t> send_scratch_bytes() const;
  std::span<const size_t> receive_scratch_bytes() const;

  // in: this rank's part; nobody writes to it or to scratch until it is released. Never waits for receivers of this
  // send. Errors: those of execute() for its steps; an earlier send that nobody receives in time.
  void send(const Array& in, std::span<const Array> scratch);
  // out: row-major, written whole. Errors: a rank that it reads from does not send in time, is gone, or has sent
  // something else: RuntimeError that names it, on the sending ranks too as soon as they wait or send again.
  void receive(const Array& out, std::span<const Array> scratch);
  // Whether all receivers are done with the last send; true without one. Does not wait. Errors: the object has failed.
  bool try_release();
  // Waits for it. At once where everything was small enough to travel with the send itself (4 KiB). Errors: a receiver
  // does not come in time or is gone.
  void release();

  void bind();

  struct Data;

 private:
  explicit PointToPoint(std::shared_ptr<Data> data) : data_(std::move(data)) {}
  std::shared_ptr<Data> data_;
};

}  // namespace holon::boxing
