#include "holon/comm/run_ranks.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/comm/core/background.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/core/cores.h"
#include "holon/comm/device/device_link.h"
#include "holon/comm/local/thread_world.h"

namespace holon::comm {

namespace {

void run_one(const std::shared_ptr<ThreadBlock>& block, int rank, int omp_threads, const std::function<void(int)>& fn,
             std::exception_ptr& first_failure) {
  set_num_threads(omp_threads);
  const int n = block->block().world_size();
  auto context = std::make_unique<Context>(rank, n, rank, n);
  context->set_ranks_are_threads();
  ContextGuard guard(*context);
  auto world = make_thread_world(block, rank);
  adopt_world(world);
  auto failed = [&](const std::string& reason) {
    if (world->abort(reason)) first_failure = std::current_exception();
  };
  try {
    fn(rank);
  } catch (const std::exception& e) {
    failed(e.what());
  } catch (...) {
    failed("an exception that is not a std::exception");
  }
  end_background();
  finish_device_links(*context);
  world->finish();
  context.reset();  // while it still is the thread's context, for the parts that look at it when they go
}

}  // namespace

namespace {

void run_all(int n, Hosts hosts, const std::function<void(int rank)>& fn) {
  if (n < 1) fail_value("run_ranks: {} ranks were requested; a world has at least one.", n);
  auto block = std::make_shared<ThreadBlock>(n, std::move(hosts));
  const int omp_threads = std::max(1, CoreSet::of_this_process().count() / n);
  std::exception_ptr first_failure;
  {
    BlockingScope unlocked;
    std::vector<std::jthread> threads;
    threads.reserve(to_size(n));
    for (int rank = 0; rank < n; ++rank)
      threads.emplace_back([&, rank] { run_one(block, rank, omp_threads, fn, first_failure); });
  }
  if (first_failure) std::rethrow_exception(first_failure);
}

}  // namespace

void run_ranks(int n, const std::function<void(int rank)>& fn) { run_all(n, {}, fn); }

void run_ranks(std::span<const int> host_of_rank, const std::function<void(int rank)>& fn) {
  Hosts hosts;
  hosts.of_rank.assign(host_of_rank.begin(), host_of_rank.end());
  int count = hosts.of_rank.empty() ? 0 : 1 + *std::max_element(hosts.of_rank.begin(), hosts.of_rank.end());
  for (int h = 0; h < count; ++h) hosts.names.push_back(fmt::format("host {}", h));
  run_all(static_cast<int>(host_of_rank.size()), std::move(hosts), fn);
}

void barrier() {
  std::vector<int> ranks(to_size(Context::current().world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (ranks.size() > 1) communicator(ranks).barrier();
}

}  // namespace holon::comm
