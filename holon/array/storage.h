// Memory of arrays. One allocator per process serves all CPU memory from cached blocks; memory.h bounds it.
//
// In a world of several processes its memory is one sparse memfd, the arena, which peers on the same host map too: what
// a rank computes is where its peers can read it, and a collective needs one copy. Nothing has a name in a file
// system, so nothing is left behind after a crash, and the size of /dev/shm does not matter. A forked process gets a
// copy of it (arena.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "holon/base/ref.h"

namespace holon {

class Storage : public RefCounted {
 public:
  Storage(void* data, size_t size) : data_(data), size_(size) {}
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size() const { return size_; }
  // For a storage that owns nothing and represents memory that is found later: what it refers to from here on.
  void rebind(void* data, size_t size) {
    data_ = data;
    size_ = size;
  }
  // The host's, and page-locked: devices copy to and from it while the host goes on.
  virtual bool is_pinned() const { return false; }
  // Counts in-place writes, so that autograd can tell that a value it kept has changed.
  uint32_t version = 0;

 private:
  void* data_;
  size_t size_;
};

// Uninitialised memory, aligned to 64 bytes. Errors: out of memory, naming the size.
Ref<Storage> allocate_storage(size_t size_bytes);

// Memory that somebody else owns; free(owner) is called when the last user is gone.
Ref<Storage> borrow_storage(void* data, size_t size_bytes, void* owner, void (*free)(void*));

struct Arena {
  int fd = -1;  // -1: the process's memory is private (one process, or ranks as threads)
  std::byte* base = nullptr;
  size_t size = 0;
  bool contains(const void* p) const { return p >= base && p < base + size; }
};
// The arena of this process; made on first use.
const Arena& process_arena();

// Raw blocks from the same caching allocator, for buffers that are not arrays.
void* allocate_block(size_t size_bytes);
void free_block(void* p, size_t size_bytes);

struct MemoryStats {
  size_t in_use_bytes, peak_bytes, cached_bytes;
};
MemoryStats memory_stats();
void reset_peak_memory();
// Gives cached blocks back to the system.
void release_cached_memory();

}  // namespace holon
