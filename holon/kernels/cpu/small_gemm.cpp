#define HOLON_ISA base
#include "holon/kernels/cpu/small_gemm_body.h"

#include <bit>

#include "holon/array/dtype.h"
#include "holon/kernels/cpu/build_choice.h"

namespace holon::kernels {

namespace {

void half_to_float(const uint16_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = std::bit_cast<Float16>(x[i]);
}
void float_to_half(const float* x, uint16_t* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = Float16(x[i]).bits;
}

SmallGemm choose() {
#ifdef HOLON_HAVE_X86_LEVELS
  if (instruction_level() == 2) return avx512::small_gemm();
  if (instruction_level() == 1) return avx2::small_gemm();
#endif
  SmallGemm g = base::small_gemm();
  g.half_to_float = half_to_float;
  g.float_to_half = float_to_half;
  return g;
}

}  // namespace

const SmallGemm& small_gemm() {
  static const SmallGemm g = choose();
  return g;
}

}  // namespace holon::kernels
