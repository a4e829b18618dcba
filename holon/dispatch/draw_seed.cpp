#include "holon/dispatch/draw_seed.h"

#include <algorithm>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/hash.h"
#include "holon/comm/core/communicator.h"
#include "holon/dispatch/dispatch.h"

namespace holon {

namespace {

struct AgreedSeeds {
  struct Entry {
    const void* placement;  // nullptr: of ranks alone
    std::vector<int> ranks;
    uint64_t own, agreed;
  };
  std::vector<Entry> entries;
};

uint64_t agree(std::span<const int> ranks, uint64_t own) {
  std::vector<uint64_t> all(ranks.size());
  comm::communicator(ranks).all_gather_bytes({.op = "seed of global draws"}, &own, sizeof own, all.data());
  return all[0];
}

template <class Is>
uint64_t seed_of(std::span<const int> ranks, const void* placement, Is&& is) {
  const RandomState& r = random_state();
  if (!r.seeded || ranks.size() < 2 || Context::current().world_size() < 2 ||
      std::find(ranks.begin(), ranks.end(), Context::current().rank()) == ranks.end())
    return r.seed;
  auto& entries = Context::current().part<AgreedSeeds>().entries;
  auto it = std::find_if(entries.begin(), entries.end(), is);
  if (it != entries.end() && it->own == r.seed) return it->agreed;
  const uint64_t agreed = agree(ranks, r.seed);
  if (it == entries.end()) it = entries.insert(it, {placement, {ranks.begin(), ranks.end()}, 0, 0});
  it->own = r.seed;
  it->agreed = agreed;
  return agreed;
}

}  // namespace

uint64_t seed_of_local_draws(const RandomState& state) {
  return state.seeded ? state.seed : state.seed + static_cast<uint64_t>(Context::current().rank()) * kGoldenRatio64;
}

uint64_t seed_of_global_draws(const Placement& placement) {
  return seed_of(placement.ranks(), placement.id(),
                 [&](const AgreedSeeds::Entry& e) { return e.placement == placement.id(); });
}

uint64_t seed_of_global_draws(std::span<const int> ranks) {
  return seed_of(ranks, nullptr, [&](const AgreedSeeds::Entry& e) {
    return !e.placement && std::equal(ranks.begin(), ranks.end(), e.ranks.begin(), e.ranks.end());
  });
}

void forget_agreed_seeds() { Context::current().part<AgreedSeeds>().entries.clear(); }

}  // namespace holon
