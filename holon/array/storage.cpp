#include "holon/array/storage.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/settings.h"

namespace holon {

namespace {

constexpr size_t kAlign = 64, kPage = 4096;
// Under AddressSanitizer every block ends in bytes that must not be touched, and a free one is not to be touched at
// all.
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kGuard = 64, kMost = size_t{2} << 30;  // what a fuzzer asks for is refused early
void poison(void* p, size_t bytes) { __asan_poison_memory_region(p, bytes); }
void unpoison(void* p, size_t bytes) { __asan_unpoison_memory_region(p, bytes); }
#else
constexpr size_t kGuard = 0, kMost = size_t{1} << 60;
void poison(void*, size_t) {}
void unpoison(void*, size_t) {}
#endif

constexpr size_t kSmallLimit = 1 << 20;  // above this, blocks are whole pages with their own free list

Arena make_arena() {
  Arena arena;
  if (Context::of_process().world_size() == 1) return arena;
  double gib = settings::number("HOLON_ARENA_GB");
  size_t memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  arena.size = gib > 0 ? static_cast<size_t>(gib * (1ull << 30)) : 4 * memory;
  arena.size = (arena.size + (1ull << 30)) & ~((1ull << 30) - 1);
  arena.fd = memfd_create("holon-arena", MFD_CLOEXEC);
  if (arena.fd < 0 || ftruncate(arena.fd, static_cast<off_t>(arena.size)) != 0)
    fail_runtime("the shared arena of {} GiB cannot be made: {}. Set HOLON_ARENA_GB lower.", arena.size >> 30,
                 strerror(errno));
  void* base = mmap(nullptr, arena.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, arena.fd, 0);
  if (base == MAP_FAILED)
    fail_runtime("the shared arena of {} GiB cannot be mapped: {}. Set HOLON_ARENA_GB lower.", arena.size >> 30,
                 strerror(errno));
  arena.base = static_cast<std::byte*>(base);
  return arena;
}

// Size classes: four per power of two, so that at most a quarter of a block is wasted.
size_t class_of(size_t bytes, size_t* rounded) {
  bytes = std::max(bytes, kAlign);
  size_t log = std::bit_width(bytes - 1) - 1;  // 2^log < bytes <= 2^(log+1)
  size_t quarter = std::max<size_t>((size_t{1} << log) / 4, kAlign);
  *rounded = (bytes + quarter - 1) / quarter * quarter;
  if (*rounded <= (size_t{1} << log)) *rounded = (size_t{1} << log) + quarter;
  if (log < 8) return (*rounded = (bytes + kAlign - 1) / kAlign * kAlign) / kAlign;  // 64, 128, ..., 512
  return 9 + (log - 8) * 4 + (*rounded - (size_t{1} << log)) / quarter - 1;
}

class Allocator {
 public:
  // Leaked on purpose: storages may be freed by static destructors.
  static Allocator& get() {
    static auto* a = new Allocator;
    return *a;
  }

  const Arena& arena() const { return arena_; }

  void* take(size_t bytes) {
    if (bytes > kMost)
      fail_runtime("out of memory: {} bytes were asked for ({}). Use smaller tensors or split them over more ranks.",
                   bytes, rank_text());
    size_t rounded, c = class_of(bytes + kGuard, &rounded);
    if (rounded > kSmallLimit) rounded = (rounded + kPage - 1) / kPage * kPage;
    std::lock_guard lock(mutex_);
    void* p = take_rounded(c, rounded);
    unpoison(p, bytes);
    poison(static_cast<std::byte*>(p) + bytes, rounded - bytes);
    return p;
  }

  void* take_rounded(size_t c, size_t rounded) {
    in_use_ += rounded;
    if (in_use_ > peak_) peak_ = in_use_;
    auto& list = free_[c];
    if (!list.empty()) {
      void* p = list.back();
      list.pop_back();
      cached_ -= rounded;
      return p;
    }
    return rounded > kSmallLimit ? fresh(rounded) : carve(rounded);
  }

  void give(void* p, size_t bytes) {
    size_t rounded, c = class_of(bytes + kGuard, &rounded);
    if (rounded > kSmallLimit) rounded = (rounded + kPage - 1) / kPage * kPage;
    std::lock_guard lock(mutex_);
    if (left_.contains(p)) return;
    poison(p, rounded);
    in_use_ -= rounded;
    cached_ += rounded;
    free_[c].push_back(p);
  }

