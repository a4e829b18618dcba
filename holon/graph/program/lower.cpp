#include <iterator>

#include "holon/base/index.h"
#include "holon/graph/ir/node_kind.h"
#include "holon/graph/program/lowering.h"

namespace holon::graph {

namespace {

struct Entry {
  NodeKind kind;
  Lowering::LowerKind lower;
};

// The second half of the table of kinds (ir/node_kind.cpp): what makes a kind's instructions.
constexpr Entry kLowerings[] = {
    {NodeKind::kOp, &Lowering::lower_op},
    {NodeKind::kBoxing, &Lowering::lower_boxing},
    {NodeKind::kRelabel, &Lowering::lower_relabel},
    {NodeKind::kAgree, &Lowering::lower_agree},
    {NodeKind::kAccumulate, &Lowering::lower_accumulate},
    {NodeKind::kAssign, &Lowering::lower_assign},
    {NodeKind::kUpdate, &Lowering::lower_update},
    {NodeKind::kFused, &Lowering::lower_fused},
    {NodeKind::kClip, &Lowering::lower_clip},
};
static_assert(std::size(kLowerings) == kNodeKinds, "a kind of node cannot be lowered");
static_assert(
    [] {
      for (size_t i = 0; i < kNodeKinds; ++i)
        if (kLowerings[i].kind != static_cast<NodeKind>(i)) return false;
      return true;
    }(),
    "the entries are not in the order of NodeKind");

}  // namespace

std::unique_ptr<Program> Lowering::run() {
  p_ = std::make_unique<Program>();
  micro_ = g_.micro_batches;
  sort_nodes();
  count_reads();
  find_buckets();
  bind_outside();
  for (auto& u : g_.updates) p_->updates.push_back({u.rule, {}, u.optimizer});
  p_->norms.reserve(g_.clips.size());  // addresses stay
  p_->schedule = pipeline_.schedule();
  run_section(Section::kOnceBefore, 0, 0);
  auto& tasks = pipeline_.tasks();
  releases_.resize(tasks.size());
  for (task_ = 0; task_ < static_cast<int>(tasks.size()); ++task_) {
    const Task& t = at_index(tasks, task_);
    p_->tasks.push_back({t, now(), 0});
    if (first_task_of(t.micro_batch)) send_outside(t.micro_batch);
    run_section(section_of(t.phase), t.stage, t.micro_batch);
    put_out(t.micro_batch);
    for (auto& sent : at_index(releases_, task_)) release(sent);
    p_->tasks.back().end = now();
  }
  for (int m = 0; m < micro_; ++m) put_out(m, true);
  for (auto& sent : releases_at_end_) release(sent);
  if (changes_gradients()) put_updates_last();
  run_section(Section::kOnceAfter, 0, 0);
  put_out(0, true);
  finish_outputs();
  place();
  return std::move(p_);
}

void Lowering::sort_nodes() {
  per_micro_.assign(g_.values.size(), false);
  first_.assign(g_.values.size() + 1, 0);
  for (size_t v = 0; v < g_.values.size(); ++v) {
    NodeId by = made_by_[v];
    const Node* producer = by < 0 ? nullptr : &at_index(g_.nodes, by);
    per_micro_[v] = micro_ > 1 &&
        (producer ? per_micro_batch(producer->section) && producer->kind != NodeKind::kAccumulate
                  : g_.values[v].kind == ValueKind::kInput);
    first_[v + 1] = first_[v] + (per_micro_[v] ? micro_ : 1);
  }
  instances_.resize(to_size(first_.back()));
  stages_ = std::max(1, g_.stages);
  for (auto& lists : lists_) lists.resize(to_size(stages_ * g_.variants()));
  std::vector<int> crossings(to_size(g_.variants()), 0);
  for (size_t n = 0; n < g_.nodes.size(); ++n) {
    const Node& node = g_.nodes[n];
    const bool crosses = stages_ > 1 && pipeline_.crosses(static_cast<NodeId>(n));
    // A micro-batch has one variant, so that the same number in another one is another channel.
    if (crosses) crossing_number_.emplace(static_cast<NodeId>(n), at_index(crossings, node.variant)++);
    if (!takes_part(node)) continue;
    if (crosses) {
      crossings_from_[node.in[0]].push_back(static_cast<NodeId>(n));
      crossing_to_[node.out[0]] = static_cast<NodeId>(n);
      continue;
    }
    list(node.section, std::clamp<int>(node.stage, 0, stages_ - 1), node.variant).push_back(static_cast<NodeId>(n));
  }
}

bool Lowering::takes_part(const Node& n) const {
  if (traits(n).gradients) return true;  // every rank knows all states, as after an eager step
  for (ValueId v : n.out)
    if (member(v)) return true;
  for (ValueId v : n.in)
    if (v != kNoValue && member(v)) return true;
  return n.in.empty() && n.out.empty();
}

void Lowering::count_reads() {
  reads_.assign(g_.values.size(), 0);
  std::vector<int> times(to_size(g_.variants()), 0);  // that a variant runs
  for (int m = 0; m < micro_; ++m) ++at_index(times, g_.variant(m));
  for (auto& n : g_.nodes) {
    if (!takes_part(n)) continue;
    const int often = micro_ > 1 && per_micro_batch(n.section) ? at_index(times, n.variant) : 1;
    for (ValueId v : n.in)
      if (v != kNoValue) at_index(reads_, v) += at_index(per_micro_, v) ? 1 : often;
  }
  for (int f = 0; f < g_.variants(); ++f)
    for (ValueId v : g_.outputs_of(f))
      if (f == 0 || at_index(per_micro_, v)) ++at_index(reads_, v);
  for (auto& n : g_.nodes)
    if (n.kind == NodeKind::kAccumulate && takes_part(n) && at_index(reads_, n.in[0]) == 1) sum_of_[n.in[0]] = n.out[0];
}

int32_t Lowering::new_buffer(size_t bytes, Device device, Buffer::Kind kind) {
  Buffer b;
  b.device = device;
  b.kind = kind;
  b.bytes = bytes;
  b.storage = make_ref<Storage>(nullptr, 0);
  b.life = {now(), now(), bytes};
  p_->buffers.push_back(std::move(b));
  return static_cast<int32_t>(p_->buffers.size()) - 1;
}

Array* Lowering::set(ValueId v, int m, Array a, int32_t buffer) {
  Instance& i = instance(v, m);
  HOLON_CHECK(i.array < 0, "value {} is computed twice", v);
  i.array = static_cast<int32_t>(p_->arrays.size());
  i.buffer = buffer;
  at_index(p_->buffers, buffer).pending += at_index(reads_, v);
  return keep(std::move(a));
}

Array* Lowering::fresh(ValueId v, int m, const Dims& shape, const Dims& strides) {
  const Value& value = g_.value(v);
  if (auto it = place_in_bucket_.find(v); it != place_in_bucket_.end() && strides == contiguous_strides(shape)) {
    auto [node, k] = it->second;
    Bucket& b = bucket(*node, m);
    return set(v, m, part_of(b.buffer, shape, b.batch.in_at()[k], value.dtype, device_of(value)), b.buffer);
  }
  Array a = Array::placeholder(shape, strides, value.dtype, device_of(value));
  int32_t b = new_buffer(a.nbytes(), a.device);
  a.storage = at_index(p_->buffers, b).storage;
  return set(v, m, std::move(a), b);
}

void Lowering::run_section(Section section, int stage, int m) {
  section_ = section;
  for (NodeId n : list(section, stage, g_.variant(m))) {
    const Node& node = at_index(g_.nodes, n);
    for (ValueId v : node.in) {
      need(v, m);
      HOLON_CHECK(v == kNoValue || !member(v) || array(v, m)->defined(), "{} reads value {} before it is computed",
                  graph::str(g_, node), v);
    }
    lower(node, m);
    for (ValueId v : node.in) read_done(v, m);
    for (ValueId v : node.out) made(v, m);
  }
}

void Lowering::need(ValueId v, int m) {
  if (v == kNoValue) return;
  if (auto it = crossing_to_.find(v); it != crossing_to_.end() && instance(v, m).array < 0 && member(v))
    receive(it->second, m);
  if (auto it = summing_.find(v); it != summing_.end()) {
    emit<WaitInstruction>(nullptr, m, *it->second);
    const SumInBackground* waited = it->second;
    // What it reads stays until then.
    if (auto from = summed_from_.find(waited); from != summed_from_.end())
      at_index(p_->buffers, from->second).life.last = now() - 1;
    std::erase_if(summing_, [&](auto& entry) { return entry.second == waited; });
  }
}

void Lowering::made(ValueId v, int m) {
  auto it = crossings_from_.find(v);
  if (it == crossings_from_.end()) return;
  for (NodeId n : it->second) send(n, m);
}

void Lowering::lower(const Node& n, int m) { (this->*at_index(kLowerings, n.kind).lower)(n, m); }

std::unique_ptr<Program> lower(const Graph& g, const LoweringOptions& options) { return Lowering(g, options).run(); }

}  // namespace holon::graph
