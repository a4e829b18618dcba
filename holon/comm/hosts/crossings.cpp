#include "holon/comm/hosts/crossings.h"

#include <algorithm>
#include <bit>

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

Crossings::OwnersByHost Crossings::in_order(const Pull& pull, std::span<const int> ids) const {
  OwnersByHost owners;
  owners.reserve(pull.owners.size());
  for (int owner : pull.owners) {
    const int member = member_of(owner, ids);
    owners.emplace_back(at_index(place_, at_index(host_of_, member)), member);
  }
  auto before = [](auto& a, auto& b) { return a.first < b.first; };
  if (!std::is_sorted(owners.begin(), owners.end(), before)) std::stable_sort(owners.begin(), owners.end(), before);
  return owners;
}

std::vector<std::vector<int>> Crossings::by_host(const Pull& pull, std::span<const int> ids) const {
  const OwnersByHost owners = in_order(pull, ids);
  std::vector<std::vector<int>> by;
  for (size_t i = 0; i < owners.size(); ++i) {
    if (i == 0 || owners[i].first != owners[i - 1].first) by.emplace_back();
    by.back().push_back(owners[i].second);
  }
  return by;
}

size_t Crossings::find(int to_host, std::span<const int> addends, const Pull& p) {
  Hasher h;
  h.add(to_host).add(p.src_start).add(p.shape.numel());
  for (int a : addends) h.add(a);
  if (2 * list_.size() >= slots_.size()) make_slots(std::max<size_t>(64, 4 * list_.size()));
  const uint64_t hash = h.value();
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    const size_t number = slots_[at];
    if (number == kFree) {
      slots_[at] = static_cast<uint32_t>(list_.size());
      hashes_.push_back(hash);
      list_.push_back({SmallVec<int, 8>(addends), p.src_start, p.src_strides, p.shape, to_host, {}, {}});
      return list_.size() - 1;
    }
    if (hashes_[number] != hash) continue;
    const Crossing& c = list_[number];
    if (c.to_host == to_host && std::equal(c.addends.begin(), c.addends.end(), addends.begin(), addends.end()) &&
        c.src_start == p.src_start && c.src_strides == p.src_strides && c.shape == p.shape)
      return number;
  }
}

void Crossings::make_slots(size_t at_least) {
  slots_.assign(std::bit_ceil(at_least), kFree);
  const size_t mask = slots_.size() - 1;
  for (size_t number = 0; number < list_.size(); ++number) {
    size_t at = hashes_[number] & mask;
    while (slots_[at] != kFree) at = (at + 1) & mask;
    slots_[at] = static_cast<uint32_t>(number);
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
    const OwnersByHost owners = in_order(p, ids);
    const bool one_host = owners[0].first == owners[owners.size() - 1].first;
    SmallVec<int, 64> addends;
    for (size_t i = 0; i < owners.size(); ++i) {
      addends.push_back(owners[i].second);
      if (i + 1 < owners.size() && owners[i + 1].first == owners[i].first) continue;
      if (at_index(host_of_, addends[0]) != here) note(addends, one_host && stretch);
      addends.clear();
    }
  }
  return numbers;
}

}  // namespace holon::comm
