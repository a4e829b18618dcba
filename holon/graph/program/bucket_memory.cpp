#include "holon/graph/program/bucket_memory.h"

#include "holon/comm/device/device_communicator.h"

namespace holon::graph {

BucketMemory::BucketMemory(LoweredValues& values, bool background)
    : values_(values), g_(values.g), background_(background) {
  for (auto& n : g_.nodes)
    if (n.kind == NodeKind::kBoxing && n.in.size() > 1 && values.takes_part(n))
      for (size_t k = 0; k < n.in.size(); ++k) places_[n.in[k]] = {&n, k};
}

Array* BucketMemory::fresh(ValueId v, int m, const Dims& shape, const Dims& strides) {
  auto it = places_.find(v);
  if (it == places_.end() || strides != contiguous_strides(shape)) return values_.in_own_buffer(v, m, shape, strides);
  auto [node, k] = it->second;
  const Bucket& b = bucket(*node, m);
  const Value& value = g_.value(v);
  return values_.set(
      v, m, values_.window_on(b.buffer, shape, b.batch.in_at()[k], value.dtype, LoweredValues::device_of(value)),
      b.buffer);
}

BucketMemory::Bucket& BucketMemory::bucket(const Node& n, int m) {
  const Value &from = g_.value(n.in[0]), &to = g_.value(n.out[0]);
  auto [it, fresh] = buckets_.try_emplace({&n, m}, nullptr);
  if (fresh) {
    std::vector<Dims> shapes;
    for (ValueId v : n.in) shapes.push_back(g_.value(v).shape);
    it->second =
        std::make_unique<Bucket>(Bucket{boxing::PreparedBatch::prepare(from.spec, to.spec, shapes, from.dtype)});
  }
  Bucket& b = *it->second;
  if (b.buffer < 0 && b.batch.has_in())
    b.buffer =
        values_.new_buffer(to_size(b.batch.in_elements()) * size_bytes(from.dtype), LoweredValues::device_of(from));
  return b;
}

void BucketMemory::lower(const Node& n, int m) {
  Bucket& b = bucket(n, m);
  const Value &from = g_.value(n.in[0]), &to = g_.value(n.out[0]);
  const Device from_device = LoweredValues::device_of(from), to_device = LoweredValues::device_of(to);
  if (!b.batch.communicates() && !b.batch.has_out()) return;
  Array* whole = nullptr;
  if (b.batch.has_in()) {
    whole = values_.keep(values_.window_on(b.buffer, {b.batch.in_elements()}, 0, from.dtype, from_device));
    for (size_t k = 0; k < n.in.size(); ++k) {
      const Array* a = values_.array(n.in[k], m);
      if (values_.instance(n.in[k], m).buffer == b.buffer) continue;
      Array place = values_.window_on(b.buffer, b.batch.in_shape(k), b.batch.in_at()[k], from.dtype, from_device);
      values_.emit<CopyInstruction>(&n, m, a, values_.keep(std::move(place)), "its place in a bucket");
    }
  }
  const Array* target = &kUndefined;
  if (b.batch.has_out()) {
    const int32_t out = b.batch.in_place() && b.batch.has_in()
        ? b.buffer
        : values_.new_buffer(to_size(b.batch.out_elements()) * size_bytes(to.dtype), to_device);
    target = values_.keep(values_.window_on(out, {b.batch.out_elements()}, 0, to.dtype, to_device));
    for (size_t k = 0; k < n.out.size(); ++k)
      values_.set(n.out[k], m, values_.window_on(out, b.batch.out_shape(k), b.batch.out_at()[k], to.dtype, to_device),
                  out);
    values_.buffer(b.buffer < 0 ? out : b.buffer).life.last = values_.now();
  }
  // Beside a device's computation goes what only the collective itself touches.
  const bool beside =
      from_device.is_host() ? background_ : b.batch.in_place() && whole && comm::device_overlap_wanted();
  if (!beside) {
    values_.emit<BatchInstruction>(&n, m, b.batch, whole ? whole : &kUndefined, target);
    return;
  }
  auto& sum = values_.emit<SumInBackground>(&n, m, b.batch, whole ? whole : &kUndefined, target);
  for (ValueId v : n.out) summing_[v] = &sum;
  if (whole) summed_from_[&sum] = b.buffer;
}

void BucketMemory::need(ValueId v, int m) {
  auto it = summing_.find(v);
  if (it == summing_.end()) return;
  const SumInBackground* waited = it->second;
  values_.emit<WaitInstruction>(nullptr, m, *waited);
  // What it reads stays until then.
  if (auto from = summed_from_.find(waited); from != summed_from_.end())
    values_.buffer(from->second).life.last = values_.now() - 1;
  std::erase_if(summing_, [&](auto& entry) { return entry.second == waited; });
}

}  // namespace holon::graph
