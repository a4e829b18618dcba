// Boxing from one placement to another in two halves, which do not wait for each other: from a pipeline's stage to the
// next.
//
//   auto h = HandOver::prepare(from, to, shape, float32, channel);
//   h.post(in, post_scratch);    // ranks of the source: shows the part, and returns at once
//   h.take(out, take_scratch);   // ranks of the target: waits for the posts that it reads, pulls, says that it is done
//   h.release();                 // ranks of the source: waits until all takers are done
//
// A rank that a call does not concern returns from it at once, so every rank may make all calls; a rank in both
// placements posts before it takes. Each object has its own channel: any number of objects may have posts
// outstanding, taken in any order. One object has one post outstanding: a second post() releases the first one before
// it shows the next. So a schedule that lets a stage run k micro-batches ahead of the next one takes turns among k
// objects, and then waits for nobody whom it does not have to wait for.
//
// Between devices the calls are in the devices' order, and wait little (handover_device.h). They need no scratch
// memory.
//
// What small parts (4 KiB) and parts for other hosts take with them is a copy; other parts are read where they are.
// Sums over ranks of several hosts are taken in the order of the source's ranks.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "holon/boxing/prepared.h"

namespace holon::boxing {

// Belongs to the rank that prepared it, and to the thread that makes its first call. Preparing is pure; the first call
// (or bind()) finds its place in the world without waiting for anybody.
class HandOver {
 public:
  // channel: any number that no other object between these ranks uses at the same time, the same on all of them. It may
  // be used again when every post has been taken. Where the plan has more steps than the crossing, those before it run
  // in post(), collectively between the source's ranks, and those after it in take(), between the target's. Between
  // equal placements take() does everything, and is collective. Errors: an nd_sbp that does not fit its placement or
  // the shape; channel < 0 (ValueError).
  static HandOver prepare(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype, int channel,
                          Input input = Input::kContiguous);

  const Plan& plan() const;
  bool has_in() const;
  bool has_out() const;
  const Dims& in_shape() const;
  const Dims& out_shape() const;
  int64_t read_bytes() const;  // by this rank, in one post() and take()
  // post() is collective between the source's ranks; take() between the target's.
  bool post_meets() const;
  bool take_meets() const;

  // Bytes of the scratch arrays of each call. post() keeps its own, as it keeps `in`, until release() or a
  // try_release() that returns true; take()'s are free when it returns.
  std::span<const size_t> post_scratch_bytes() const;
  std::span<const size_t> take_scratch_bytes() const;

  // in: this rank's part; nobody writes to it or to scratch until it is released. Never waits for takers of this post.
  // Errors: those of execute() for its steps; a post before that nobody takes in time.
  void post(const Array& in, std::span<const Array> scratch);
  // out: row-major, written whole. Errors: a rank that it reads from does not post in time, is gone, or has posted
  // something else: RuntimeError that names it, on the posting ranks too as soon as they wait or post again.
  void take(const Array& out, std::span<const Array> scratch);
  // Whether all takers are done with the last post; true without one. Does not wait. Errors: the object has failed.
  bool try_release();
  // Waits for it. At once where everything was small enough to travel with the post itself (4 KiB). Errors: a taker
  // does not come in time or is gone.
  void release();

  void bind();

  struct Data;

 private:
  explicit HandOver(std::shared_ptr<Data> data) : data_(std::move(data)) {}
  std::shared_ptr<Data> data_;
};

}  // namespace holon::boxing
