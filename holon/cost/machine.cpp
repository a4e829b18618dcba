#include "holon/cost/machine.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <mutex>

#include "holon/base/context.h"
#include "holon/base/error.h"

namespace holon {

namespace {

struct MachineOfRank {
  const Machine* machine = nullptr;
};

// Equal machines are one. Never destroyed: plans are kept by their address.
const Machine* intern(const Machine& m) {
  static auto* mutex = new std::mutex;
  static auto* known = new std::deque<Machine>;
  std::lock_guard lock(*mutex);
  for (auto& k : *known)
    if (k == m) return &k;
  return &known->emplace_back(m);
}

}  // namespace

bool HostMap::one_host() const {
  return std::all_of(host_of_rank.begin(), host_of_rank.end(), [&](int h) { return h == host_of_rank[0]; });
}

const Machine* machine() {
  auto& mine = Context::current().part<MachineOfRank>();
  if (!mine.machine) [[unlikely]]
    mine.machine = intern({});
  return mine.machine;
}

void set_machine(const Machine& m) { Context::current().part<MachineOfRank>().machine = intern(m); }

void set_machine_costs(const MachineCosts& costs) {
  Machine m = *machine();
  m.costs = costs;
  set_machine(m);
}

}  // namespace holon
