// Inputs, externals and outputs, and where values lie.
#include "holon/array/device_runtime.h"
#include "holon/base/index.h"
#include "holon/graph/program/lowering.h"

namespace holon::graph {

void Lowering::bind_input(size_t i) {
  if (!member(g_.inputs[i])) return;
  std::vector<std::vector<RowPiece>> pieces;  // of each micro-batch, if known
  bool moves = false;                         // some micro-batch's rows do not lie together
  for (int m = 0; m < micro_; ++m) {
    auto found = order_.of(g_.value(g_.inputs_of(g_.variant(m))[i]), m);
    if (!found) {
      pieces.clear();
      moves = false;
      break;
    }
    moves |= found->size() > 1;
    pieces.push_back(std::move(*found));
  }
  int64_t rows = 0;
  for (int m = 0; m < micro_; ++m) {
    const ValueId v = g_.inputs_of(g_.variant(m))[i];
    const Value& value = g_.value(v);
    const Dims shape = local_shape(value);
    Array a = Array::placeholder(shape, contiguous_strides(shape), value.dtype, device_of(value));
    int32_t b = new_buffer(a.nbytes(), a.device, Buffer::Kind::kInput);
    Buffer& buffer = at_index(p_->buffers, b);
    buffer.index = static_cast<int32_t>(i);
    if (shape.size() > 0) {
      const bool together = !moves && !pieces.empty() && at_index(pieces, m).size() == 1;
      buffer.at =
          (together ? at_index(pieces, m)[0].to : rows) * a.strides[0] * static_cast<int64_t>(size_bytes(value.dtype));
      if (moves)
        for (RowPiece& piece : at_index(pieces, m))
          p_->moved_rows[i].push_back({piece.to, rows + piece.from, piece.rows});
      rows += shape[0];
    }
    a.storage = buffer.storage;
    set(v, m, std::move(a), b);
  }
}

void Lowering::bind_outside() {
  p_->moved_rows.resize(g_.inputs.size());
  for (size_t i = 0; i < g_.inputs.size(); ++i) bind_input(i);
  for (size_t e = 0; e < g_.externals.size(); ++e) {
    const External& x = g_.externals[e];
    const Array& own = x.tensor.array();
    if (!own.defined()) continue;
    Array a = own;
    int32_t b = new_buffer(0, a.device, Buffer::Kind::kExternal);
    at_index(p_->buffers, b).index = static_cast<int32_t>(e);
    a.storage = at_index(p_->buffers, b).storage;
    a.offset = 0;
    set(x.value, 0, std::move(a), b);
  }
}

void Lowering::put_out(int m, bool last) {
  if (out_done_.empty()) {
    out_done_.assign(g_.outputs.size() * to_size(micro_), false);
    p_->outputs.resize(g_.outputs.size());
    for (size_t o = 0; o < g_.outputs.size(); ++o) describe_output(o);
  }
  for (size_t o = 0; o < g_.outputs.size(); ++o) {
    const ValueId v = output(o, m);
    OutputPart& part = p_->outputs[o];
    if (part.external >= 0 || part.buffer == -1 || !at_index(per_micro_, v)) continue;
    const size_t slot = o * to_size(micro_) + to_size(m);
    if (out_done_[slot]) continue;
    if (last) need(v, m);
    const Array* from = array(v, m);
    if (!from->defined()) {
      if (last && !g_.value(v).spec)
        fail_value("output {} of the graph is a local tensor of one of its {} stages: the other stages' ranks do not "
                   "have it. Make it global by "
                   "to_global(placement, sbp) in build().",
                   o, stages_);
      HOLON_CHECK(!last, "output {} is not computed for micro-batch {}", o, m);
      continue;
    }
    out_done_[slot] = true;
    if (joins(o)) {
      auto pieces = order_.of(g_.value(v), m);
      if (!pieces) pieces = {{0, rows_before(o, m, true), from->shape[0]}};
      for (const RowPiece& piece : *pieces) {
        auto rows = [&](const Array& a, int64_t first) {
          Array some = a;
          some.shape[0] = piece.rows;
          some.offset += first * a.strides[0];
          return keep(std::move(some));
        };
        const Array* some = piece.rows == from->shape[0] ? from : rows(*from, piece.from);
        emit<CopyInstruction>(nullptr, m, some, rows(part.array, piece.to), "an output");
      }
    } else {
      Array to = part.array;
      to.offset += m * to.strides[0];
      to.shape.erase(0);
      to.strides.erase(0);
      emit<CopyInstruction>(nullptr, m, from, keep(std::move(to)), "an output");
    }
    read_done(v, m);
  }
}

bool Lowering::joins(size_t o) const {
  const Value& v = g_.value(g_.outputs[o]);
  if (v.shape.size() == 0) return false;
  for (int f = 1; f < g_.variants(); ++f) {
    const Dims& other = g_.value(g_.outputs_of(f)[o]).shape;
    Dims rest = v.shape, others = other;
    if (other.size() != v.shape.size()) {
      rest = {};
    } else {
      rest.erase(0);
      others.erase(0);
    }
    if (rest != others)
      fail_value("output {} of the graph is {} for some micro-batches and {} for others, whose rows differ. Only the "
                 "first axis of an output may depend on the rows: transpose it in build().",
                 o, v.shape, other);
    if (other[0] != v.shape[0]) return true;
  }
  if (g_.variants() > 1) return false;
  for (ValueId i : g_.inputs)
    if (g_.value(i).shape.size() > 0 && g_.value(i).shape[0] == v.shape[0]) return true;
  return false;
}

void Lowering::check_row_order(size_t o) const {
  if (g_.row_parts.empty()) return;
  const GlobalSpec* spec = g_.value(g_.outputs[o]).spec;
  int64_t ranks = 1;
  for (int a = 0; spec && a < spec->nd_sbp.size(); ++a)
    if (spec->nd_sbp[a].is_split(0)) ranks *= spec->placement.hierarchy()[a];
  const auto parts = static_cast<int64_t>(g_.row_parts.size());
  if (parts % ranks)
    fail_value("output {} of the graph is {}: its rows are split between {} ranks, those of the inputs between {}, so "
               "that with {} micro-batches they would be in another order. Split the inputs' rows in the same way, or "
               "return it as broadcast.",
               o, spec->str(), ranks, parts, micro_);
}

int64_t Lowering::rows_before(size_t o, int m, bool local) const {
  int64_t rows = 0;
  for (int k = 0; k < m; ++k) {
    const Value& v = g_.value(output(o, k));
    rows += (local ? local_shape(v) : v.shape)[0];
  }
  return rows;
}

void Lowering::describe_output(size_t o) {
  const ValueId v = g_.outputs[o];
  const Value& value = g_.value(v);
  OutputPart& part = p_->outputs[o];
  part.shape = value.shape;
  part.dtype = value.dtype;
  part.spec = value.spec;
  if (value.kind == ValueKind::kExternal) {
    part.external = value.index;
    return;
  }
  if (!at_index(per_micro_, v)) return;
  const bool joined = joins(o);
  if (joined) check_row_order(o);
  if (joined)
    part.shape[0] = rows_before(o, micro_, false);
  else
    part.shape = with_leading(micro_, value.shape);
  if (value.spec && !joined) part.spec = shifted(value.spec);
  if (!member(v)) return;
  Dims local = local_shape(value);
  if (joined)
    local[0] = rows_before(o, micro_, true);
  else
    local = with_leading(micro_, local);
  part.array = Array::placeholder(local, contiguous_strides(local), value.dtype, device_of(value));
  part.buffer = new_buffer(part.array.nbytes(), part.array.device, Buffer::Kind::kOutput);
  at_index(p_->buffers, part.buffer).index = static_cast<int32_t>(o);
  part.array.storage = at_index(p_->buffers, part.buffer).storage;
}

Dims Lowering::with_leading(int64_t n, const Dims& shape) {
  Dims d{n};
  for (int64_t s : shape) d.push_back(s);
  return d;
}

const GlobalSpec* Lowering::shifted(const GlobalSpec* spec) {
  std::vector<Sbp> list(spec->nd_sbp.begin(), spec->nd_sbp.end());
  for (auto& s : list)
    if (s.is_split()) s = sbp::split(s.axis + 1);
  return intern_spec(spec->placement, NdSbp(list));
}

void Lowering::finish_outputs() {
  for (size_t o = 0; o < g_.outputs.size(); ++o) {
    const ValueId v = g_.outputs[o];
    OutputPart& part = p_->outputs[o];
    if (part.external >= 0 || at_index(per_micro_, v) || !member(v)) continue;
    need(v, 0);
    const Array* from = array(v, 0);
    if (!from->defined() && !g_.value(v).spec)
      fail_value("output {} of the graph is a local tensor of one of its {} stages: the other stages' ranks do not "
                 "have it. Make it global by "
                 "to_global(placement, sbp) in build().",
                 o, stages_);
    HOLON_CHECK(from->defined(), "output {} is not computed", o);
    Buffer& b = at_index(p_->buffers, instance(v, 0).buffer);
    if (b.kind == Buffer::Kind::kArena && from->is_dense() && from->nbytes() == b.bytes) {
      b.kind = Buffer::Kind::kOutput;
      b.index = static_cast<int32_t>(o);
      part.array = *from;
      part.buffer = instance(v, 0).buffer;
      continue;
    }
    part.array = Array::placeholder(from->shape, contiguous_strides(from->shape), from->dtype, from->device);
    part.buffer = new_buffer(part.array.nbytes(), part.array.device, Buffer::Kind::kOutput);
    at_index(p_->buffers, part.buffer).index = static_cast<int32_t>(o);
    part.array.storage = at_index(p_->buffers, part.buffer).storage;
    emit<CopyInstruction>(nullptr, 0, from, keep(part.array), "an output");
    read_done(v, 0);
  }
}

void Lowering::place() {
  MemoryPlan& all = p_->memory;
  std::vector<const Buffer*> placed;
  for (const Buffer& b : p_->buffers) {
    if (b.kind != Buffer::Kind::kArena) continue;
    placed.push_back(&b);
    auto same = [&](const Program::Arena& a) { return a.device == b.device; };
    if (std::none_of(p_->arenas.begin(), p_->arenas.end(), same)) p_->arenas.push_back({b.device, 0, {}});
  }
  all.offsets.resize(placed.size());
  for (Program::Arena& arena : p_->arenas) {
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
}

}  // namespace holon::graph
