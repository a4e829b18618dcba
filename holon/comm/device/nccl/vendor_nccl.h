// What of NCCL is called, without its types. vendor_nccl.cpp loads the library; the emulator of the tests has its own.
#pragma once

#include <cuda_runtime.h>

#include <span>
#include <string>

#include "holon/array/dtype.h"
#include "holon/comm/device/device_communicator.h"

namespace holon::comm::nccl {

using Handle = void*;  // one member's communicator

std::string missing();  // DeviceCommunicatorFactory has what these three mean
std::string identity(int device_index);
void make_id(std::byte* id);

// On the current device. Collective. Errors (RuntimeError): the library.
Handle start(std::span<const int> ranks, int index, const std::byte* id);

// Work for the stream. What is wrong with a call comes back in words, "" if nothing is.
std::string all_reduce(Handle h, const void* in, void* out, size_t count, DType dtype, cudaStream_t stream);
std::string reduce_scatter(Handle h, const void* in, void* out, size_t count, DType dtype, cudaStream_t stream);
std::string all_gather(Handle h, const void* in, void* out, size_t count, DType dtype, cudaStream_t stream);
std::string broadcast(Handle h, void* data, size_t bytes, int root_index, cudaStream_t stream);
std::string exchange(Handle h, std::span<const DeviceMessage> sends, std::span<const DeviceMessage> receives,
                     cudaStream_t stream);
// One message to, or from, the member `peer`.
std::string send(Handle h, const void* data, size_t bytes, int peer, cudaStream_t stream);
std::string receive(Handle h, void* data, size_t bytes, int peer, cudaStream_t stream);

// What has gone wrong in work that was put before, "" if nothing has. From any thread, as abort().
std::string trouble(Handle h);
// Ends all work; the handle is gone.
void abort(Handle h);

}  // namespace holon::comm::nccl
