#include "holon/comm/process_world.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "holon/array/storage.h"
#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/fork.h"
#include "holon/base/index.h"
#include "holon/base/log.h"
#include "holon/base/settings.h"
#include "holon/base/trace.h"
#include "holon/comm/bootstrap/rendezvous.h"
#include "holon/comm/core/cores.h"
#include "holon/comm/core/join_hook.h"
#include "holon/comm/device/device_link.h"
#include "holon/comm/hosts/net/clock.h"
#include "holon/comm/hosts/net/connect.h"
#include "holon/comm/local/fd_exchange.h"
#include "holon/comm/local/sentry.h"

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
  Rendezvous rendezvous;
  std::vector<Watched> processes;    // of each rank of this host
  std::vector<int> local;            // the ranks of this host
  std::vector<std::byte*> arenas;    // of each rank of this host, as this process sees them
  std::optional<Sentry> sentry;      // of several hosts
  std::unique_ptr<Network> network;  // to other hosts
  void* control = nullptr;           // where block is mapped
  ControlBlock block;
};

// Ranks that are pinned have a core each, which only all of them together show.
int shared_cores(const Parts& parts) {
  CoreSet all;
  for (int r : parts.local) all.add(CoreSet::parse(at_index(parts.rendezvous.ranks, r).cores));
  return all.count();
}

class ProcessWorld final : public World {
 public:
  ProcessWorld(int rank, Parts parts)
      : World(rank, static_cast<int>(parts.arenas.size()), parts.block, shared_cores(parts), false,
              parts.rendezvous.hosts),
        parts_(std::move(parts)),
        arena_(process_arena()) {}

  std::optional<uint64_t> publish(const void* data, size_t) const override {
    if (!arena_.contains(data)) return std::nullopt;
    return static_cast<uint64_t>(static_cast<const std::byte*>(data) - arena_.base);
  }
  const std::byte* address(int rank, uint64_t offset) const override { return at_index(parts_.arenas, rank) + offset; }

  Network& network() const override {
    require_own("a message to another host");
    return *parts_.network;
  }

  std::string how_it_ended(int rank) const override {
    auto& process = at_index(parts_.processes, rank);
    const bool gone = process.gone();
    // Looked at last: it may have said so just before it went.
    if (block().rank_entry(rank).finished.load()) return "has exited";
    return gone ? fmt::format("was killed or has crashed (process {} is gone)", process.pid) : "";
  }

  void report_failure(int failed) override {
    if (hosted_) {  // else there is no launcher to tell
      try {
        auto& store = *parts_.rendezvous.client;
        if (store.add("failures", 1, kTellSeconds) == 1) store.set("failed", std::to_string(failed), kTellSeconds);
      } catch (const std::exception&) {
        // It is gone or stopped, and the other ranks are to hear of the failure in time.
      }
    }
    if (several_hosts() && failed != rank())
      spread_abort(failed,
                   fmt::format("it has ended on {} without a message; read its output first",
                               host_name(host_of(failed))));
  }

  void spread_abort(int failed, const std::string& reason) override {
    try {
      auto& store = *parts_.rendezvous.client;
      if (store.add("aborts", 1, kTellSeconds) == 1)
        store.set(kAbortedKey, fmt::format("{} {}", failed, reason), kTellSeconds);
    } catch (const std::exception&) {
      // Without the store the other hosts learn it from closed connections.
    }
  }

  // Rank 0's text, on every rank.
  std::string share(const std::string& text, double limit_s) {
    StoreClient& store = *parts_.rendezvous.client;
    if (rank() == 0) {
      store.set("joined", text);
      return text;
    }
    auto trouble = [&]() -> std::string {
      if (auto& aborted = block().aborted(); aborted.is_set())
        return fmt::format("rank {} has failed while the world was forming: {}", aborted.rank, aborted.text);
      const std::string how = host_of(0) == host_of(rank()) ? ended(0) : "";
      return how.empty() ? "" : fmt::format("rank 0 {} while the world was forming. Read its output first.", how);
    };
    try {
      return store.get("joined", limit_s, trouble);
    } catch (const Error&) {
      // Where rank 0 serves the store, its end is seen first by that.
      if (const std::string why = trouble(); !why.empty()) fail_runtime("{}", why);
      throw;
    }
  }

