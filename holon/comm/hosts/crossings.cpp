#include "holon/comm/hosts/crossings.h"

#include <algorithm>
#include <utility>

#include "holon/base/hash.h"
#include "holon/base/index.h"

namespace holon::comm {

bool one_stretch(const Dims& shape, const Dims& strides) {
  int64_t expected = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

namespace {

int member_of(int owner, std::span<const int> ids) { return ids.empty() ? owner : at_index(ids, owner); }

}  // namespace

Crossings::Crossings(std::span<const int> host_of) : host_of_(host_of) {
  if (host_of.empty()) return;
  place_.resize(to_size(*std::max_element(host_of.begin(), host_of.end()) + 1), -1);
  for (int host : host_of)
    if (int& place = at_index(place_, host); place < 0) place = hosts_++;
}

std::vector<std::vector<int>> Crossings::by_host(const Pull& pull, std::span<const int> ids) const {
  std::vector<std::pair<int, int>> owners;
  for (int owner : pull.owners) {
    const int member = member_of(owner, ids);
    owners.emplace_back(at_index(place_, at_index(host_of_, member)), member);
  }
  std::stable_sort(owners.begin(), owners.end(), [](auto& a, auto& b) { return a.first < b.first; });
  std::vector<std::vector<int>> by;
  for (size_t i = 0; i < owners.size(); ++i) {
    if (i == 0 || owners[i].first != owners[i - 1].first) by.emplace_back();
    by.back().push_back(owners[i].second);
  }
  return by;
}

size_t Crossings::find(int to_host, std::span<const int> addends, const Pull& p) {
  Hasher h;
  h.add(to_host).add(p.src_start);
  for (int a : addends) h.add(a);
  for (int64_t n : p.src_strides) h.add(n);
  for (int64_t n : p.shape) h.add(n);
  for (uint64_t key = h.value();; ++key) {
    const auto [it, fresh] = known_.try_emplace(key, list_.size());
    if (fresh) {
      list_.push_back({{addends.begin(), addends.end()}, p.src_start, p.src_strides, p.shape, to_host, {}, {}});
      return it->second;
    }
    const Crossing& c = list_[it->second];
    if (c.to_host == to_host && std::equal(c.addends.begin(), c.addends.end(), addends.begin(), addends.end()) &&
        c.src_start == p.src_start && c.src_strides == p.src_strides && c.shape == p.shape)
      return it->second;
  }
}

std::vector<size_t> Crossings::add(int member, std::span<const Pull> pulls, std::span<const int> ids) {
  const int here = at_index(host_of_, member);
  std::vector<size_t> numbers;
  numbers.reserve(pulls.size());
  for (const Pull& p : pulls) {
    if (p.shape.numel() == 0) continue;
    auto is_here = [&](int owner) { return at_index(host_of_, member_of(owner, ids)) == here; };
    if (std::all_of(p.owners.begin(), p.owners.end(), is_here)) continue;
    const bool stretch = one_stretch(p.shape, p.dst_strides);
    auto note = [&](std::span<const int> addends, bool direct) {
      const size_t number = find(here, addends, p);
      list_[number].wanted.push_back(member);
      list_[number].direct.push_back(direct ? p.dst_start : -1);
      numbers.push_back(number);
    };
    if (p.owners.size() == 1) {
      const int owner = member_of(p.owners[0], ids);
      note({&owner, 1}, stretch);
      continue;
    }
    const auto by = by_host(p, ids);
    for (auto& addends : by)
      if (at_index(host_of_, addends[0]) != here) note(addends, by.size() == 1 && stretch);
  }
  return numbers;
}

}  // namespace holon::comm
