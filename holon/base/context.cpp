#include "holon/base/context.h"

#include <atomic>
#include <cstdlib>
#include <initializer_list>
#include <optional>

#include "holon/base/error.h"

namespace holon {

constinit thread_local Context* Context::current_ = nullptr;

namespace {

// The first of the names that the environment has; a value that is no number is the user's error.
std::optional<int> env_int(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* text = std::getenv(name);
    if (!text || !*text) continue;
    char* end = nullptr;
    long value = std::strtol(text, &end, 10);
    if (*end || value < 0 || value > 1'000'000)
      fail_value("{}=\"{}\" is not a rank or a number of ranks. Set it to a number from 0 on, or unset it.", name, text);
    return static_cast<int>(value);
  }
  return std::nullopt;
}

}  // namespace

// Parts are released in the reverse order of their making: upper layers first.
Context::~Context() {
  while (!parts_.empty()) parts_.pop_back();
}

size_t Context::next_index() {
  static std::atomic<size_t> next{0};
  return next++;
}

Context& Context::of_process() {
  // Never destroyed: threads and static objects may outlive main().
  static Context* context = [] {
    int world = env_int({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"}).value_or(1);
    int rank = env_int({"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}).value_or(0);
    if (!std::getenv("WORLD_SIZE") && !std::getenv("OMPI_COMM_WORLD_SIZE") && !std::getenv("SLURM_PROCID")) world = 1, rank = 0;
    if (world < 1) fail_value("WORLD_SIZE is {}; a world has at least one rank.", world);
    if (rank >= world) fail_value("RANK is {} but WORLD_SIZE is {}: ranks are counted from 0.", rank, world);
    int local = env_int({"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}).value_or(rank);
    int local_world =
        env_int({"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"}).value_or(world);
    return new Context(rank, world, local, local_world);
  }();
  return *context;
}

std::string rank_text() {
  auto& c = Context::current();
  return fmt::format("rank {} of {}", c.rank(), c.world_size());
}

}  // namespace holon
