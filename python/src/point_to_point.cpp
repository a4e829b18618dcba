// comm.send and comm.recv: a tensor from one rank to another. The two of them are a group, in which the sender
// broadcasts.
#include <algorithm>
#include <array>

#include "args.h"
#include "holon/base/context.h"
#include "holon/base/index.h"
#include "holon/comm/core/communicator.h"
#include "holon/kernels/copy.h"

namespace holon::python {

namespace {

// Goes before a tensor whose receiver does not know it.
struct Header {
  int64_t dtype = 0, ndim = 0;
  int64_t sizes[kMaxAxes] = {};
};

int peer(nb::handle rank, const char* call, const char* argument) {
  int64_t r;
  const Context& c = Context::current();
  if (!to_int(rank.ptr(), &r) || r < 0 || r >= c.world_size())
    fail_value("comm.{}: {} is {}; it must be a rank from 0 to {}.", call, argument, describe(rank.ptr()),
               c.world_size() - 1);
  if (r == c.rank()) fail_value("comm.{}: {} is {}, which is this rank itself.", call, argument, r);
  return static_cast<int>(r);
}

void send(const Tensor& t, HandleOf<"int"> dst, bool send_meta) {
  if (t.is_global())
    fail_value("comm.send: takes a local tensor; this one is global {}. Send its part, to_local(), or use to_global.",
               t.shape());
  t.require_memory("comm.send");
  const std::array<int, 2> both{Context::current().rank(), peer(dst, "send", "dst")};
  auto& pair = comm::communicator(both);
  if (send_meta) {
    Header h{static_cast<int64_t>(t.dtype()), t.ndim(), {}};
    std::copy(t.shape().begin(), t.shape().end(), h.sizes);
    pair.broadcast(&h, sizeof h / sizeof(int64_t), int64, 0);
  }
  Array a = t.array();
  if (!a.is_contiguous() || !a.device.is_host()) {
    Array packed = Array::empty(a.shape, a.dtype);
    kernels::copy(a, packed);
    a = packed;
  }
  pair.broadcast(a.bytes(), a.numel(), a.dtype, 0);
}

Tensor recv(HandleOf<"int"> src, HandleOf<"Sequence[int]"> shape, nb::handle dtype, nb::handle device) {
  const std::array<int, 2> both{peer(src, "recv", "src"), Context::current().rank()};
  auto& pair = comm::communicator(both);
  Dims sizes;
  DType type = float32;
  if (shape.is_none()) {
    Header h;
    pair.broadcast(&h, sizeof h / sizeof(int64_t), int64, 0);
    type = static_cast<DType>(h.dtype);
    sizes = Dims(std::span<const int64_t>(h.sizes, to_size(h.ndim)));
  } else {
    IntList list;
    if (!to_ints(shape.ptr(), &list))
      fail_type("comm.recv: shape must be a list of int, got {}.", describe(shape.ptr()));
    sizes = Dims(std::span<const int64_t>(list));
    type = expect_dtype(dtype, "recv");
  }
  const Device to = device.is_none() ? Device() : expect_device(device, "recv");
  Array a = Array::empty(sizes, type, to.is_host() ? to : Device());
  pair.broadcast(a.bytes(), a.numel(), type, 0);
  if (to.is_host()) return Tensor::local(a);
  Array arrived = Array::empty(sizes, type, to);
  kernels::copy(a, arrived);
  return Tensor::local(arrived);
}

}  // namespace

void bind_point_to_point(nb::module_& m) {
  using namespace nb::literals;
  m.def("send", send, "tensor"_a, "dst"_a, "send_meta"_a = true,
        "Sends a local tensor to rank dst, which calls recv().");
  m.def("recv", recv, "src"_a, "shape"_a = nb::none(), "dtype"_a = nb::none(), "device"_a = nb::none(),
        "The tensor that rank src sends by send(). shape and dtype are needed if it does not send them "
        "(send_meta=False).");
}

}  // namespace holon::python
