// Pinned host memory of this process, for copies that the host does not wait for.
#pragma once

#include <cuda_runtime.h>

#include "holon/array/storage.h"

namespace holon::kernels::cuda {

// Errors (RuntimeError): no more can be pinned; this process was forked from the one that uses the device.
Ref<Storage> allocate_pinned(size_t bytes);
// A copy that uses the storage has just been put on the stream, whose device is current on this thread: its memory is
// not given out again before that is done. Pre: it is one of allocate_pinned().
void used_on(Storage& pinned, cudaStream_t stream);

bool is_pinned(const Storage& storage);  // by allocate_pinned()
MemoryStats pinned_memory_stats();
// Gives what is cached back to the system.
void release_cached_pinned_memory();

}  // namespace holon::kernels::cuda
