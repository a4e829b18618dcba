#include "holon/data/sampler.h"

#include <numeric>
#include <utility>

#include "holon/base/error.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"

namespace holon::data {

namespace {

// The order is the same everywhere, which distributions of the standard library do not promise.
struct Mixer {
  uint64_t state;
  uint64_t next() { return splitmix64(state); }
  // Uniform below n, without the bias of a remainder.
  uint64_t below(uint64_t n) {
    for (;;) {
      __extension__ using Wide = unsigned __int128;
      const Wide product = static_cast<Wide>(next()) * n;
      const uint64_t low = static_cast<uint64_t>(product);
      if (low >= n || low >= (0 - n) % n) return static_cast<uint64_t>(product >> 64);
    }
  }
};

}  // namespace

std::vector<int64_t> permutation(uint64_t seed, uint64_t epoch, int64_t n) {
  if (n < 0) fail_value("permutation: of {} numbers; the count must not be negative.", n);
  std::vector<int64_t> order(to_size(n));
  std::iota(order.begin(), order.end(), 0);
  Mixer mixer{seed};
  mixer.state = mixer.next() ^ (epoch * 0xd1342543de82ef95ull + 1);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[mixer.below(i)]);
  return order;
}

}  // namespace holon::data
