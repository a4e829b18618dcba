// What kernels find wrong in their data, and how they say so. Compiled at run time, too (chain_device.h).
#pragma once

#include <cstdint>

#ifdef HOLON_EMULATED
#include "emulator.h"
#endif

namespace holon::kernels::cuda {

// What a kernel finds wrong in its data: written once, by the first thread that does, and raised by the next look
// (DeviceRuntime::check). The text has places for the numbers, "{value}", "{low}" and so on: see runtime.cpp.
enum class Fault : int32_t { kNone, kIndex, kTarget, kDivision, kWeight, kFewWeights };
struct FaultReport {
  int32_t fault;    // written last, so that who sees it sees the rest
  int32_t claimed;  // by the thread that writes the rest
  int32_t axis;     // where it is known, else -1
  int64_t value, position, low, high;
  const char* op;  // a literal of the host's
};

#if defined(__CUDACC__) || defined(HOLON_EMULATED)
// Notes a fault; the first one stays.
__device__ __forceinline__ void report(FaultReport* to, Fault fault, const char* op, int64_t value, int64_t position,
                                       int64_t low, int64_t high, int32_t axis = -1) {
  if (atomicCAS(&to->claimed, 0, 1) != 0) return;
  to->axis = axis;
  to->value = value;
  to->position = position;
  to->low = low;
  to->high = high;
  to->op = op;
  __threadfence_system();
  *static_cast<volatile int32_t*>(&to->fault) = static_cast<int32_t>(fault);
}

// An integer to divide by: a 0 is noted and taken as 1.
template <class C>
__device__ __forceinline__ C divisor(C y, FaultReport* to, const char* op) {
  if (y != 0) return y;
  report(to, Fault::kDivision, op, 0, 0, 0, 0);
  return 1;
}
#endif

}  // namespace holon::kernels::cuda
