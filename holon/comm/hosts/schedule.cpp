#include "holon/comm/hosts/schedule.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "holon/base/index.h"

namespace holon::comm {

namespace {

struct Crossing {
  std::vector<int> addends;
  int64_t src_start;
  Dims src_strides, shape;
  std::vector<int> wanted;      // members of one host, ascending
  std::vector<int64_t> direct;  // for each: where it goes in its new part, -1 if not as a whole
  int sender = -1, receiver = -1, number = 0, packet = -1;
  int64_t at = 0;
};

// True if a region with these strides is one stretch of memory.
bool one_stretch(const Dims& shape, const Dims& strides) {
  int64_t expected = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

// Large regions travel in pieces along their first axis: one is summed while another is on its way.
std::vector<Pull> in_pieces(std::vector<Pull> pulls, int64_t item_bytes) {
  constexpr int64_t kPieceBytes = 4 << 20;
  std::vector<Pull> pieces;
  for (Pull& p : pulls) {
    const int64_t bytes = p.shape.numel() * item_bytes;
    int axis = 0;
    while (axis < p.shape.size() && p.shape[axis] == 1) ++axis;
    if (bytes <= kPieceBytes || axis == p.shape.size()) {
      pieces.push_back(std::move(p));
      continue;
    }
    const int64_t rows = p.shape[axis], some = std::max<int64_t>(1, kPieceBytes / (bytes / rows));
    for (int64_t r = 0; r < rows; r += some) {
      Pull piece = p;
      piece.shape[axis] = std::min(some, rows - r);
      piece.src_start += r * p.src_strides[axis];
      piece.dst_start += r * p.dst_strides[axis];
      pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

std::vector<int64_t> listed(const Dims& d) { return {d.begin(), d.end()}; }

}  // namespace

HostSchedule make_schedule(std::span<const int> host_of, int me, const PullsOf& pulls_of, int64_t item_bytes) {
  const int n = static_cast<int>(host_of.size());
  const int my_host = at_index(host_of, me);
  auto host = [&](int member) { return at_index(host_of, member); };
  // Hosts count in the order of their first members; a member's place is among those of its host.
  std::vector<int> place(to_size(n));
  std::map<int, int> order, sizes;
  for (int m = 0; m < n; ++m) {
    order.emplace(host(m), static_cast<int>(order.size()));
    at_index(place, m) = sizes[host(m)]++;
  }
  auto owners_by_host = [&](const Pull& pull) {
    std::vector<std::vector<int>> by(order.size());
    for (int o : pull.owners) at_index(by, order[host(o)]).push_back(o);
    return by;
  };

  // Every region that crosses, in an order that all members share.
  using Key = std::tuple<int, std::vector<int>, int64_t, std::vector<int64_t>, std::vector<int64_t>>;
  std::map<Key, size_t> known;
  std::vector<Crossing> crossings;
  auto key_of = [&](int to_host, const std::vector<int>& addends, const Pull& p) {
    return Key{to_host, addends, p.src_start, listed(p.src_strides), listed(p.shape)};
  };
  HostSchedule s;
  std::vector<Pull> mine;
  for (int m = 0; m < n; ++m) {
    std::vector<Pull> pulls = in_pieces(pulls_of(m), item_bytes);
    for (const Pull& p : pulls) {
      if (p.shape.numel() == 0) continue;
      auto by = owners_by_host(p);
      auto terms = std::count_if(by.begin(), by.end(), [](auto& owners) { return !owners.empty(); });
      bool direct = terms == 1 && one_stretch(p.shape, p.dst_strides);
      for (const auto& addends : by) {
        if (addends.empty()) continue;
        if (host(addends[0]) == host(m)) {
          if (host(m) == my_host) s.reads_before |= addends.size() > 1 || addends[0] != m;
          continue;
        }
        auto [it, fresh] = known.emplace(key_of(host(m), addends, p), crossings.size());
        if (fresh) crossings.push_back({addends, p.src_start, p.src_strides, p.shape, {}, {}});
        crossings[it->second].wanted.push_back(m);
        crossings[it->second].direct.push_back(direct ? p.dst_start : -1);
      }
    }
    if (m == me) mine = std::move(pulls);
  }

  std::map<std::pair<int, int>, int> count;
  std::vector<int64_t> shown(to_size(n));
  std::vector<bool> all_direct(to_size(n), true);
  const int64_t line = std::max<int64_t>(1, 64 / item_bytes);
  for (Crossing& c : crossings) {
    auto pick = [&](const std::vector<int>& from, int like) { return to_size(at_index(place, like)) % from.size(); };
    c.sender = c.addends[pick(c.addends, c.wanted[0])];
    size_t which = pick(c.wanted, c.sender);
    c.receiver = c.wanted[which];
    c.at = c.direct[which];
    c.number = count[{c.sender, c.receiver}]++;
    if (c.at < 0) at_index(all_direct, c.receiver) = false;
  }
  for (Crossing& c : crossings) {
    int64_t& used = at_index(shown, c.receiver);
    if (at_index(all_direct, c.receiver)) {
      used = std::max(used, c.at + c.shape.numel());
    } else {
      c.at = used;
      used += (c.shape.numel() + line - 1) / line * line;
    }
    Packet packet{c.addends, c.src_start, c.src_strides, c.shape, -1, c.number, c.shape.numel(), c.at};
    if (c.sender == me) {
      packet.peer = c.receiver;
      s.send.push_back(packet);
    }
    if (c.receiver == me) {
      packet.peer = c.sender;
      c.packet = static_cast<int>(s.receive.size());
      s.receive.push_back(packet);
    }
    if (host(c.sender) == my_host) s.reads_before |= c.addends.size() > 1 || c.addends[0] != c.sender;
    if (host(c.receiver) == my_host) s.reads_staged |= c.wanted.size() > 1;
  }
  s.direct = at_index(all_direct, me);
  s.shown_elements = at_index(shown, me);

  for (const Pull& p : mine) {
    if (p.shape.numel() == 0) continue;
    HostPull h{{}, p.src_start, p.src_strides, p.dst_start, p.dst_strides, p.shape};
    for (auto& addends : owners_by_host(p)) {
      if (addends.empty()) continue;
      if (host(addends[0]) == my_host) {
        h.terms.push_back({std::move(addends), -1, 0, -1});
        continue;
      }
      const Crossing& c = crossings[known.at(key_of(my_host, addends, p))];
      h.terms.push_back({{}, c.receiver, c.at, c.packet});
    }
    s.pulls.push_back(std::move(h));
  }
  return s;
}

}  // namespace holon::comm
