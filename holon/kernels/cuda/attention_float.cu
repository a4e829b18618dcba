#include "holon/kernels/cuda/attention_backward.h"
#include "holon/kernels/cuda/attention_forward.h"

namespace holon::kernels::cuda::attention {

template void run_forward<float>(const Numbers& p);
template void run_backward<float>(const Numbers& p);

}  // namespace holon::kernels::cuda::attention
