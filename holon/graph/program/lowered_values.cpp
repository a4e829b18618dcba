#include "holon/graph/program/lowered_values.h"

#include "holon/array/device_runtime.h"
#include "holon/graph/ir/node_kind.h"
#include "holon/kernels/copy.h"

namespace holon::graph {

LoweredValues::LoweredValues(const Graph& graph, Program& p)
    : g(graph),
      program(p),
      rank(Context::current().rank()),
      micro_batches(graph.micro_batches),
      made_by(producers(graph)),
      per_micro_(graph.values.size(), false),
      first_(graph.values.size() + 1, 0) {
  for (size_t v = 0; v < g.values.size(); ++v) {
    const NodeId by = made_by[v];
    const Node* producer = by < 0 ? nullptr : &at_index(g.nodes, by);
    per_micro_[v] = micro_batches > 1 &&
        (producer ? per_micro_batch(producer->section) && producer->kind != NodeKind::kAccumulate
                  : g.values[v].kind == ValueKind::kInput);
    first_[v + 1] = first_[v] + (per_micro_[v] ? micro_batches : 1);
  }
  instances_.resize(to_size(first_.back()));
  count_reads();
}

bool LoweredValues::takes_part(const Node& n) const {
  if (traits(n).gradients) return true;  // every rank knows all states, as after an eager step
  for (ValueId v : n.out)
    if (member(v)) return true;
  for (ValueId v : n.in)
    if (v != kNoValue && member(v)) return true;
  return n.in.empty() && n.out.empty();
}

void LoweredValues::count_reads() {
  reads_.assign(g.values.size(), 0);
  std::vector<int> times(to_size(g.variants()), 0);  // that a variant runs
  for (int m = 0; m < micro_batches; ++m) ++at_index(times, g.variant(m));
  for (auto& n : g.nodes) {
    if (!takes_part(n)) continue;
    const int often = micro_batches > 1 && per_micro_batch(n.section) ? at_index(times, n.variant) : 1;
    for (ValueId v : n.in)
      if (v != kNoValue) at_index(reads_, v) += per_micro(v) ? 1 : often;
  }
  for (int f = 0; f < g.variants(); ++f)
    for (ValueId v : g.outputs_of(f))
      if (f == 0 || per_micro(v)) ++at_index(reads_, v);
}

int32_t LoweredValues::new_buffer(size_t bytes, Device device, Buffer::Kind kind) {
  Buffer b;
  b.device = device;
  b.kind = kind;
  b.bytes = bytes;
  b.storage = make_ref<Storage>(nullptr, 0);
  b.life = {now(), now(), bytes};
  program.buffers.push_back(std::move(b));
  return static_cast<int32_t>(program.buffers.size()) - 1;
}

Array* LoweredValues::set(ValueId v, int m, Array a, int32_t to) {
  Instance& i = instance(v, m);
  HOLON_CHECK(i.array < 0, "value {} is computed twice", v);
  i.array = static_cast<int32_t>(program.arrays.size());
  i.buffer = to;
  buffer(to).pending += reads(v);
  return keep(std::move(a));
}

Array* LoweredValues::in_own_buffer(ValueId v, int m, const Dims& shape, const Dims& strides) {
  const Value& value = g.value(v);
  Array a = Array::placeholder(shape, strides, value.dtype, device_of(value));
  const int32_t b = new_buffer(a.nbytes(), a.device);
  a.storage = buffer(b).storage;
  return set(v, m, std::move(a), b);
}

Array LoweredValues::window_on(int32_t of, const Dims& shape, int64_t at, DType dtype, Device device) {
  Array a = Array::placeholder(shape, contiguous_strides(shape), dtype, device);
  a.storage = buffer(of).storage;
  a.offset = at;
  return a;
}

std::vector<Array> LoweredValues::scratch_of(std::span<const size_t> sizes, Device device, std::vector<int32_t>* held) {
  std::vector<Array> scratch;
  for (size_t bytes : sizes) {
    Array a = Array::placeholder({static_cast<int64_t>(bytes)}, {1}, uint8, device);
    const int32_t b = new_buffer(bytes, device);
    if (held) held->push_back(b);
    a.storage = buffer(b).storage;
    scratch.push_back(std::move(a));
  }
  return scratch;
}

void LoweredValues::read_done(ValueId v, int m) {
  if (v == kNoValue) return;
  const Instance& i = instance(v, m);
  if (i.buffer < 0) return;
  Buffer& b = buffer(i.buffer);
  --b.pending;
  b.read_in |= static_cast<uint8_t>(1u << static_cast<unsigned>(section));
  b.life.last = std::max(b.life.first, now() - 1);
}

void LoweredValues::place() {
  MemoryPlan& all = program.memory;
  std::vector<const Buffer*> placed;
  for (const Buffer& b : program.buffers) {
    if (b.kind != Buffer::Kind::kArena) continue;
    placed.push_back(&b);
    auto same = [&](const Program::Arena& a) { return a.device == b.device; };
    if (std::none_of(program.arenas.begin(), program.arenas.end(), same)) program.arenas.push_back({b.device, 0, {}});
  }
  all.offsets.resize(placed.size());
  for (Program::Arena& arena : program.arenas) {
    std::vector<Lifetime> lives;
    std::vector<size_t> which;
    for (size_t k = 0; k < placed.size(); ++k)
      if (placed[k]->device == arena.device) {
        lives.push_back(placed[k]->life);
        which.push_back(k);
      }
    const MemoryPlan plan = plan_memory(lives);
    for (size_t k = 0; k < which.size(); ++k) all.offsets[which[k]] = plan.offsets[k];
    arena.bytes = plan.bytes;
    all.bytes += plan.bytes;
    all.peak_bytes += plan.peak_bytes;
    all.sum_bytes += plan.sum_bytes;
  }
}

void Program::allocate() {
  for (Arena& a : arenas) a.storage = allocate_storage(a.bytes, a.device);
  size_t next = 0;
  for (Buffer& b : buffers) {
    if (b.kind != Buffer::Kind::kArena) continue;
    const Arena& of = *std::find_if(arenas.begin(), arenas.end(), [&](const Arena& a) { return a.device == b.device; });
    b.storage->rebind(of.storage->data() + memory.offsets[next++], b.bytes);
  }
  for (Array& norm : norms) {
    norms_memory.push_back(allocate_storage(norm.nbytes(), norm.device));
    norm.storage->rebind(norms_memory.back()->data(), norm.nbytes());
    kernels::fill(norm, 0.0);
  }
}

}  // namespace holon::graph
