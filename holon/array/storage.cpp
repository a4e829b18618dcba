#include "holon/array/storage.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "holon/array/arena.h"
#include "holon/array/memory.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/fork.h"
#include "holon/base/index.h"
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
  size_t memory = to_size(sysconf(_SC_PHYS_PAGES)) * to_size(sysconf(_SC_PAGESIZE));
  arena.size = gib > 0 ? static_cast<size_t>(gib * (1ull << 30)) : 4 * memory;
  arena.size = (arena.size + (1ull << 30)) & ~((1ull << 30) - 1);
  arena.fd = memfd_create("holon-arena", MFD_CLOEXEC);
  if (arena.fd < 0 || ftruncate(arena.fd, static_cast<off_t>(arena.size)) != 0)
    fail_runtime("cannot create the shared arena of {} GiB: {}. Set HOLON_ARENA_GB lower.", arena.size >> 30,
                 strerror(errno));
  void* base = mmap(nullptr, arena.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, arena.fd, 0);
  if (base == MAP_FAILED)
    fail_runtime("cannot map the shared arena of {} GiB: {}. Set HOLON_ARENA_GB lower.", arena.size >> 30,
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

size_t megabytes(const char* setting) {
  const double mib = settings::number(setting);
  if (!(mib >= 0)) fail_value("{} is {}; it must be 0 or more.", setting, mib);
  return mib > 1e12 ? kMost : static_cast<size_t>(mib * (1 << 20));
}

class Allocator {
 public:
  // Leaked on purpose: storages may be freed by static destructors.
  static Allocator& get() {
    static auto* a = made_ = new Allocator;
    return *a;
  }
  static Allocator* if_made() { return made_; }

  const Arena& arena() const { return arena_; }

  void* take(size_t bytes) {
    if (bytes > kMost)
      fail_runtime("out of memory: {} bytes were requested ({}). Use smaller tensors or split them over more ranks.",
                   bytes, rank_text());
    size_t rounded, c = class_of(bytes + kGuard, &rounded);
    if (rounded > kSmallLimit) rounded = (rounded + kPage - 1) / kPage * kPage;
    std::lock_guard lock(mutex_);
    if (no_more_) [[unlikely]]
      fail_runtime("this process was forked from {} and cannot create tensors: {}. Raise HOLON_FORK_COPY_MB, fork "
                   "before creating tensors, or start the process by spawn.",
                   forked_from(), *no_more_);
    void* p = take_rounded(c, rounded, bytes);
    unpoison(p, bytes);
    poison(static_cast<std::byte*>(p) + bytes, rounded - bytes);
    return p;
  }

  void give(void* p, size_t bytes) {
    size_t rounded, c = class_of(bytes + kGuard, &rounded);
    if (rounded > kSmallLimit) rounded = (rounded + kPage - 1) / kPage * kPage;
    std::lock_guard lock(mutex_);
    poison(p, rounded);
    in_use_ -= rounded;
    cached_ += rounded;
    free_[c].push_back({p, rounded > kSmallLimit ? ++time_ : 0});
    if (cached_ > keep_) [[unlikely]]
      trim(keep_);
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
    trim(0);
    highest_ = in_use_;
    set_keep();
  }

  void set_limit(std::optional<size_t> bytes) {
    std::lock_guard lock(mutex_);
    limit_ = bytes;
    if (bytes && held_ > *bytes) make_room(0);
  }
  std::optional<size_t> limit() {
    std::lock_guard lock(mutex_);
    return limit_;
  }
  void set_high_water(std::optional<size_t> bytes) {
    std::lock_guard lock(mutex_);
    high_water_ = bytes;
    set_keep();
    trim(keep_);
  }
  std::optional<size_t> high_water() {
    std::lock_guard lock(mutex_);
    return high_water_;
  }

  // The mutex is held by the fork (base/fork.h).
  void before_fork() {
    if (arena_.fd < 0 || copy_.made()) return;
    std::vector<std::pair<size_t, size_t>> unused;
    for (size_t c = first_large_class(); c < free_.size(); ++c)
      for (const Free& f : free_[c]) unused.emplace_back(offset(f.at), size_of_large_class(c));
    copy_.make(arena_, space_.end(), std::move(unused), most_copied_);
  }
  void after_fork_in_parent() {
    if (scopes_ == 0) copy_.drop();
  }
  // Its blocks are this process's own from here on, the free ones too, at the same addresses.
  void after_fork_in_child() {
    if (arena_.fd < 0) return;
    if (!copy_.made() && !copy_.why_not().empty() && scopes_ == 0) no_more_ = copy_.why_not();
    copy_.put_in_place(arena_, space_.end());
    close(arena_.fd);
    arena_ = {};
    scopes_ = 0;
  }
  void begin_scope() {
    std::lock_guard lock(mutex_);
    ++scopes_;
  }
  void end_scope() {
    std::lock_guard lock(mutex_);
    if (scopes_ > 0 && --scopes_ == 0) copy_.drop();
  }

 private:
  struct Free {
    void* at;
    uint64_t freed;  // when, for a large block
  };

  Allocator() : arena_(make_arena()), space_(arena_.size), free_(256) {
    if (const size_t bytes = megabytes("HOLON_MEMORY_LIMIT_MB"); bytes > 0) limit_ = bytes;
    if (!settings::text("HOLON_CACHE_HIGH_WATER_MB").empty()) high_water_ = megabytes("HOLON_CACHE_HIGH_WATER_MB");
    set_keep();
  }

  static size_t first_large_class() {
    size_t rounded;
    return class_of(kSmallLimit, &rounded) + 1;
  }
  static size_t size_of_large_class(size_t c) {
    size_t log = 8 + (c - 9) / 4, quarter = (size_t{1} << log) / 4;
    size_t rounded = (size_t{1} << log) + ((c - 9) % 4 + 1) * quarter;
    return (rounded + kPage - 1) / kPage * kPage;
  }
  size_t offset(const void* p) const { return to_size(static_cast<const std::byte*>(p) - arena_.base); }

  void* take_rounded(size_t c, size_t rounded, size_t asked) {
    auto& list = free_[c];
    void* p;
    if (!list.empty()) {
      p = list.back().at;
      list.pop_back();
      cached_ -= rounded;
    } else {
      p = rounded > kSmallLimit ? fresh(rounded, asked) : carve(rounded, asked);
    }
    in_use_ += rounded;
    if (in_use_ > peak_) peak_ = in_use_;
    if (in_use_ > highest_) {
      highest_ = in_use_;
      set_keep();
    }
    return p;
  }

  void set_keep() { keep_ = high_water_ ? *high_water_ : std::max(highest_, kLeastKept); }

  // From the system. What is cached is given back before anything fails.
  void* fresh(size_t bytes, size_t asked) {
    if (limit_ && held_ + bytes > *limit_ && !make_room(bytes)) out_of_memory(asked);
    void* p = from_system(bytes);
    if (!p && cached_ > 0) {
      trim(0);
      p = from_system(bytes);
    }
    if (!p) out_of_memory(asked);
    held_ += bytes;
    return p;
  }

  // Whether so many bytes more are within the limit.
  bool make_room(size_t bytes) {
    const size_t most = *limit_ > bytes ? *limit_ - bytes : 0;
    if (held_ > most) trim(cached_ - std::min(cached_, held_ - most));
    return held_ + bytes <= *limit_;
  }

  void* from_system(size_t bytes) {
    if (arena_.fd >= 0) {
      const auto at = space_.take(bytes);
      return at ? arena_.base + *at : nullptr;
    }
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    if (bytes >= (2u << 20)) madvise(p, bytes, MADV_HUGEPAGE);
    return p;
  }

  void to_system(void* p, size_t bytes) {
    unpoison(p, bytes);  // others may get the address
    if (arena_.fd >= 0) {
      madvise(p, bytes, MADV_REMOVE);
      space_.give(offset(p), bytes);
    } else {
      munmap(p, bytes);
    }
    held_ -= bytes;
  }

  // Gives back large blocks, the longest unused first, until no more than so many bytes are cached.
  void trim(size_t most) {
    while (cached_ > most) {
      size_t from = 0;
      uint64_t oldest = ~uint64_t{0};
      for (size_t c = first_large_class(); c < free_.size(); ++c)
        if (!free_[c].empty() && free_[c].front().freed < oldest) oldest = free_[c].front().freed, from = c;
      if (from == 0) return;
      void* p = free_[from].front().at;
      free_[from].erase(free_[from].begin());
      const size_t bytes = size_of_large_class(from);
      cached_ -= bytes;
      to_system(p, bytes);
    }
  }

  void* carve(size_t bytes, size_t asked) {
    if (slab_left_ < bytes) {
      slab_ = static_cast<std::byte*>(fresh(kSlab, asked));
      slab_left_ = kSlab;
    }
    void* p = slab_;
    slab_ += bytes;
    slab_left_ -= bytes;
    return p;
  }

  [[noreturn]] void out_of_memory(size_t bytes) {
    fail_runtime("out of memory: {} bytes were requested, {} are in use and {} are cached ({}). {}Use smaller tensors "
                 "or split them over more ranks.",
                 bytes, in_use_, cached_, rank_text(),
                 limit_ ? fmt::format("The limit is {} bytes (HOLON_MEMORY_LIMIT_MB, set_memory_limit). ", *limit_)
                        : "");
  }

  static constexpr size_t kSlab = size_t{4} << 20, kLeastKept = size_t{64} << 20;
  static constinit Allocator* made_;

  ProcessMutex mutex_;
  Arena arena_;
  AddressSpace space_;  // of the arena
  std::byte* slab_ = nullptr;
  size_t slab_left_ = 0;
  std::vector<std::vector<Free>> free_;
  uint64_t time_ = 0;
  size_t in_use_ = 0, peak_ = 0, cached_ = 0;
  size_t held_ = 0;     // taken from the system: in use, cached, or the rest of a slab
  size_t highest_ = 0;  // as peak_, for what is kept
  size_t keep_ = 0;     // what may be cached
  std::optional<size_t> limit_, high_water_;

  ArenaCopy copy_;
  int scopes_ = 0;
  const size_t most_copied_ = megabytes("HOLON_FORK_COPY_MB");
  std::optional<std::string> no_more_;  // why a forked process makes no tensors
};

constinit Allocator* Allocator::made_ = nullptr;

[[maybe_unused]] const bool forks = at_fork({
    .before =
        [] {
          if (auto* a = Allocator::if_made()) a->before_fork();
        },
    .in_parent =
        [] {
          if (auto* a = Allocator::if_made()) a->after_fork_in_parent();
        },
    .in_child =
        [] {
          if (auto* a = Allocator::if_made()) a->after_fork_in_child();
        },
});

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

Ref<Storage> allocate_storage(size_t size) { return make_ref<OwnedStorage>(Allocator::get().take(size), size); }

Ref<Storage> borrow_storage(void* data, size_t size, void* owner, void (*free)(void*)) {
  return make_ref<BorrowedStorage>(data, size, owner, free);
}

const Arena& process_arena() { return Allocator::get().arena(); }
void* allocate_block(size_t size) { return Allocator::get().take(size); }
void free_block(void* p, size_t size) { Allocator::get().give(p, size); }
MemoryStats memory_stats() { return Allocator::get().stats(); }
void reset_peak_memory() { Allocator::get().reset_peak(); }
void release_cached_memory() { Allocator::get().release(); }

void set_memory_limit(std::optional<size_t> bytes) { Allocator::get().set_limit(bytes); }
std::optional<size_t> memory_limit() { return Allocator::get().limit(); }
void set_cache_high_water(std::optional<size_t> bytes) { Allocator::get().set_high_water(bytes); }
std::optional<size_t> cache_high_water() { return Allocator::get().high_water(); }

ForkScope::ForkScope() { Allocator::get().begin_scope(); }
ForkScope::~ForkScope() { Allocator::get().end_scope(); }

}  // namespace holon
