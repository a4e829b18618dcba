#include "holon/comm/hosts/schedule.h"

#include <algorithm>
#include <map>
#include <utility>

#include "holon/base/index.h"
#include "holon/comm/hosts/crossings.h"

namespace holon::comm {

namespace {

// Who sends and receives a crossing, and where it goes.
struct Route {
  int sender = -1, receiver = -1, number = 0, packet = -1;
  int64_t at = 0;
};

// Large regions travel in pieces along their first axis: one is summed while another is on its way.
std::vector<Pull> in_pieces(std::vector<Pull> pulls, int64_t item_bytes, int64_t piece_bytes) {
  std::vector<Pull> pieces;
  for (Pull& p : pulls) {
    const int64_t bytes = p.shape.numel() * item_bytes;
    int axis = 0;
    while (axis < p.shape.size() && p.shape[axis] == 1) ++axis;
    if (bytes <= piece_bytes || axis == p.shape.size()) {
      pieces.push_back(std::move(p));
      continue;
    }
    const int64_t rows = p.shape[axis], some = std::max<int64_t>(1, piece_bytes / (bytes / rows));
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

}  // namespace

HostSchedule make_schedule(std::span<const int> host_of, int me, const PullsOf& pulls_of, int64_t item_bytes,
                           int64_t piece_bytes) {
  const int n = static_cast<int>(host_of.size());
  const int my_host = at_index(host_of, me);
  auto host = [&](int member) { return at_index(host_of, member); };
  std::vector<int> place(to_size(n));  // of each member among those of its host
  std::map<int, int> sizes;
  for (int m = 0; m < n; ++m) at_index(place, m) = sizes[host(m)]++;

  // Every region that crosses, in an order that all members share.
  HostSchedule s;
  Crossings crossings(host_of);
  std::vector<Pull> mine;
  std::vector<size_t> my_crossings;
  for (int m = 0; m < n; ++m) {
    std::vector<Pull> pulls = in_pieces(pulls_of(m), item_bytes, piece_bytes);
    std::vector<size_t> numbers = crossings.add(m, pulls);
    if (host(m) == my_host)
      for (const Pull& p : pulls) {
        if (p.shape.numel() == 0) continue;
        const auto here = std::count_if(p.owners.begin(), p.owners.end(), [&](int o) { return host(o) == my_host; });
        const bool own = here == 1 && std::find(p.owners.begin(), p.owners.end(), m) != p.owners.end();
        s.reads_before |= here > 0 && !own;
      }
    if (m == me) mine = std::move(pulls), my_crossings = std::move(numbers);
  }

  std::map<std::pair<int, int>, int> count;
  std::vector<int64_t> shown(to_size(n));
  std::vector<bool> all_direct(to_size(n), true);
  std::vector<Route> routes;
  const int64_t line = std::max<int64_t>(1, 64 / item_bytes);
  for (const Crossing& c : crossings.list()) {
    auto pick = [&](const auto& from, int like) { return to_size(at_index(place, like)) % from.size(); };
    Route r;
    r.sender = c.addends[pick(c.addends, c.wanted[0])];
    const size_t which = pick(c.wanted, r.sender);
    r.receiver = c.wanted[which];
    r.at = c.direct[which];
    r.number = count[{r.sender, r.receiver}]++;
    if (r.at < 0) at_index(all_direct, r.receiver) = false;
    routes.push_back(r);
  }
  for (size_t i = 0; i < routes.size(); ++i) {
    const Crossing& c = crossings.list()[i];
    Route& r = routes[i];
    int64_t& used = at_index(shown, r.receiver);
    if (at_index(all_direct, r.receiver)) {
      used = std::max(used, r.at + c.shape.numel());
    } else {
      r.at = used;
      used += (c.shape.numel() + line - 1) / line * line;
    }
    Packet packet{c.addends, c.src_start, c.src_strides, c.shape, -1, r.number, c.shape.numel(), r.at};
    if (r.sender == me) {
      packet.peer = r.receiver;
      s.send.push_back(packet);
    }
    if (r.receiver == me) {
      packet.peer = r.sender;
      r.packet = static_cast<int>(s.receive.size());
      s.receive.push_back(packet);
    }
    if (host(r.sender) == my_host) s.reads_before |= c.addends.size() > 1 || c.addends[0] != r.sender;
    if (host(r.receiver) == my_host) s.reads_staged |= c.wanted.size() > 1;
  }
  s.direct = at_index(all_direct, me);
  s.shown_elements = at_index(shown, me);

  auto next = my_crossings.begin();
  for (const Pull& p : mine) {
    if (p.shape.numel() == 0) continue;
    HostPull h{{}, p.src_start, p.src_strides, p.dst_start, p.dst_strides, p.shape};
    for (auto& addends : crossings.by_host(p)) {
      if (host(addends[0]) == my_host) {
        h.terms.push_back({std::move(addends), -1, 0, -1});
        continue;
      }
      const Route& r = routes[*next++];
      h.terms.push_back({{}, r.receiver, r.at, r.packet});
    }
    s.pulls.push_back(std::move(h));
  }
  return s;
}

}  // namespace holon::comm