  // In a forked process: what it may yet write in the control block is for nobody.
  void leave() {
    void* p = mmap(parts_.control, ControlBlock::kRegionBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (p == MAP_FAILED) mprotect(parts_.control, ControlBlock::kRegionBytes, PROT_READ);
  }

  void end_of_process(int status) {
    if (inherited()) return;
    if (status != 0) abort(fmt::format("it has exited with status {}", status));
    finish_device_links(Context::of_process());
    finish();
    if (parts_.sentry) parts_.sentry->leave(*parts_.rendezvous.client);
    parts_.rendezvous.server.reset();
  }

 private:
  static constexpr double kTellSeconds = 0.4;
  Parts parts_;
  const Arena& arena_;
  const bool hosted_ = settings::flag("HOLON_STORE_HOSTED");
};

ProcessWorld* world_of_process = nullptr;  // a process is one rank; for its end

[[maybe_unused]] const bool forks = at_fork({.in_child = [] {
  if (world_of_process) world_of_process->leave();
}});

// An exception that nobody catches ends the process: the other ranks hear the reason.
void tell_of_terminate() {
  static std::terminate_handler before = std::set_terminate([] {
    std::string why = "std::terminate was called";
    try {
      if (auto e = std::current_exception()) std::rethrow_exception(e);
    } catch (const std::exception& e) {
      why = fmt::format("an exception was not caught: {}", e.what());
    } catch (...) {
      why = "an exception was not caught";
    }
    try {
      world_of_process->abort(why);
    } catch (...) {
    }
    before();
  });
}

// Maps the control block of this host, which its first rank makes, and the arenas of the host's ranks. Fills
// parts.processes, control, block and arenas.
void share_memory(const Context& context, const FdListener& listener, double limit_s, Parts* parts) {
  const Arena& arena = process_arena();
  const auto place = std::find(parts->local.begin(), parts->local.end(), context.rank()) - parts->local.begin();
  std::vector<Watched> watched;
  for (int r : parts->local) watched.push_back(Watched::open(at_index(parts->rendezvous.ranks, r).pid, r));

  // The control block of a host has no owner: it lives as long as anybody maps it.
  Fd control;
  std::vector<Fd> arenas;
  auto map_control = [&] {
    void* mapped = map_or_fail(control.get(), ControlBlock::kRegionBytes, PROT_READ | PROT_WRITE, "the control block");
    parts->block = ControlBlock(mapped, true);
    parts->control = mapped;
  };
  if (place == 0) {
    control = Fd(memfd_create("holon-control", MFD_CLOEXEC));
    if (!control || ftruncate(control.get(), static_cast<off_t>(ControlBlock::kRegionBytes)) != 0)
      fail_runtime("cannot create the ranks' control block: {}.", strerror(errno));
    map_control();
    parts->block.create(context.world_size());
    arenas = lead_exchange(listener, arena.fd, control.get(), watched, limit_s);
  } else {
    const RankInfo& leader = at_index(parts->rendezvous.ranks, parts->local[0]);
    try {
      arenas = join_exchange(leader.socket, static_cast<int>(place), arena.fd, watched, &control, limit_s);
    } catch (const Error& e) {
      // The leader may have given up because another one is gone.
      std::string gone;
      for (size_t i = 1; i < watched.size(); ++i)
        if (static_cast<ptrdiff_t>(i) != place && watched[i].gone() &&
            std::string_view(e.what()).find(fmt::format("rank {} ", parts->local[i])) == std::string_view::npos)
          gone += fmt::format("{}rank {}", gone.empty() ? "" : ", ", parts->local[i]);
      throw Error(e.kind(), gone.empty() ? e.what() : fmt::format("{} Also ended: {}.", e.what(), gone));
    }
    map_control();
  }
  const auto size = to_size(context.world_size());
  parts->arenas.resize(size);
  parts->processes.resize(size);
  for (size_t i = 0; i < parts->local.size(); ++i) {
    const auto r = to_size(parts->local[i]);
    parts->processes[r] = std::move(watched[i]);
    if (parts->local[i] == context.rank()) {
      parts->arenas[r] = arena.base;
      continue;
    }
    struct stat info {};
    if (fstat(arenas[i].get(), &info) != 0)
      fail_runtime("cannot read the size of rank {}'s arena: {}.", r, strerror(errno));
    // Read-only: no mistake of this rank can change another's tensors.
    parts->arenas[r] =
        static_cast<std::byte*>(map_or_fail(arenas[i].get(), to_size(info.st_size), PROT_READ, "a peer's arena"));
  }
}

void connect_hosts(const Context& context, double limit_s, Parts* parts) {
  Rendezvous& m = parts->rendezvous;
  const Sentry& sentry = parts->sentry.emplace(parts->block, context.rank(), parts->local, parts->processes, m);
  auto trouble = [&] { return sentry.trouble(); };
  parts->network = connect_network(context.rank(), m, limit_s, trouble);
  tracing::set_clock_offset_ns(clock_offset_ns(*parts->network, m.hosts, context.rank(), *m.client, limit_s, trouble));
  parts->sentry->look_after(*parts->network);
  Sentry::leave_will(m, context.rank(), "was killed or has crashed");
}

}  // namespace

