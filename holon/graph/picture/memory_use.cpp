#include "holon/graph/picture/memory_use.h"

#include <algorithm>
#include <numeric>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/comm/core/communicator.h"
#include "holon/graph/cost/node_cost.h"
#include "holon/graph/program/program.h"

namespace holon::graph {

namespace {

size_t index(MemoryKind kind) { return to_size(kind); }
bool reads(const Buffer& b, Section s) { return b.read_in >> static_cast<unsigned>(s) & 1; }

// Sections and tasks of instructions.
class Places {
 public:
  Places(const Graph& g, const Program& p) : g_(g), p_(p), task_(p.instructions.size(), -1) {
    for (size_t t = 0; t < p.tasks.size(); ++t)
      for (int i = p.tasks[t].first; i < p.tasks[t].end; ++i) at_index(task_, i) = static_cast<int>(t);
  }
  int task(int32_t instruction) const { return task_[at(instruction)]; }
  bool before(int32_t instruction) const { return p_.tasks.empty() || instruction < p_.tasks.front().first; }
  bool after(int32_t instruction) const { return !p_.tasks.empty() && instruction >= p_.tasks.back().end; }
  bool forward(int32_t instruction) const {
    const int t = task(instruction);
    return t >= 0 && at_index(p_.tasks, t).task.phase == Phase::kForward;
  }
  bool updates(int32_t instruction) const {
    const int32_t n = p_.instructions[at(instruction)]->node;
    return n >= 0 && at_index(g_.nodes, n).kind == NodeKind::kUpdate;
  }

