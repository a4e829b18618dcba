// Gradients that are addends, summed between the ranks while backward goes on.
//
// A leaf whose gradient comes as partial_sum (data parallelism) needs it summed. One bucket after the other collects
// such gradients in the order in which backward makes them, alike on all ranks; a full one is summed by the rank's
// second thread (comm/core/background.h) or in parallel with a device's computation
// (comm/device/device_communicator.h), the last one by finish(). Small gradients of a bucket travel together. Sums have
// the bits that to_global would give one by one.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "holon/boxing/planner.h"
#include "holon/comm/core/background.h"
#include "holon/tensor/tensor.h"

namespace holon::autograd {

class GradientBuckets {
 public:
  // Takes over a gradient of the leaf that has its dtype, if it is one to be summed. False: none of those, or it does
  // not pay here.
  bool take(TensorImpl& leaf, const Tensor& gradient);
  // Whether finish() will give the leaf a gradient, so that another one has to keep its place behind it:
  bool holds(const TensorImpl& leaf) const { return held_.contains(&leaf); }
  void put(TensorImpl& leaf, const Tensor& gradient);  // one that is as the leaf wants it

  // Calls add(leaf, gradient) in the order of take() and put(). Collective. Errors: those of to_global.
  void finish(const std::function<void(TensorImpl&, Tensor)>& add);

 private:
  struct Item {
    Ref<TensorImpl> leaf;
    Tensor gradient;  // as it came; let go of when the sum is there
    Array sum;
    bool summed = false;  // it came as the leaf wants it
  };
  // Neighbours that travel together, or one alone.
  struct Sum {
    size_t first, end;
    boxing::Plan plan;
    Array joined, sum;  // joined: what is summed, where it is a copy
  };
  struct Bucket {
    std::vector<Item> items;
    int64_t bytes = 0;
    bool device = false;  // of tensors on devices
    std::vector<Sum> sums;
  };

  // Finds the sums, on the rank's own thread, for all of its plans are in the order of the program.
  static void plan(Bucket& bucket);
  // Begins the sums, and gives each item its own. On devices they are there after join_device_communication().
  static void begin(Bucket& bucket);
  static void share_out(Bucket& bucket);
  void close();  // the last bucket
  void let_go();

  bool on(bool device);

  int64_t limit_bytes_[2] = {-1, -1};             // on the CPU, on devices; 0: off; -1: not yet known
  std::vector<std::shared_ptr<Bucket>> buckets_;  // all but the last are on their way
  std::vector<comm::Work>
      works_;          // of these, nothing where on devices; a job holds its bucket, so no bucket holds its job
  size_t let_go_ = 0;  // so many of them have no gradients any more
  std::set<const TensorImpl*> held_;
};

}  // namespace holon::autograd
