// Whether cuda devices may leave convolutions and attention to cuDNN, where it is found.
#pragma once

namespace holon::kernels {

// At first what HOLON_CUDNN says.
bool cudnn_enabled();
void enable_cudnn(bool enabled);

}  // namespace holon::kernels