 private:
  size_t at(int32_t i) const {
    return std::min(to_size(std::max(i, 0)), p_.instructions.empty() ? 0 : p_.instructions.size() - 1);
  }
  const Graph& g_;
  const Program& p_;
  std::vector<int> task_;
};

MemoryKind kind_of(const Buffer& b, const Places& places) {
  if (places.before(b.life.first)) return MemoryKind::kCopies;
  if (places.after(b.life.first)) return places.updates(b.life.last) ? MemoryKind::kGradients : MemoryKind::kWorkspace;
  if (places.task(b.life.first) == places.task(b.life.last)) return MemoryKind::kWorkspace;
  if (!places.forward(b.life.first)) return MemoryKind::kGradients;
  return reads(b, Section::kBackward) || reads(b, Section::kWeight) ? MemoryKind::kActivations : MemoryKind::kTransit;
}

int64_t bytes_of(const Tensor& t) {
  return t.defined() && t.array().defined() ? static_cast<int64_t>(t.array().nbytes()) : 0;
}

int64_t state_bytes(const UpdateGroup& group) {
  int64_t bytes = 0;
  for (auto& slot : group.slots) {
    const int64_t elements = slot.param.array().defined() ? slot.param.array().numel() : 0;
    auto there_or_to_come = [&](const Tensor& t, DType dtype) {
      bytes += t.defined() ? bytes_of(t) : elements * static_cast<int64_t>(size_bytes(dtype));
    };
    for (int i = 0; i < optim::kMaxStates; ++i)
      if (optim::state_name(group.rule, i)) there_or_to_come(at_index(slot.state, i), optim::state_dtype(slot.param));
    if (group.rule.master_weights && size_bytes(slot.param.dtype()) == 2) there_or_to_come(slot.master, float32);
  }
  return bytes;
}

std::vector<int64_t> words_of(const MemoryUse& use) {
  std::vector<int64_t> w{use.rank, use.arena_bytes, static_cast<int64_t>(use.at.size()),
                         static_cast<int64_t>(use.tasks.size())};
  for (auto& at : use.at) w.insert(w.end(), at.begin(), at.end());
  w.insert(w.end(), use.arena.begin(), use.arena.end());
  for (auto& t : use.tasks)
    w.insert(w.end(), {t.first, t.end, t.task.stage, t.task.micro_batch, static_cast<int64_t>(t.task.phase)});
  return w;
}

MemoryUse use_of(const int64_t* w) {
  MemoryUse use;
  use.rank = static_cast<int>(*w++);
  use.arena_bytes = *w++;
  use.at.resize(to_size(*w++));
  use.tasks.resize(to_size(*w++));
  for (auto& at : use.at) std::copy_n(w, kMemoryKinds, at.begin()), w += kMemoryKinds;
  use.arena.assign(w, w + use.at.size());
  w += use.at.size();
  for (auto& t : use.tasks) {
    t.first = static_cast<int>(*w++);
    t.end = static_cast<int>(*w++);
    t.task.stage = static_cast<int>(*w++);
    t.task.micro_batch = static_cast<int>(*w++);
    t.task.phase = static_cast<Phase>(*w++);
  }
  return use;
}

}  // namespace

const char* name(MemoryKind kind) {
  static constexpr const char* kNames[] = {
      "parameters",  "optimizer states", "inputs, outputs, buffers", "copies of parameters",
      "activations", "gradients",        "in transfer to a stage",   "workspace"};
  return kNames[index(kind)];
}

int64_t MemoryUse::total(size_t i) const { return std::accumulate(at[i].begin(), at[i].end(), int64_t{0}); }

size_t MemoryUse::peak() const {
  size_t best = 0;
  for (size_t i = 1; i < at.size(); ++i)
    if (total(i) > total(best)) best = i;
  return best;
}

MemoryBytes MemoryUse::most() const {
  MemoryBytes m{};
  for (auto& bytes : at)
    for (size_t k = 0; k < kMemoryKinds; ++k) m[k] = std::max(m[k], bytes[k]);
  return m;
}

MemoryUse memory_use(const Step& step) {
  const Program& p = step.program();
  const Graph& g = step.graph();
  MemoryUse use;
  use.rank = Context::current().rank();
  use.arena_bytes = static_cast<int64_t>(p.memory.bytes);
  for (auto& t : p.tasks) use.tasks.push_back({t.first, t.end, t.task});
  MemoryBytes fixed{};
  for (auto& x : g.externals)
    fixed[index(x.parameter ? MemoryKind::kParameters : MemoryKind::kOutside)] += bytes_of(x.tensor);
  for (auto& u : p.updates) fixed[index(MemoryKind::kStates)] += state_bytes(u);
  for (auto& b : p.buffers)
    if (b.kind == Buffer::Kind::kInput || b.kind == Buffer::Kind::kOutput)
      fixed[index(MemoryKind::kOutside)] += static_cast<int64_t>(b.bytes);
  const size_t n = std::max<size_t>(p.instructions.size(), 1);
  std::vector<MemoryBytes> change(n + 1, MemoryBytes{});
  const Places places(g, p);
  for (auto& b : p.buffers) {
    if (b.kind != Buffer::Kind::kArena || p.instructions.empty()) continue;
    const size_t k = index(kind_of(b, places)), first = std::min(to_size(b.life.first), n - 1),
                 end = std::min(to_size(b.life.last) + 1, n);
    change[first][k] += static_cast<int64_t>(b.bytes);
    change[end][k] -= static_cast<int64_t>(b.bytes);
  }
  MemoryBytes now{};
  for (size_t i = 0; i < n; ++i) {
    int64_t in_arena = 0;
    for (size_t k = 0; k < kMemoryKinds; ++k) in_arena += now[k] += change[i][k];
    use.arena.push_back(in_arena);
    use.at.push_back(now);
    for (size_t k = 0; k < kMemoryKinds; ++k) use.at.back()[k] += fixed[k];
  }
  return use;
}

std::vector<MemoryUse> memory_use_of_all(const Step& step) {
  const std::vector<int64_t> mine = words_of(memory_use(step));
  const int world = Context::current().world_size();
  if (world == 1) return {use_of(mine.data())};
  std::vector<int> ranks(to_size(world));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto& comm = comm::communicator(ranks);
  std::vector<int64_t> sizes(ranks.size());
  const auto size = static_cast<int64_t>(mine.size());
  comm.all_gather_bytes({.op = "memory_use"}, &size, sizeof(size), sizes.data());
  const auto most = to_size(*std::max_element(sizes.begin(), sizes.end()));
  std::vector<int64_t> padded(mine), all(most * ranks.size());
  padded.resize(most);
  comm.all_gather_bytes({.op = "memory_use"}, padded.data(), most * sizeof(int64_t), all.data());
  std::vector<MemoryUse> uses;
  for (size_t r = 0; r < ranks.size(); ++r) uses.push_back(use_of(all.data() + r * most));
  return uses;
}

std::string bytes_text(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 || value == static_cast<double>(static_cast<int64_t>(value))
      ? fmt::format("{:.0f} {}", value, kUnits[unit])
      : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string memory_text(std::span<const MemoryUse> ranks) {
  std::string text;
  for (auto& use : ranks) {
    const size_t peak = use.peak();
    std::string during = peak < use.at.size() && (use.tasks.empty() || static_cast<int>(peak) < use.tasks.front().first)
        ? "before the first task"
        : "after the last task";
    for (auto& t : use.tasks)
      if (static_cast<int>(peak) >= t.first && static_cast<int>(peak) < t.end) during = t.task.str();
    text += fmt::format("rank {}: peak {} at instruction {} of {}, {}\n  {:<26}{:>12}{:>12}\n", use.rank,
                        bytes_text(use.total(peak)), peak, use.at.size(), during, "", "at the peak", "at most");
    const MemoryBytes most = use.most();
    for (size_t k = 0; k < kMemoryKinds; ++k)
      if (most[k] > 0)
        text += fmt::format("  {:<26}{:>12}{:>12}\n", name(static_cast<MemoryKind>(k)), bytes_text(use.at[peak][k]),
                            bytes_text(most[k]));
    text += fmt::format("  {:<26}{:>12}{:>12}\n", "arena", bytes_text(use.arena[peak]), bytes_text(use.arena_bytes));
  }
  return text;
}

}  // namespace holon::graph