  void leave_arena() {
    new (&mutex_) std::mutex;  // another thread may have held it when the process was forked
    left_ = arena_;
    arena_ = {};
    slab_left_ = in_use_ = peak_ = cached_ = 0;
    for (auto& list : free_) list.clear();
  }

  MemoryStats stats() {
    std::lock_guard lock(mutex_);
    return {in_use_, peak_, cached_};
  }

  void reset_peak() {
    std::lock_guard lock(mutex_);
    peak_ = in_use_;
  }

  void release() {
    std::lock_guard lock(mutex_);
    // Pages go back to the system, addresses stay with the block, so that its place in the arena can be used again.
    for (size_t c = 0; c < free_.size(); ++c) {
      if (free_[c].empty() || c < class_of_limit()) continue;
      for (void* p : free_[c]) {
        size_t size = page_size_of_class(c);
        madvise(p, size, arena_.fd >= 0 ? MADV_REMOVE : MADV_DONTNEED);
      }
    }
  }

 private:
  Allocator() : arena_(make_arena()), free_(256) {}

  static size_t class_of_limit() {
    size_t rounded;
    return class_of(kSmallLimit, &rounded) + 1;
  }
  static size_t page_size_of_class(size_t c) {
    size_t log = 8 + (c - 9) / 4, quarter = (size_t{1} << log) / 4;
    size_t rounded = (size_t{1} << log) + ((c - 9) % 4 + 1) * quarter;
    return (rounded + kPage - 1) / kPage * kPage;
  }

  void* fresh(size_t bytes) {
    void* p;
    if (arena_.fd >= 0) {
      if (arena_used_ + bytes > arena_.size) out_of_memory(bytes);
      p = arena_.base + arena_used_;
      arena_used_ += bytes;
    } else {
      p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) out_of_memory(bytes);
      if (bytes >= (2u << 20)) madvise(p, bytes, MADV_HUGEPAGE);
    }
    return p;
  }

  void* carve(size_t bytes) {
    if (slab_left_ < bytes) {
      slab_left_ = 4 << 20;
      slab_ = static_cast<std::byte*>(fresh(slab_left_));
    }
    void* p = slab_;
    slab_ += bytes;
    slab_left_ -= bytes;
    return p;
  }

  [[noreturn]] void out_of_memory(size_t bytes) {
    in_use_ -= bytes;
    fail_runtime("out of memory: {} bytes were asked for, {} are in use and {} are cached ({}). Use smaller tensors or "
                 "split them over more ranks.",
                 bytes, in_use_, cached_, rank_text());
  }

  std::mutex mutex_;
  Arena arena_;
  Arena left_;  // the arena of the process that this one was forked from: its blocks are that one's to give out
  size_t arena_used_ = 0;
  std::byte* slab_ = nullptr;
  size_t slab_left_ = 0;
  std::vector<std::vector<void*>> free_;
  size_t in_use_ = 0, peak_ = 0, cached_ = 0;
};

class OwnedStorage final : public Storage {
 public:
  OwnedStorage(void* p, size_t n) : Storage(p, n) {}
  ~OwnedStorage() override { Allocator::get().give(data(), size()); }
};

class BorrowedStorage final : public Storage {
 public:
  BorrowedStorage(void* p, size_t n, void* owner, void (*free)(void*)) : Storage(p, n), owner_(owner), free_(free) {}
  ~BorrowedStorage() override {
    if (free_) free_(owner_);
  }

 private:
  void* owner_;
  void (*free_)(void*);
};

}  // namespace

Ref<Storage> allocate_storage(size_t size) { return Ref<Storage>(new OwnedStorage(Allocator::get().take(size), size)); }

Ref<Storage> borrow_storage(void* data, size_t size, void* owner, void (*free)(void*)) {
  return Ref<Storage>(new BorrowedStorage(data, size, owner, free));
}

const Arena& process_arena() { return Allocator::get().arena(); }
void leave_arena() { Allocator::get().leave_arena(); }
void* allocate_block(size_t size) { return Allocator::get().take(size); }
void free_block(void* p, size_t size) { Allocator::get().give(p, size); }
MemoryStats memory_stats() { return Allocator::get().stats(); }
void reset_peak_memory() { Allocator::get().reset_peak(); }
void release_cached_memory() { Allocator::get().release(); }

}  // namespace holon
