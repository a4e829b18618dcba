#include "boxing/allocations.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "tests/cpp/sanitizers.h"

namespace {
thread_local int64_t allocations = 0;
}  // namespace

int64_t holon::testing_boxing::allocations_here() { return allocations; }

#ifdef HOLON_THREAD_SANITIZER  // it has an operator new of its own, and tells of what it allocates

extern "C" void __sanitizer_malloc_hook(const volatile void*, size_t) { ++allocations; }

#else

namespace {
void* counted_or_null(size_t size, size_t alignment) {
  ++allocations;
  size = (std::max<size_t>(size, 1) + alignment - 1) / alignment * alignment;
  return std::aligned_alloc(alignment, size);
}

void* counted(size_t size, size_t alignment) {
  if (void* p = counted_or_null(size, alignment)) return p;
  throw std::bad_alloc();
}

constexpr size_t kAlignment = alignof(std::max_align_t);
}  // namespace

// All of them: a sanitizer that keeps one of its own finds that its memory is freed by another.
void* operator new(size_t size) { return counted(size, kAlignment); }
void* operator new[](size_t size) { return counted(size, kAlignment); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return counted_or_null(size, kAlignment); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return counted_or_null(size, kAlignment); }
void* operator new(size_t size, std::align_val_t a) { return counted(size, static_cast<size_t>(a)); }
void* operator new[](size_t size, std::align_val_t a) { return counted(size, static_cast<size_t>(a)); }
void* operator new(size_t size, std::align_val_t a, const std::nothrow_t&) noexcept {
  return counted_or_null(size, static_cast<size_t>(a));
}
void* operator new[](size_t size, std::align_val_t a, const std::nothrow_t&) noexcept {
  return counted_or_null(size, static_cast<size_t>(a));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { std::free(p); }

#endif
