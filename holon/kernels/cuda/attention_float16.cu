#include "holon/kernels/cuda/attention_backward.h"
#include "holon/kernels/cuda/attention_forward.h"

namespace holon::kernels::cuda::attention {

template void run_forward<Float16>(const Numbers& p);
template void run_backward<Float16>(const Numbers& p);

}  // namespace holon::kernels::cuda::attention
