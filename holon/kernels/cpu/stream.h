// Copies of whole runs of bytes, large ones by several threads and past the caches.
#pragma once

#include <cstddef>

namespace holon::kernels {

// memcpy(dst, src, bytes); may use the threads of this rank. whole_bytes: of all that is written at this time, if this
// is a part of it. Pre: the two do not overlap, or are the same.
void copy_bytes(void* dst, const void* src, size_t bytes, size_t whole_bytes = 0);

// The same in this thread, with stores that do not fetch the lines they overwrite nor put others out of the caches.
// Worth it where the result is too large to be found there later. Other threads may look at it after stream_fence().
void stream_bytes(void* dst, const void* src, size_t bytes);
void stream_fence();

// What is at least this large is streamed: measured, a core's share of a server's last cache is smaller.
inline constexpr size_t kStreamCopyBytes = size_t{24} << 20;

}  // namespace holon::kernels
