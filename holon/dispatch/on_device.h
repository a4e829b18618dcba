// Kernels of calls whose arrays are on a device with separate memory.
#pragma once

#include "holon/registry/op_def.h"
#include "holon/tensor/tensor.h"

namespace holon {

// The device of a local call's outputs: that of its inputs. A tensor without axes may be on the CPU and others on a
// device, as numbers do. Errors (RuntimeError): inputs on different devices.
Device common_device(const OpDef& op, std::span<const Tensor> inputs);

inline bool runs_on_device(const KernelCall& call) {
  for (size_t i = 0; i < call.n_out(); ++i)
    if (!call.out(i).device.is_host()) return true;
  for (size_t i = 0; i < call.n_in(); ++i)
    if (!call.in(i).device.is_host()) return true;
  return false;
}
// Runs the kernel; of an op that is on_host(), on copies. adds: the one that adds to its outputs.
void run_on_device(const OpDef& op, KernelCall& call, bool adds = false);

}  // namespace holon
