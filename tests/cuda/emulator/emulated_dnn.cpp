// No library for convolutions on the emulated device: the backend's own ones are what is tested.
#include "holon/kernels/cuda/dnn.h"

namespace holon::kernels::cuda {

bool dnn_forward(const Array&, const Array&, const Conv2d&, Array&) { return false; }
bool dnn_backward_data(const Array&, const Array&, const Conv2d&, Array&) { return false; }
bool dnn_backward_weights(const Array&, const Array&, const Conv2d&, Array&) { return false; }

}  // namespace holon::kernels::cuda
