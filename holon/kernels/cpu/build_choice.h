// The choice between builds of one body for several instruction sets.
#pragma once

namespace holon::kernels {

// 0: any machine; 1: x86-64-v3 (AVX2, FMA, F16C); 2: x86-64-v4 (AVX-512).
inline int instruction_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return 2;
  if (__builtin_cpu_supports("x86-64-v3")) return 1;
#endif
  return 0;
}

}  // namespace holon::kernels
