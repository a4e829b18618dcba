// What crosses from stage to stage, and boxings in one collective.
#include "holon/base/index.h"
#include "holon/comm/device/device_communicator.h"
#include "holon/graph/program/lowering.h"

namespace holon::graph {

bool Lowering::first_task_of(int m) const {
  auto& tasks = pipeline_.tasks();
  for (int t = 0; t < task_; ++t)
    if (at_index(tasks, t).micro_batch == m) return false;
  return true;
}

void Lowering::send_outside(int m) {
  for (auto& [v, list] : crossings_from_) {
    NodeId by = at_index(made_by_, v);
    if (by >= 0 && per_micro_batch(at_index(g_.nodes, by).section)) continue;
    for (NodeId n : list)
      if (runs_for(at_index(g_.nodes, n), m)) send(n, m);
  }
}

boxing::PointToPoint& Lowering::transfer(NodeId n, int m, const Array* in) {
  auto [it, fresh] = transfers_.try_emplace({n, m}, nullptr);
  if (!fresh) return *it->second;
  const Node& node = at_index(g_.nodes, n);
  const Value &from = g_.value(node.in[0]), &to = g_.value(node.out[0]);
  const bool strided = in && in->defined() && !in->is_contiguous();
  p_->transfers.push_back(
      boxing::PointToPoint::prepare(from.spec, to.spec, from.shape, from.dtype, crossing_number_.at(n) * micro_ + m,
                                    strided ? boxing::Input::kAnyStrides : boxing::Input::kContiguous));
  it->second = &p_->transfers.back();
  return *it->second;
}

std::vector<Array> Lowering::scratch_of(std::span<const size_t> sizes, Device device, std::vector<int32_t>* held) {
  std::vector<Array> scratch;
  for (size_t bytes : sizes) {
    Array a = Array::placeholder({static_cast<int64_t>(bytes)}, {1}, uint8, device);
    int32_t b = new_buffer(bytes, device);
    if (held) held->push_back(b);
    a.storage = at_index(p_->buffers, b).storage;
    scratch.push_back(std::move(a));
  }
  return scratch;
}

void Lowering::send(NodeId n, int m) {
  const Node& node = at_index(g_.nodes, n);
  if (!member(node.in[0])) return;
  const Array* in = array(node.in[0], m);
  boxing::PointToPoint& h = transfer(n, m, in);
  Sent sent{&h, n, m, {instance(node.in[0], m).buffer}};
  auto scratch = scratch_of(h.send_scratch_bytes(), device_of(g_.value(node.in[0])), &sent.held);
  for (int32_t b : sent.held) ++at_index(p_->buffers, b).pending;
  emit<SendInstruction>(&node, m, h, in, std::move(scratch));
  read_done(node.in[0], m);
  const int after = pipeline_.received_after(n, m, task_);
  (after < 0 ? releases_at_end_ : at_index(releases_, after)).push_back(std::move(sent));
}

void Lowering::receive(NodeId n, int m) {
  const Node& node = at_index(g_.nodes, n);
  boxing::PointToPoint& h = transfer(n, m, nullptr);
  Array* out = fresh(node.out[0], m, h.out_shape(), contiguous_strides(h.out_shape()));
  emit<ReceiveInstruction>(&node, m, h, out, scratch_of(h.receive_scratch_bytes(), out->device));
  made(node.out[0], m);
}

void Lowering::release(const Sent& sent) {
  emit<ReleaseInstruction>(&at_index(g_.nodes, sent.node), sent.micro_batch, *sent.transfer);
  for (int32_t b : sent.held) {
    Buffer& buffer = at_index(p_->buffers, b);
    --buffer.pending;
    buffer.life.last = std::max(buffer.life.first, now() - 1);
  }
}

void Lowering::find_buckets() {
  for (auto& n : g_.nodes)
    if (n.kind == NodeKind::kBoxing && n.in.size() > 1 && takes_part(n))
      for (size_t k = 0; k < n.in.size(); ++k) place_in_bucket_[n.in[k]] = {&n, k};
}

Lowering::Bucket& Lowering::bucket(const Node& n, int m) {
  auto [it, fresh] = buckets_.try_emplace({&n, m}, nullptr);
  if (fresh) {
    std::vector<Dims> shapes;
    for (ValueId v : n.in) shapes.push_back(g_.value(v).shape);
    it->second =
        std::make_unique<Bucket>(Bucket{boxing::PreparedBatch::prepare(g_.value(n.in[0]).spec, g_.value(n.out[0]).spec,
                                                                       shapes, g_.value(n.in[0]).dtype)});
  }
  Bucket& b = *it->second;
  if (b.buffer < 0 && b.batch.has_in())
    b.buffer =
        new_buffer(to_size(b.batch.in_elements()) * size_bytes(g_.value(n.in[0]).dtype), device_of(g_.value(n.in[0])));
  return b;
}

Array Lowering::part_of(int32_t buffer, const Dims& shape, int64_t at, DType dtype, Device device) {
  Array a = Array::placeholder(shape, contiguous_strides(shape), dtype, device);
  a.storage = at_index(p_->buffers, buffer).storage;
  a.offset = at;
  return a;
}

void Lowering::lower_batch(const Node& n, int m) {
  Bucket& b = bucket(n, m);
  const Value &from = g_.value(n.in[0]), &to = g_.value(n.out[0]);
  if (!b.batch.communicates() && !b.batch.has_out()) return;
  Array* whole = nullptr;
  if (b.batch.has_in()) {
    whole = keep(part_of(b.buffer, {b.batch.in_elements()}, 0, from.dtype, device_of(from)));
    for (size_t k = 0; k < n.in.size(); ++k) {
      const Array* a = array(n.in[k], m);
      if (instance(n.in[k], m).buffer == b.buffer) continue;
      emit<CopyInstruction>(
          &n, m, a, keep(part_of(b.buffer, b.batch.in_shape(k), b.batch.in_at()[k], from.dtype, device_of(from))),
          "its place in a bucket");
    }
  }
  const Array* target = &kUndefined;
  if (b.batch.has_out()) {
    int32_t buffer = b.batch.in_place() && b.batch.has_in()
        ? b.buffer
        : new_buffer(to_size(b.batch.out_elements()) * size_bytes(to.dtype), device_of(to));
    target = keep(part_of(buffer, {b.batch.out_elements()}, 0, to.dtype, device_of(to)));
    for (size_t k = 0; k < n.out.size(); ++k)
      set(n.out[k], m, part_of(buffer, b.batch.out_shape(k), b.batch.out_at()[k], to.dtype, device_of(to)), buffer);
    at_index(p_->buffers, b.buffer < 0 ? buffer : b.buffer).life.last = now();
  }
  // Beside a device's computation goes what only the collective itself touches.
  const bool beside =
      device_of(from).is_host() ? background_ : b.batch.in_place() && whole && comm::device_overlap_wanted();
  if (!beside) {
    emit<BatchInstruction>(&n, m, b.batch, whole ? whole : &kUndefined, target);
    return;
  }
  auto& sum = emit<SumInBackground>(&n, m, b.batch, whole ? whole : &kUndefined, target);
  for (ValueId v : n.out) summing_[v] = &sum;
  if (whole) summed_from_[&sum] = b.buffer;
}

}  // namespace holon::graph
