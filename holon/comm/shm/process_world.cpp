#include "holon/comm/shm/process_world.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdlib>
#include <vector>

#include "holon/array/storage.h"
#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/base/log.h"
#include "holon/base/settings.h"
#include "holon/comm/bootstrap/rendezvous.h"
#include "holon/comm/cores.h"
#include "holon/comm/join_hook.h"
#include "holon/comm/shm/fd_exchange.h"

namespace holon::comm {

namespace {

void* map_or_fail(int fd, size_t size, int protection, const char* what) {
  void* p = mmap(nullptr, size, protection, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (p == MAP_FAILED)
    fail_runtime("{} ({} MiB of address space) cannot be mapped: {}. Set HOLON_ARENA_GB lower.", what, size >> 20,
                 strerror(errno));
  return p;
}

struct Parts {
  Meeting meeting;
  std::vector<Watched> processes;
  std::vector<std::byte*> arenas;  // of each rank, as this process sees them
  ControlBlock block;
};

// Ranks that are pinned have a core each, which only all of them together show.
int shared_cores(const std::vector<RankInfo>& ranks) {
  CoreSet all;
  for (const RankInfo& r : ranks) all.add(CoreSet::parse(r.cores));
  return all.count();
}

class ProcessWorld final : public World {
 public:
  ProcessWorld(int rank, Parts parts)
      : World(rank, static_cast<int>(parts.arenas.size()), parts.block, shared_cores(parts.meeting.ranks), false),
        parts_(std::move(parts)),
        arena_(process_arena()) {}

  std::optional<uint64_t> publish(const void* data, size_t) const override {
    if (!arena_.contains(data)) return std::nullopt;
    return static_cast<uint64_t>(static_cast<const std::byte*>(data) - arena_.base);
  }
  const std::byte* address(int rank, uint64_t offset) const override {
    return parts_.arenas[static_cast<size_t>(rank)] + offset;
  }

  std::string ended(int rank) const override {
    auto& process = parts_.processes[static_cast<size_t>(rank)];
    if (block().rank_entry(rank).finished.load()) return "has exited";
    if (!process.gone()) return "";
    // It may have said so just before.
    if (block().rank_entry(rank).finished.load()) return "has exited";
    return fmt::format("was killed or has crashed (process {} is gone)", process.pid);
  }

  void report_failure(int failed) override {
    try {
      if (parts_.meeting.client->add("failures", 1) == 1) parts_.meeting.client->set("failed", std::to_string(failed));
    } catch (const std::exception&) {
      // The launcher does not serve the store, or is gone: nobody to tell.
    }
  }

  void end_of_process() {
    if (getpid() != parts_.processes[static_cast<size_t>(rank())].pid) return;  // a fork of the rank
    finish();
    parts_.meeting.server.reset();
  }

 private:
  Parts parts_;
  const Arena& arena_;
};

ProcessWorld* world_of_process = nullptr;  // a process is one rank; for its end

}  // namespace

std::shared_ptr<World> join_processes(const Context& context) {
  const Arena& arena = process_arena();
  HOLON_CHECK(arena.fd >= 0, "the arena of a world of {} processes is private", context.world_size());
  BlockingScope unlocked;
  const auto size = static_cast<size_t>(context.world_size());
  const auto rank = static_cast<size_t>(context.rank());
  const double limit_s = settings::number("HOLON_RENDEZVOUS_TIMEOUT_S");

  FdListener listener;
  Parts parts;
  parts.meeting = meet(context, listener.name());
  for (const RankInfo& r : parts.meeting.ranks) parts.processes.push_back(Watched::open(r.pid));

  // The control block has no owner: it lives as long as anybody maps it.
  Fd control;
  std::vector<Fd> arenas;
  if (rank == 0) {
    control = Fd(memfd_create("holon-control", MFD_CLOEXEC));
    if (!control || ftruncate(control.get(), static_cast<off_t>(ControlBlock::kRegionBytes)) != 0)
      fail_runtime("the memory that ranks meet in cannot be made: {}.", strerror(errno));
  }
  auto map_control = [&] {
    parts.block = ControlBlock(
        map_or_fail(control.get(), ControlBlock::kRegionBytes, PROT_READ | PROT_WRITE, "the control block"), true);
  };
  if (rank == 0) {
    map_control();
    parts.block.create(context.world_size());
    arenas = lead_exchange(listener, arena.fd, control.get(), parts.processes, limit_s);
  } else {
    arenas = join_exchange(parts.meeting.ranks[0].socket, context.rank(), arena.fd, size, &control, parts.processes[0],
                           limit_s);
    map_control();
  }
  for (size_t r = 0; r < size; ++r) {
    if (r == rank) {
      parts.arenas.push_back(arena.base);
      continue;
    }
    struct stat info {};
    if (fstat(arenas[r].get(), &info) != 0) fail_runtime("the arena of rank {} has no size: {}.", r, strerror(errno));
    // Read-only: no mistake of this rank can change another's tensors.
    parts.arenas.push_back(static_cast<std::byte*>(
        map_or_fail(arenas[r].get(), static_cast<size_t>(info.st_size), PROT_READ, "a peer's arena")));
  }
  const int cores = shared_cores(parts.meeting.ranks);
  StoreClient& store = *parts.meeting.client;
  auto world = std::make_shared<ProcessWorld>(context.rank(), std::move(parts));
  world_of_process = world.get();
  std::atexit([] { world_of_process->end_of_process(); });
  if (log::enabled(log::Channel::kComm))
    log::line(log::Channel::kComm, fmt::format("the world of {} ranks has met", size));
  adopt_world(world);
  run_join_hook({context.rank(), context.world_size(), {}, cores, [&](const std::string& text) {
    if (rank == 0) store.set("joined", text);
    return rank == 0 ? text : store.get("joined", limit_s);
  }});
  return world;
}

}  // namespace holon::comm
