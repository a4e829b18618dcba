// Address space of an arena, and the copy of an arena that a forked process goes on with. Header of array/'s own
// sources.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "holon/array/storage.h"

namespace holon {

// Which bytes of [0, size) are taken. Ranges that were given back are joined, and taken again from the lowest on.
class AddressSpace {
 public:
  explicit AddressSpace(size_t size = 0) : size_(size) {}
  std::optional<size_t> take(size_t bytes);
  void give(size_t at, size_t bytes);
  // Beyond it nothing is taken.
  size_t end() const { return end_; }

 private:
  size_t size_, end_ = 0;
  std::map<size_t, size_t> free_;  // below end_: where, and how many bytes
};

// The memory that a child takes for its parent's arena.
class ArenaCopy {
 public:
  // Copies [0, end) without the given ranges (offset, bytes), if that is not more than most_bytes.
  void make(const Arena& arena, size_t end, std::vector<std::pair<size_t, size_t>> without, size_t most_bytes);
  void drop();
  bool made() const { return at_ != nullptr; }
  // Why there is none: "4096 MiB are more than the 1024 of HOLON_FORK_COPY_MB".
  const std::string& why_not() const { return why_not_; }
  // In the child: puts the copy, or where there is none a view of what the parent has, in the arena's place. Nothing
  // that is written there reaches anybody.
  void put_in_place(const Arena& arena, size_t end);

 private:
  std::byte* at_ = nullptr;
  size_t bytes_ = 0;
  std::string why_not_;
};

}  // namespace holon
