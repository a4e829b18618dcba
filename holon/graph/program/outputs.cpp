#include "holon/graph/program/outputs.h"

namespace holon::graph {

namespace {

Dims with_leading(int64_t n, const Dims& shape) {
  Dims d{n};
  for (int64_t s : shape) d.push_back(s);
  return d;
}

// The same layout behind a new first axis.
const GlobalSpec* shifted(const GlobalSpec* spec) {
  std::vector<Sbp> list(spec->nd_sbp.begin(), spec->nd_sbp.end());
  for (auto& s : list)
    if (s.is_split()) s = sbp::split(s.axis + 1);
  return intern_spec(spec->placement, NdSbp(list));
}

}  // namespace

Outputs::Outputs(LoweredValues& values, BucketMemory& memory, Crossings& crossings, const RowOrder& order)
    : values_(values),
      memory_(memory),
      crossings_(crossings),
      order_(order),
      g_(values.g),
      micro_(values.micro_batches) {}

void Outputs::need(ValueId v, int m) {
  crossings_.need(v, m);
  memory_.need(v, m);
}

void Outputs::fail_local(size_t o) const {
  fail_value(
      "output {} of the graph is a local tensor of one of its {} stages: the other stages' ranks do not have it. "
      "Make it global by to_global(placement, sbp) in build().",
      o, g_.stages);
}

void Outputs::put(int m, bool last) {
  auto& outputs = values_.program.outputs;
  if (done_.empty()) {
    done_.assign(g_.n_outputs() * to_size(micro_), false);
    outputs.resize(g_.n_outputs());
    for (size_t o = 0; o < g_.n_outputs(); ++o) describe(o);
  }
  for (size_t o = 0; o < g_.n_outputs(); ++o) {
    const ValueId v = output(o, m);
    const OutputPart& part = outputs[o];
    if (part.external >= 0 || part.buffer == -1 || !values_.per_micro(v)) continue;
    const size_t slot = o * to_size(micro_) + to_size(m);
    if (done_[slot]) continue;
    if (last) need(v, m);
    const Array* from = values_.array(v, m);
    if (!from->defined()) {
      if (last && !g_.value(v).spec) fail_local(o);
      HOLON_CHECK(!last, "output {} is not computed for micro-batch {}", o, m);
      continue;
    }
    done_[slot] = true;
    copy(o, m, from);
    values_.read_done(v, m);
  }
}

void Outputs::copy(size_t o, int m, const Array* from) {
  const OutputPart& part = values_.program.outputs[o];
  if (!joins(o)) {
    Array to = part.array;
    to.offset += m * to.strides[0];
    to.shape.erase(0);
    to.strides.erase(0);
    values_.emit<CopyInstruction>(nullptr, m, from, values_.keep(std::move(to)), "an output");
    return;
  }
  auto pieces = order_.of(g_.value(output(o, m)), m);
  if (!pieces) pieces = {{0, rows_before(o, m, true), from->shape[0]}};
  for (const RowPiece& piece : *pieces) {
    auto rows = [&](const Array& a, int64_t first) {
      Array some = a;
      some.shape[0] = piece.rows;
      some.offset += first * a.strides[0];
      return values_.keep(std::move(some));
    };
    const Array* some = piece.rows == from->shape[0] ? from : rows(*from, piece.from);
    values_.emit<CopyInstruction>(nullptr, m, some, rows(part.array, piece.to), "an output");
  }
}

bool Outputs::joins(size_t o) const {
  const Value& v = g_.value(g_.outputs_of(0)[o]);
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
  for (ValueId i : g_.inputs_of(0))
    if (g_.value(i).shape.size() > 0 && g_.value(i).shape[0] == v.shape[0]) return true;
  return false;
}

void Outputs::check_row_order(size_t o) const {
  const auto& row_parts = g_.row_parts_of(0);  // as many in all variants
  if (row_parts.empty()) return;
  const GlobalSpec* spec = g_.value(g_.outputs_of(0)[o]).spec;
  int64_t ranks = 1;
  for (int a = 0; spec && a < spec->nd_sbp.size(); ++a)
    if (spec->nd_sbp[a].is_split(0)) ranks *= spec->placement.hierarchy()[a];
  const auto parts = static_cast<int64_t>(row_parts.size());
  if (parts % ranks)
    fail_value("output {} of the graph is {}: its rows are split between {} ranks, those of the inputs between {}, so "
               "that with {} micro-batches they would be in another order. Split the inputs' rows in the same way, or "
               "return it as broadcast.",
               o, spec->str(), ranks, parts, micro_);
}

int64_t Outputs::rows_before(size_t o, int m, bool local) const {
  int64_t rows = 0;
  for (int k = 0; k < m; ++k) {
    const Value& v = g_.value(output(o, k));
    rows += (local ? values_.local_shape(v) : v.shape)[0];
  }
  return rows;
}

void Outputs::allocate(size_t o, const Dims& shape, DType dtype, Device device) {
  OutputPart& part = values_.program.outputs[o];
  part.array = Array::placeholder(shape, contiguous_strides(shape), dtype, device);
  part.buffer = values_.new_buffer(part.array.nbytes(), device, Buffer::Kind::kOutput);
  values_.buffer(part.buffer).index = static_cast<int32_t>(o);
  part.array.storage = values_.buffer(part.buffer).storage;
}

void Outputs::describe(size_t o) {
  const ValueId v = g_.outputs_of(0)[o];
  const Value& value = g_.value(v);
  OutputPart& part = values_.program.outputs[o];
  part.shape = value.shape;
  part.dtype = value.dtype;
  part.spec = value.spec;
  if (value.kind == ValueKind::kExternal) {
    part.external = value.index;
    return;
  }
  if (!values_.per_micro(v)) return;
  const bool joined = joins(o);
  if (joined) check_row_order(o);
  if (joined)
    part.shape[0] = rows_before(o, micro_, false);
  else
    part.shape = with_leading(micro_, value.shape);
  if (value.spec && !joined) part.spec = shifted(value.spec);
  if (!values_.member(v)) return;
  Dims local = values_.local_shape(value);
  if (joined)
    local[0] = rows_before(o, micro_, true);
  else
    local = with_leading(micro_, local);
  allocate(o, local, value.dtype, LoweredValues::device_of(value));
}

void Outputs::finish() {
  for (size_t o = 0; o < g_.n_outputs(); ++o) {
    const ValueId v = g_.outputs_of(0)[o];
    OutputPart& part = values_.program.outputs[o];
    if (part.external >= 0 || values_.per_micro(v) || !values_.member(v)) continue;
    need(v, 0);
    const Array* from = values_.array(v, 0);
    if (!from->defined() && !g_.value(v).spec) fail_local(o);
    HOLON_CHECK(from->defined(), "output {} is not computed", o);
    Buffer& b = values_.buffer_of(v, 0);
    if (b.kind == Buffer::Kind::kArena && from->is_dense() && from->nbytes() == b.bytes) {
      b.kind = Buffer::Kind::kOutput;
      b.index = static_cast<int32_t>(o);
      part.array = *from;
      part.buffer = values_.instance(v, 0).buffer;
      continue;
    }
    allocate(o, from->shape, from->dtype, from->device);
    values_.emit<CopyInstruction>(nullptr, 0, from, values_.keep(part.array), "an output");
    values_.read_done(v, 0);
  }
}

}  // namespace holon::graph
