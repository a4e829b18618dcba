#define HOLON_ISA base
#include "holon/kernels/cpu/pool_loops_body.h"

#include "holon/kernels/cpu/build_choice.h"

namespace holon::kernels {

const PoolLoops& pool_loops() {
  static const PoolLoops loops = [] {
#ifdef HOLON_HAVE_X86_LEVELS
    if (instruction_level() == 2) return avx512::pool_loops();
    if (instruction_level() == 1) return avx2::pool_loops();
#endif
    return base::pool_loops();
  }();
  return loops;
}

}  // namespace holon::kernels
