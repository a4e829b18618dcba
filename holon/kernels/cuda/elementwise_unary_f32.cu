#include "holon/kernels/cuda/elementwise.h"

namespace holon::kernels::cuda {

void fill_unary_f32(Variants& t) {
#define HOLON_FILL(name, kinds, result, value) fill_form<ops::name, float, 1>(t.unary[static_cast<int>(UnaryOp::name)]);
  HOLON_UNARY_OPS(HOLON_FILL)
#undef HOLON_FILL
}

}  // namespace holon::kernels::cuda
