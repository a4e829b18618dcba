// Convolutions of arrays by a library (dnn.h). False, with nothing done: there is no library, it is not to be used
// (holon/kernels/cudnn.h), or it has no way to do this one.
#pragma once

#include "holon/kernels/conv.h"

namespace holon::kernels::cuda {

// As kernels::conv2d and its gradients, for floating types and arrays with elements.
bool library_conv(const Array& x, const Array& w, const Array* bias, const Conv2d& conv, Array& y);
bool library_conv_backward_data(const Array& dy, const Array& w, const Conv2d& conv, Array& dx);
bool library_conv_backward_weights(const Array& dy, const Array& x, const Conv2d& conv, Array& dw);

}  // namespace holon::kernels::cuda
