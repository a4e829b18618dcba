// What crosses between the hosts of a group when its members pull: a region that several members of one host want from
// another crosses once, and a sum over members of another host is taken there, so that one region crosses instead of
// one for each addend. Pure: schedules are made of it (hosts/schedule.h), and prices too (holon/boxing/price.h).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "holon/base/small_vec.h"
#include "holon/comm/core/pull.h"

namespace holon::comm {

struct Crossing {
  SmallVec<int, 8> addends;  // members of one host, in the order of summation
  int64_t src_start = 0;
  Dims src_strides, shape;
  int to_host = 0;
  SmallVec<int, 8> wanted;      // members of that host, in the order in which they were added
  SmallVec<int64_t, 8> direct;  // for each: where it goes in its result, -1 if not as a whole
};

class Crossings {
 public:
  // host_of: of each member.
  explicit Crossings(std::span<const int> host_of);

  // What a member pulls; all members that pull, in the same order on every rank. ids: of the pulls' owners among the
  // members, where they are other numbers. Returns the numbers of the crossings, in the order of the pulls and, for
  // each, of its hosts.
  std::vector<size_t> add(int member, std::span<const Pull> pulls, std::span<const int> ids = {});
  const std::vector<Crossing>& list() const { return list_; }

  // The owners of a pull by their hosts, in the order of summation: that of the hosts' first members.
  std::vector<std::vector<int>> by_host(const Pull& pull, std::span<const int> ids = {}) const;

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  using OwnersByHost = SmallVec<std::pair<int, int>, 64>;  // of a pull, each after its host's place

  OwnersByHost in_order(const Pull& pull, std::span<const int> ids) const;
  size_t find(int to_host, std::span<const int> addends, const Pull& pull);
  void make_slots(size_t at_least);

  const std::span<const int> host_of_;
  std::vector<int> place_;  // of each host in the order of first members, by its number
  int hosts_ = 0;
  std::vector<Crossing> list_;
  std::vector<uint64_t> hashes_;  // of the list's
  std::vector<uint32_t> slots_;   // a hash table of numbers in the list; its size is a power of two
};

// True if a region with these strides is one stretch of memory.
bool one_stretch(const Dims& shape, const Dims& strides);

}  // namespace holon::comm
