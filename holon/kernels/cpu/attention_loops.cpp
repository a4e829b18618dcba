#define HOLON_ISA base
#include "holon/kernels/cpu/attention_loops_body.h"

#include "holon/kernels/cpu/build_choice.h"

namespace holon::kernels {

const AttentionLoops& attention_loops() {
  static const AttentionLoops loops = [] {
#ifdef HOLON_HAVE_X86_LEVELS
    if (instruction_level() == 2) return avx512::attention_loops();
    if (instruction_level() == 1) return avx2::attention_loops();
#endif
    return base::attention_loops();
  }();
  return loops;
}

}  // namespace holon::kernels
