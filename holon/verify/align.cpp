#include "holon/verify/align.h"

#include <algorithm>
#include <unordered_map>

#include "holon/base/hash.h"
#include "holon/base/index.h"

namespace holon::verify {

uint64_t key_of(const Record& r) {
  Hasher h;
  h.add(r.kind).add_text(r.op).add_text(r.site).add(r.place);
  if (r.kind == Kind::kUse || r.kind == Kind::kUpdate || r.kind == Kind::kState) {
    // "parameter 0 [4, 8]": parts of a local parameter may have other sizes.
    h.add_text(std::string_view(r.label).substr(0, r.label.find(" [")));
  }
  return h.value();
}

namespace {

constexpr int kMostDifferences = 4000;

std::vector<int> by_occurrence(std::span<const uint64_t> a, std::span<const uint64_t> b) {
  std::unordered_map<uint64_t, std::vector<int>> places;
  for (size_t i = b.size(); i-- > 0;) places[b[i]].push_back(static_cast<int>(i));
  std::vector<int> found(a.size(), -1);
  int last = -1;
  for (size_t i = 0; i < a.size(); ++i) {
    auto& left = places[a[i]];
    while (!left.empty() && left.back() <= last) left.pop_back();
    if (left.empty()) continue;
    last = found[i] = left.back();
  }
  return found;
}

}  // namespace

std::vector<int> align(std::span<const uint64_t> a, std::span<const uint64_t> b) {
  const int n = static_cast<int>(a.size()), m = static_cast<int>(b.size());
  const int most = std::min(n + m, kMostDifferences);
  // How far the path on each diagonal comes (x of its end) with d differences; one list for each d.
  std::vector<std::vector<int>> reached;
  std::vector<int> far(to_size(2 * most + 3), 0);
  const int zero = most + 1;
  int d = 0;
  bool whole = false;
  for (; d <= most && !whole; ++d) {
    for (int k = -d; k <= d; k += 2) {
      const bool down = k == -d || (k != d && at_index(far, zero + k - 1) < at_index(far, zero + k + 1));
      int x = down ? at_index(far, zero + k + 1) : at_index(far, zero + k - 1) + 1;
      int y = x - k;
      while (x < n && y < m && a[to_size(x)] == b[to_size(y)]) ++x, ++y;
      at_index(far, zero + k) = x;
      whole = whole || (x >= n && y >= m);
    }
    reached.emplace_back(far.begin() + (zero - d), far.begin() + (zero + d + 1));
  }
  if (!whole) return by_occurrence(a, b);
  std::vector<int> found(a.size(), -1);
  int x = n, y = m;
  for (int step = static_cast<int>(reached.size()) - 1; step >= 0; --step) {
    const int k = x - y;
    int from_x = 0, from_y = 0;
    if (step > 0) {
      auto& before = reached[to_size(step - 1)];
      auto at = [&](int diagonal) {
        const int i = diagonal + (step - 1);
        return i < 0 || i >= static_cast<int>(before.size()) ? -1 : at_index(before, i);
      };
      const bool down = k == -step || (k != step && at(k - 1) < at(k + 1));
      from_x = down ? at(k + 1) : at(k - 1);
      from_y = from_x - (down ? k + 1 : k - 1);
    }
    while (x > from_x && y > from_y && x > 0 && y > 0 && a[to_size(x - 1)] == b[to_size(y - 1)]) {
      --x, --y;
      found[to_size(x)] = y;
    }
    x = from_x, y = from_y;
  }
  return found;
}

}  // namespace holon::verify
