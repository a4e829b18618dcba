#pragma once

namespace holon::kernels::cuda {

// The compute capability of the current device: 10 * major + minor.
int compute_capability();

}  // namespace holon::kernels::cuda
