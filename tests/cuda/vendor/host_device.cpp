// What the files that call NVIDIA's libraries take from the backend (stream.h), on the host: the device's memory is the
// host's. In place of the library's functions that need a device stand this folder's, which read what they are given by
// the library's own ones.
#include "cudnn_backend.h"
#include "holon/base/error.h"
#include "holon/kernels/cuda/capability.h"
#include "holon/kernels/cuda/stream.h"

namespace holon::kernels::cuda {

cudaStream_t use_device(int) { return nullptr; }
cudaStream_t stream() { return nullptr; }
int device_index() { return cudnn_backend::capability; }  // one of each kind
int compute_capability() { return cudnn_backend::capability; }
void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) fail_runtime("{}: {}", call, cudaGetErrorString(error));
}
void fail(const char* text) { fail_runtime("{}", text); }
Scratch::Scratch(size_t bytes) : storage_(allocate_storage(bytes)) {}

}  // namespace holon::kernels::cuda
