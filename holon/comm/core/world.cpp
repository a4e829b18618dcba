#include "holon/comm/core/world.h"

#include <unistd.h>

#include <algorithm>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/settings.h"

namespace holon::comm {

World::World(int rank, int size, ControlBlock block, int cores, bool threads, Hosts hosts)
    : rank_(rank),
      size_(size),
      block_(block),
      hosts_(std::move(hosts)),
      timeout_s_(settings::number("HOLON_COMM_TIMEOUT_S")),
      cores_here_(cores) {
  int here = size;
  if (!threads && several_hosts())
    here = static_cast<int>(std::count(hosts_.of_rank.begin(), hosts_.of_rank.end(), host_of(rank)));
  ranks_here_ = here;
  // Each rank's connections with other hosts have a thread too. Where they share the cores with ranks, a rank sleeps at
  // once: one that spins, or yields, keeps a connection from its core for the rest of a time slice, which is
  // milliseconds.
  const bool connected = !threads && several_hosts();
  double us = (connected ? 2 * here : here) <= cores ? 50 : 0;
  if (here > cores && !connected) yields_ = 2 * ((here + cores - 1) / cores);
  if (!settings::text("HOLON_SPIN_US").empty()) us = settings::number("HOLON_SPIN_US"), yields_ = 0;
  // Threads that wait for the interpreter's lock cannot come while a spinning one holds it.
  if (threads && blocking_hooks().enter) us = 0, yields_ = 0;
  spin_ns_ = static_cast<int64_t>(us * 1000);
  answer_for(block_.rank_entry(rank).report);
}

void fail_forked(const char* op) {
  fail_runtime(
      "{}: process {} was forked from {} and is not a rank: only that process communicates. Compute on local tensors "
      "here and hand values over (a pipe, a queue), communicate before the fork, or start ranks by the launcher.",
      op ? op : "a collective", getpid(), forked_from());
}

Network& World::network() const { internal_error(__FILE__, __LINE__, "network", "a world of one host has no network"); }

std::string World::ended(int rank) const {
  std::string how = how_it_ended(rank);
  if (how.empty()) return how;
  // Looked at last: who fails says so before it goes.
  auto& aborted = block_.aborted();
  if (!aborted.is_set()) return how;
  if (aborted.rank == rank) return fmt::format("has failed: {}", aborted.text);
  return fmt::format("{}, and rank {} has failed: {}", how, aborted.rank, aborted.text);
}

bool World::abort(const std::string& reason) {
  if (inherited()) return false;
  if (block_.aborted().state.load() != 0) return false;
  // Before the others hear of it: they end soon after, and the launcher must not take them for the cause.
  report_failure(rank_);
  if (!block_.aborted().set(rank_, 0, reason)) return false;
  block_.wake_all();
  if (several_hosts()) spread_abort(rank_, reason);
  return true;
}

void World::finish() {
  if (inherited()) return;
  stop_answering(block_.rank_entry(rank_).report);
  block_.rank_entry(rank_).finished.store(1);
  block_.wake_all();
}

}  // namespace holon::comm
