// Convolutions by a library: cuDNN on devices, where it is installed (vendor_cudnn.cpp); none in the emulator. False,
// with nothing done: there is no library, or it has no way to do this one.
#pragma once

#include "holon/kernels/conv.h"

namespace holon::kernels::cuda {

// As kernels::conv2d without a bias and its gradients, for floating types and arrays with elements.
bool dnn_forward(const Array& x, const Array& w, const Conv2d& conv, Array& y);
bool dnn_backward_data(const Array& dy, const Array& w, const Conv2d& conv, Array& dx);
bool dnn_backward_weights(const Array& dy, const Array& x, const Conv2d& conv, Array& dw);

}  // namespace holon::kernels::cuda
