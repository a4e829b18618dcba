#include "holon/kernels/cuda/elementwise.h"

namespace holon::kernels::cuda {

void fill_binary_f32(Variants& t) {
#define HOLON_FILL(name, kinds, result, value) \
  fill_form<ops::name, float, 2>(t.binary[static_cast<int>(BinaryOp::name)]);
  HOLON_BINARY_OPS(HOLON_FILL)
#undef HOLON_FILL
}

}  // namespace holon::kernels::cuda
