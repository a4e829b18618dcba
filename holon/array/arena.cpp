#include "holon/array/arena.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"

namespace holon {

std::optional<size_t> AddressSpace::take(size_t bytes) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    auto [at, room] = *it;
    if (room < bytes) continue;
    free_.erase(it);
    if (room > bytes) free_.emplace(at + bytes, room - bytes);
    return at;
  }
  if (bytes > size_ - end_) return std::nullopt;
  return std::exchange(end_, end_ + bytes);
}

void AddressSpace::give(size_t at, size_t bytes) {
  auto next = free_.lower_bound(at);
  if (next != free_.end() && next->first == at + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin())
    if (auto before = std::prev(next); before->first + before->second == at) {
      at = before->first;
      bytes += before->second;
      free_.erase(before);
    }
  if (at + bytes == end_)
    end_ = at;
  else
    free_.emplace(at, bytes);
}

namespace {

// The parts of [0, end) that have pages and are not to be left out.
std::vector<std::pair<size_t, size_t>> parts_to_copy(int fd, size_t end,
                                                     std::vector<std::pair<size_t, size_t>> without) {
  std::sort(without.begin(), without.end());
  std::vector<std::pair<size_t, size_t>> parts;
  auto left_out = without.begin();
  for (size_t at = 0; at < end;) {
    off_t data = lseek(fd, static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 && errno != ENXIO) data = static_cast<off_t>(at);  // a system that does not tell holes
    if (data < 0 || to_size(data) >= end) break;
    const off_t hole = lseek(fd, data, SEEK_HOLE);
    const size_t stop = hole < 0 ? end : std::min(end, to_size(hole));
    for (at = to_size(data); at < stop;) {
      while (left_out != without.end() && left_out->first + left_out->second <= at) ++left_out;
      const size_t until = left_out == without.end() ? stop : std::min(stop, std::max(at, left_out->first));
      if (until > at) parts.emplace_back(at, until - at);
      at = until;
      if (left_out != without.end() && left_out->first <= at) at = std::min(stop, left_out->first + left_out->second);
    }
  }
  return parts;
}

}  // namespace

void ArenaCopy::make(const Arena& arena, size_t end, std::vector<std::pair<size_t, size_t>> without,
                     size_t most_bytes) {
  drop();
  const auto parts = parts_to_copy(arena.fd, end, std::move(without));
  size_t bytes = 0;
  for (auto& [at, n] : parts) bytes += n;
  if (bytes > most_bytes) {
    why_not_ = fmt::format("its tensors are {} MiB, and HOLON_FORK_COPY_MB is {}", bytes >> 20, most_bytes >> 20);
    return;
  }
  if (end == 0) return;
  void* p = mmap(nullptr, end, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    why_not_ = fmt::format("cannot copy its {} MiB of tensors: {}", bytes >> 20, strerror(errno));
    return;
  }
  at_ = static_cast<std::byte*>(p);
  bytes_ = end;
  // Read, not copied: the sanitizers' marks on free memory do not matter, and pages are not mapped first.
  for (auto [at, left] : parts)
    while (left > 0) {
      const ssize_t n = pread(arena.fd, at_ + at, left, static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        const std::string error = n < 0 ? strerror(errno) : "the arena is shorter than its size";
        drop();
        why_not_ = fmt::format("cannot copy its {} MiB of tensors: {}", bytes >> 20, error);
        return;
      }
      at += to_size(n), left -= to_size(n);
    }
}

void ArenaCopy::drop() {
  if (at_) munmap(at_, bytes_);
  at_ = nullptr;
  bytes_ = 0;
  why_not_.clear();
}

void ArenaCopy::put_in_place(const Arena& arena, size_t end) {
  constexpr int kOwn = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, kReadWrite = PROT_READ | PROT_WRITE;
  const bool view = !at_ && !why_not_.empty();
  end = std::max(end, bytes_);
  // What the copy does not have was free when it was made.
  void* p = end == 0 ? arena.base
      : view         ? mmap(arena.base, end, kReadWrite, kOwn, arena.fd, 0)
                     : mmap(arena.base, end, kReadWrite, kOwn | MAP_ANONYMOUS, -1, 0);
  // Not by mremap(), which libraries for RDMA replace by functions that lose the last argument (UCX 1.13).
  if (p != MAP_FAILED && at_ &&
      syscall(SYS_mremap, at_, bytes_, bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, arena.base) == -1)
    p = MAP_FAILED;
  // Rather a crash of the child than a change of its parent's tensors.
  if (p == MAP_FAILED) mprotect(arena.base, end, PROT_READ);
  if (end < arena.size) munmap(arena.base + end, arena.size - end);
  at_ = nullptr;
  bytes_ = 0;
}

}  // namespace holon
