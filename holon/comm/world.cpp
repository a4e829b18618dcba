#include "holon/comm/world.h"

#include "holon/base/blocking.h"
#include "holon/base/settings.h"

namespace holon::comm {

World::World(int rank, int size, ControlBlock block, int cores, bool threads)
    : rank_(rank), size_(size), block_(block), timeout_s_(settings::number("HOLON_COMM_TIMEOUT_S")) {
  double us = size <= cores ? 50 : 0;
  if (!settings::text("HOLON_SPIN_US").empty()) us = settings::number("HOLON_SPIN_US");
  // Threads that wait for the interpreter's lock cannot come while a spinning one holds it.
  if (threads && blocking_hooks().enter) us = 0;
  spin_ns_ = static_cast<int64_t>(us * 1000);
  answer_for(block_.rank_entry(rank).report);
}

bool World::abort(const std::string& reason) {
  if (block_.aborted().state.load() != 0) return false;
  // Before the others hear of it: they end soon after, and the launcher must not take them for the cause.
  report_failure(rank_);
  if (!block_.aborted().set(rank_, 0, reason)) return false;
  block_.wake_all();
  return true;
}

void World::finish() {
  stop_answering(block_.rank_entry(rank_).report);
  block_.rank_entry(rank_).finished.store(1);
  block_.wake_all();
}

}  // namespace holon::comm
