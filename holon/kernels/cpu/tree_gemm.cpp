#define HOLON_ISA base
#include "holon/kernels/cpu/tree_gemm_body.h"

#include "holon/kernels/cpu/build_choice.h"

namespace holon::kernels {

namespace {

TreeGemm choose() {
#ifdef HOLON_HAVE_X86_LEVELS
  if (instruction_level() == 2) return avx512::tree_gemm();
  if (instruction_level() == 1) return avx2::tree_gemm();
#endif
  return base::tree_gemm();
}

}  // namespace

const TreeGemm& tree_gemm() {
  static const TreeGemm g = choose();
  return g;
}

}  // namespace holon::kernels
