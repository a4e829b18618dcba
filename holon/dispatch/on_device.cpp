#include "holon/dispatch/on_device.h"

#include <list>

#include "holon/array/device_runtime.h"
#include "holon/base/context.h"
#include "holon/kernels/device.h"
#include "holon/op_names/cast.h"

namespace holon {

Device common_device(const OpDef& op, std::span<const Tensor> inputs) {
  const Tensor* first = nullptr;
  for (auto& t : inputs) {
    if (!t.defined()) continue;
    if (!first) {
      first = &t;
      continue;
    }
    const Device a = first->impl()->device, b = t.impl()->device;
    if (a == b || (a.is_host() && b.is_host())) continue;
    if (first->ndim() == 0 && a.is_host()) {
      first = &t;
      continue;
    }
    if (t.ndim() == 0 && b.is_host()) continue;
    fail_runtime("{}: Expected all tensors to be on the same device, but found at least two devices, {} and {} (x is "
                 "{}, another is {}; {}). "
                 "Move one by .to(\"{}\").",
                 op.public_name(), a, b, first->shape(), t.shape(), rank_text(), a);
  }
  return first ? first->impl()->device : Device{};
}

void run_on_device(const OpDef& op, KernelCall& call, bool adds) {
  const auto kernel = adds ? op.adds : op.kernel;
  Device device;
  for (size_t i = 0; i < call.n_out() && device.is_host(); ++i) device = call.out(i).device;
  for (size_t i = 0; i < call.n_in() && device.is_host(); ++i) device = call.in(i).device;
  DeviceRuntime& devices = *device_runtime(device);
  devices.set_op(op.public_name());
  const bool moves = &op == op::copy_to_device;
  if (!op.on_host && !moves) {
    // A number on the CPU with tensors on the device.
    std::list<Array> moved;
    SmallVec<const Array*, 4> in;
    for (size_t i = 0; i < call.n_in(); ++i) {
      const Array* a = &call.in(i);
      if (a->defined() && a->device.is_host() && a->ndim() == 0) {
        Array& there = moved.emplace_back(Array::empty(a->shape, a->dtype, device));
        kernels::copy_on_devices(*a, there);
        a = &there;
      }
      in.push_back(a);
    }
    KernelCall here = moved.empty() ? call : call.with_inputs(in);
    kernel(here);
  } else if (moves) {
    kernel(call);
  } else {
    kernels::detail::count_host_run(op.name());
    std::list<Array> copies;
    SmallVec<const Array*, 4> in;
    SmallVec<Array*, 3> out;
    for (size_t i = 0; i < call.n_in(); ++i) in.push_back(&copies.emplace_back(kernels::detail::host_copy(call.in(i))));
    for (size_t i = 0; i < call.n_out(); ++i) {
      // What a kernel writes over is an input, too.
      Array* copy = nullptr;
      auto it = copies.begin();
      for (size_t k = 0; k < call.n_in(); ++k, ++it)
        if (call.in(k).defined() && call.out(i).bytes() == call.in(k).bytes()) copy = &*it;
      out.push_back(copy ? copy : &copies.emplace_back(kernels::detail::host_copy(call.out(i))));
    }
    KernelCall on_host = call.with_arrays(in, out);
    kernel(on_host);
    for (size_t i = 0; i < call.n_out(); ++i) kernels::detail::write_back(*out[i], call.out(i));
  }
  devices.check(device.index);
}

}  // namespace holon
