#include "holon/base/context.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <optional>
#include <sstream>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/rank.h"

namespace holon {

constinit thread_local Context* Context::current_ = nullptr;

namespace detail {
// Read where the process forks (fork.cpp), which must not be what makes it.
static constinit std::atomic<const Context*> of_this_process{nullptr};
const Context* process_context();
const Context* process_context() { return of_this_process.load(); }
}  // namespace detail

namespace {

// The first of the names that the environment has; a value that is not a number is the user's error.
std::optional<int> env_int(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* text = std::getenv(name);
    if (!text || !*text) continue;
    char* end = nullptr;
    long value = std::strtol(text, &end, 10);
    if (*end || value < 0 || value > 1'000'000)
      fail_value("{}=\"{}\" is not a rank or a number of ranks. Set it to a number that is at least 0, or unset it.",
                 name, text);
    return static_cast<int>(value);
  }
  return std::nullopt;
}

// How many tasks of the step run on this node, by SLURM_STEP_TASKS_PER_NODE, e.g. "2(x3),1"; 1 if it does not say.
int tasks_of_node() {
  const char* list = std::getenv("SLURM_STEP_TASKS_PER_NODE");
  int node = env_int({"SLURM_NODEID"}).value_or(0), tasks = 1;
  for (std::istringstream items(list ? list : ""); node >= 0;) {
    std::string item;
    if (!std::getline(items, item, ',')) break;
    int times = 1;
    if (std::sscanf(item.c_str(), "%d(x%d)", &tasks, &times) < 1 || tasks < 1 || times < 1) return 1;
    node -= times;
  }
  return tasks;
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
    // srun's names count only where it has started this process: a batch script sees some of them too.
    const bool slurm = std::getenv("SLURM_STEP_NUM_TASKS") && std::getenv("SLURM_PROCID");
    auto of = [&](std::initializer_list<const char*> names, const char* slurm_name) {
      auto value = env_int(names);
      return value || !slurm ? value : env_int({slurm_name});
    };
    int world = of({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, "SLURM_STEP_NUM_TASKS").value_or(1);
    int rank = of({"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}, "SLURM_PROCID").value_or(0);
    if (world < 1) fail_value("WORLD_SIZE is {}; a world has at least one rank.", world);
    if (rank >= world) fail_value("RANK is {} but WORLD_SIZE is {}: ranks are counted from 0.", rank, world);
    int local = of({"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}, "SLURM_LOCALID").value_or(rank);
    int local_world = of({"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}, "")
                          .value_or(slurm ? tasks_of_node() : world);
    auto* made = new Context(rank, world, local, local_world);
    detail::of_this_process.store(made);
    return made;
  }();
  return *context;
}

std::unique_ptr<Context> Context::sibling() const {
  auto made = std::make_unique<Context>(rank_, world_size_, local_rank_, local_world_size_);
  made->threads_ = threads_;
  made->layout_free_ = layout_free_;
  return made;
}

Context& Context::of_thread() {
  static std::atomic<int> threads{0};
  static constinit thread_local Context* known = nullptr;
  if (!known) {
    const int number = threads++;
    if (number == 0) {
      known = &of_process();
    } else {
      static thread_local std::unique_ptr<Context> own;
      own = of_process().sibling();
      own->number_ = number;
      known = own.get();
    }
  }
  return *known;
}

int rank() { return Context::current().rank(); }
int world_size() { return Context::current().world_size(); }

std::string rank_text() {
  auto& c = Context::current();
  return fmt::format("rank {} of {}", c.rank(), c.world_size());
}

}  // namespace holon
