#include "holon/kernels/cuda/attention_backward.h"
#include "holon/kernels/cuda/attention_forward.h"

namespace holon::kernels::cuda::attention {

template void run_forward<BFloat16>(const Numbers& p);
template void run_backward<BFloat16>(const Numbers& p);

}  // namespace holon::kernels::cuda::attention
