// Division by a number that is known before a kernel is launched. Compiled at run time, too (chain_device.h).
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define HOLON_BOTH __host__ __device__ __forceinline__
#else
#define HOLON_BOTH inline
#endif

namespace holon::kernels::cuda {

// As a product, for 0 <= n < 2^31. After Granlund and Montgomery, "Division by invariant integers using multiplication"
// (1994).
struct Divider {
  uint32_t d = 1, magic = 0, shift = 0;

  Divider() = default;
  HOLON_BOTH explicit Divider(uint32_t by) : d(by) {
    while (shift < 32 && (uint64_t{1} << shift) < by) ++shift;
    magic = static_cast<uint32_t>((((uint64_t{1} << shift) - by) << 32) / by + 1);
  }
  HOLON_BOTH uint32_t quotient(uint32_t n) const {
#ifdef __CUDA_ARCH__
    const uint32_t t = __umulhi(n, magic);
#else
    const auto t = static_cast<uint32_t>((static_cast<uint64_t>(n) * magic) >> 32);
#endif
    return (t + n) >> shift;
  }
};

}  // namespace holon::kernels::cuda
