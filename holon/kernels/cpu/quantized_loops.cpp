#define HOLON_ISA base
#include "holon/kernels/cpu/quantized_loops_body.h"

#include "holon/kernels/cpu/build_choice.h"

namespace holon::kernels {

const QuantizedLoops& quantized_loops() {
  static const QuantizedLoops loops = [] {
#ifdef HOLON_HAVE_X86_LEVELS
    if (instruction_level() == 2) return avx512::quantized_loops();
    if (instruction_level() == 1) return avx2::quantized_loops();
#endif
    return base::quantized_loops();
  }();
  return loops;
}

}  // namespace holon::kernels
