// How much CPU memory arrays may take and keep, in addition to storage.h.
#pragma once

#include <cstddef>
#include <optional>

namespace holon {

// Bytes that the arrays of this process may take in all, what is cached included; nullopt: no limit. An allocation
// beyond it gives back what is cached, and raises if that is not enough. HOLON_MEMORY_LIMIT_MB at first.
void set_memory_limit(std::optional<size_t> bytes);
std::optional<size_t> memory_limit();

// What is cached beyond this many bytes is given back, the longest unused first; nullopt: beyond the most that has been
// in use since the last release_cached_memory(), or 64 MiB where that is less. Blocks of up to 1 MiB are kept in any
// case. HOLON_CACHE_HIGH_WATER_MB at first.
void set_cache_high_water(std::optional<size_t> bytes);
std::optional<size_t> cache_high_water();

// Forks of this process while a ForkScope lives get one copy of a rank's tensors, made at the first of them, and share
// its memory. A rank with too many tensors to copy (HOLON_FORK_COPY_MB) lets such children read its own instead.
class ForkScope {
 public:
  ForkScope();
  ~ForkScope();
  ForkScope(const ForkScope&) = delete;
  ForkScope& operator=(const ForkScope&) = delete;
};

}  // namespace holon