std::shared_ptr<World> join_processes(const Context& context) {
  HOLON_CHECK(process_arena().fd >= 0, "the arena of a world of {} processes is private", context.world_size());
  BlockingScope unlocked;
  const auto size = to_size(context.world_size());
  const auto rank = to_size(context.rank());
  const double limit_s = settings::number("HOLON_RENDEZVOUS_TIMEOUT_S");

  FdListener listener;
  Parts parts;
  parts.rendezvous = rendezvous(context, listener.name());
  const Hosts& hosts = parts.rendezvous.hosts;
  for (size_t r = 0; r < size; ++r)
    if (hosts.of_rank.empty() || hosts.of_rank[r] == hosts.of_rank[rank]) parts.local.push_back(static_cast<int>(r));
  if (hosts.names.size() > 1)
    Sentry::leave_will(parts.rendezvous, context.rank(), "has ended while the hosts were being connected");
  try {
    share_memory(context, listener, limit_s, &parts);
    if (hosts.names.size() > 1) connect_hosts(context, limit_s, &parts);
  } catch (const std::exception& e) {
    // Ranks of this host that are further on would take this one, which ends now, for the cause.
    if (parts.control) {
      parts.block.aborted().set(context.rank(), 0, e.what());
      parts.block.wake_all();
    }
    throw;
  }
  const int cores = shared_cores(parts);
  auto world = std::make_shared<ProcessWorld>(context.rank(), std::move(parts));
  world_of_process = world.get();
  on_exit([](int status, void*) { world_of_process->end_of_process(status); }, nullptr);
  tell_of_terminate();
  // A rank may be started by a shell that the launcher started: it must not outlive its parent either.
  if (settings::flag("HOLON_STORE_HOSTED")) prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (log::enabled(log::Channel::kComm))
    log::line(log::Channel::kComm,
              fmt::format("the world of {} ranks on {} host{} is connected", size,
                          std::max<size_t>(1, world->hosts().names.size()), world->several_hosts() ? "s" : ""));
  adopt_world(world);
  run_join_hook({context.rank(), context.world_size(), world->hosts().of_rank, cores,
                 [&](const std::string& text) { return world->share(text, limit_s); }});
  return world;
}

}  // namespace holon::comm
