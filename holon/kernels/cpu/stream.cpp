#include "holon/kernels/cpu/stream.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "holon/base/index.h"
#include "holon/base/parallel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace holon::kernels {

namespace {

constexpr size_t kLine = 64, kPage = 4096, kPages = 4, kGroup = kPages * kPage;
constexpr int64_t kBytesPerThread = 1 << 20;

#if defined(__x86_64__)
inline void stream_two_lines(std::byte* dst, const std::byte* src) {
  __m128i v[8];
  for (size_t k = 0; k < 8; ++k) v[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src) + k);
  for (size_t k = 0; k < 8; ++k) _mm_stream_si128(reinterpret_cast<__m128i*>(dst) + k, v[k]);
}

// Pre: dst is aligned to a line, bytes is a multiple of two. The hardware's prefetcher ends at each page, so several
// pages are read at a time.
void stream_lines(std::byte* dst, const std::byte* src, size_t bytes) {
  const size_t grouped = bytes / kGroup * kGroup;
  for (size_t group = 0; group < grouped; group += kGroup)
    for (size_t i = 0; i < kPage; i += 2 * kLine)
      for (size_t at = group + i; at < group + kGroup; at += kPage) {
        _mm_prefetch(reinterpret_cast<const char*>(src + at) + 8 * kLine, _MM_HINT_T0);
        stream_two_lines(dst + at, src + at);
      }
  for (size_t at = grouped; at < bytes; at += 2 * kLine) stream_two_lines(dst + at, src + at);
}
#endif

}  // namespace

void stream_bytes(void* to, const void* from, size_t bytes) {
#if defined(__x86_64__)
  auto* dst = static_cast<std::byte*>(to);
  auto* src = static_cast<const std::byte*>(from);
  const size_t head = std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(dst) % kLine) % kLine);
  const size_t body = (bytes - head) / (2 * kLine) * (2 * kLine), tail = bytes - head - body;
  if (head) std::memcpy(dst, src, head);
  stream_lines(dst + head, src + head, body);
  if (tail) std::memcpy(dst + head + body, src + head + body, tail);
#else
  if (bytes) std::memcpy(to, from, bytes);
#endif
}

void stream_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

void copy_bytes(void* to, const void* from, size_t bytes, size_t whole_bytes) {
  if (bytes == 0 || to == from) return;
  if (bytes < to_size(kBytesPerThread)) {
    std::memcpy(to, from, bytes);
    return;
  }
  const bool stream = std::max(bytes, whole_bytes) >= kStreamCopyBytes;
  auto* dst = static_cast<std::byte*>(to);
  auto* src = static_cast<const std::byte*>(from);
  const auto lines = static_cast<int64_t>((bytes + kLine - 1) / kLine);  // threads share no line
  parallel_for(lines, kBytesPerThread / static_cast<int64_t>(kLine), [&](int64_t begin, int64_t end) {
    const size_t first = to_size(begin) * kLine, size = std::min(bytes, to_size(end) * kLine) - first;
    if (stream)
      stream_bytes(dst + first, src + first, size), stream_fence();
    else
      std::memcpy(dst + first, src + first, size);
  });
}

}  // namespace holon::kernels
