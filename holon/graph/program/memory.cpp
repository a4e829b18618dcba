#include "holon/graph/program/memory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "holon/base/index.h"

namespace holon::graph {

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMostBySize = 3000;  // placing by size looks at all pairs

size_t rounded(size_t bytes) { return (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment; }

// Free ranges of a block that grows at its end.
class FreeList {
 public:
  size_t take(size_t bytes) {
    auto it = by_size_.lower_bound({bytes, 0});
    if (it != by_size_.end()) {
      auto [size, at] = *it;
      remove(at, size);
      if (size > bytes) add(at + bytes, size - bytes);
      return at;
    }
    // The range that ends the block can grow.
    size_t at = end_;
    if (!by_place_.empty()) {
      auto last = std::prev(by_place_.end());
      if (last->first + last->second == end_) {
        at = last->first;
        remove(last->first, last->second);
      }
    }
    end_ = at + bytes;
    return at;
  }

  void give(size_t at, size_t bytes) {
    auto next = by_place_.lower_bound(at);
    if (next != by_place_.end() && at + bytes == next->first) {
      bytes += next->second;
      remove(next->first, next->second);
    }
    auto after = by_place_.lower_bound(at);
    if (after != by_place_.begin()) {
      auto before = std::prev(after);
      if (before->first + before->second == at) {
        at = before->first;
        bytes += before->second;
        remove(before->first, before->second);
      }
    }
    add(at, bytes);
  }

  size_t end() const { return end_; }

 private:
  void add(size_t at, size_t bytes) {
    by_place_[at] = bytes;
    by_size_.insert({bytes, at});
  }
  void remove(size_t at, size_t bytes) {
    by_place_.erase(at);
    by_size_.erase({bytes, at});
  }
  std::map<size_t, size_t> by_place_;
  std::set<std::pair<size_t, size_t>> by_size_;
  size_t end_ = 0;
};

std::vector<size_t> order_by_first(const std::vector<Lifetime>& lives) {
  std::vector<size_t> order(lives.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lives[a].first < lives[b].first; });
  return order;
}

size_t place_in_order(const std::vector<Lifetime>& lives, std::vector<size_t>& offsets) {
  FreeList free;
  std::set<std::pair<int32_t, size_t>> living;  // by last use
  for (size_t i : order_by_first(lives)) {
    while (!living.empty() && living.begin()->first < lives[i].first) {
      size_t dead = living.begin()->second;
      free.give(offsets[dead], rounded(lives[dead].bytes));
      living.erase(living.begin());
    }
    offsets[i] = free.take(rounded(lives[i].bytes));
    living.insert({lives[i].last, i});
  }
  return free.end();
}

size_t place_by_size(const std::vector<Lifetime>& lives, std::vector<size_t>& offsets) {
  std::vector<size_t> order(lives.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lives[a].bytes > lives[b].bytes; });
  std::vector<size_t> placed;  // by offset
  size_t end = 0;
  for (size_t i : order) {
    const size_t bytes = rounded(lives[i].bytes);
    size_t at = 0;
    for (size_t other : placed) {
      if (lives[other].last < lives[i].first || lives[i].last < lives[other].first) continue;
      if (offsets[other] >= at + bytes) break;
      at = std::max(at, offsets[other] + rounded(lives[other].bytes));
    }
    offsets[i] = at;
    end = std::max(end, at + bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), at,
                                   [&](size_t value, size_t p) { return value < offsets[p]; }),
                  i);
  }
  return end;
}

size_t most_at_once(const std::vector<Lifetime>& lives) {
  std::map<int32_t, int64_t> change;
  for (auto& l : lives) {
    change[l.first] += static_cast<int64_t>(rounded(l.bytes));
    change[l.last + 1] -= static_cast<int64_t>(rounded(l.bytes));
  }
  int64_t now = 0, most = 0;
  for (auto& [at, by] : change) most = std::max(most, now += by);
  return to_size(most);
}

}  // namespace

MemoryPlan plan_memory(const std::vector<Lifetime>& lives) {
  MemoryPlan plan;
  plan.offsets.resize(lives.size());
  for (auto& l : lives) plan.sum_bytes += rounded(l.bytes);
  plan.peak_bytes = most_at_once(lives);
  plan.bytes = place_in_order(lives, plan.offsets);
  if (plan.bytes > plan.peak_bytes && lives.size() <= kMostBySize) {
    std::vector<size_t> offsets(lives.size());
    size_t bytes = place_by_size(lives, offsets);
    if (bytes < plan.bytes) {
      plan.bytes = bytes;
      plan.offsets = std::move(offsets);
    }
  }
  return plan;
}

}  // namespace holon::graph
