#define HOLON_ISA base
#include "holon/kernels/cpu/sort_loops_body.h"

#include "holon/kernels/cpu/build_choice.h"

namespace holon::kernels {

const SortLoops& sort_loops() {
  static const SortLoops loops = [] {
#ifdef HOLON_HAVE_X86_LEVELS
    if (instruction_level() == 2) return avx512::sort_loops();
    if (instruction_level() == 1) return avx2::sort_loops();
#endif
    return base::sort_loops();
  }();
  return loops;
}

}  // namespace holon::kernels
