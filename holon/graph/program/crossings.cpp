#include "holon/graph/program/crossings.h"

#include <algorithm>

namespace holon::graph {

Crossings::Crossings(LoweredValues& values, BucketMemory& memory, const Pipeline& pipeline)
    : values_(values),
      memory_(memory),
      pipeline_(pipeline),
      g_(values.g),
      begun_(to_size(values.micro_batches), false),
      releases_(pipeline.tasks().size()) {
  std::vector<int> count(to_size(g_.variants()), 0);
  for (size_t i = 0; i < g_.nodes.size(); ++i) {
    const auto n = static_cast<NodeId>(i);
    if (!crosses(n)) continue;
    const Node& node = g_.nodes[i];
    // A micro-batch has one variant, so that the same number in another one is another channel.
    number_.emplace(n, at_index(count, node.variant)++);
    if (!values.takes_part(node)) continue;
    from_[node.in[0]].push_back(n);
    to_[node.out[0]] = n;
  }
}

void Crossings::begin_task(int task) {
  task_ = task;
  const int m = at_index(pipeline_.tasks(), task).micro_batch;
  if (at_index(begun_, m)) return;
  at_index(begun_, m) = true;
  for (auto& [v, list] : from_) {
    const NodeId by = at_index(values_.made_by, v);
    if (by >= 0 && per_micro_batch(at_index(g_.nodes, by).section)) continue;
    for (NodeId n : list)
      if (values_.runs_for(at_index(g_.nodes, n), m)) send(n, m);
  }
}

void Crossings::end_task() {
  for (auto& sent : at_index(releases_, task_)) release(sent);
}

void Crossings::end_of_tasks() { task_ = static_cast<int>(pipeline_.tasks().size()); }

void Crossings::release_rest() {
  for (auto& sent : releases_at_end_) release(sent);
}

void Crossings::need(ValueId v, int m) {
  if (auto it = to_.find(v); it != to_.end() && values_.instance(v, m).array < 0 && values_.member(v))
    receive(it->second, m);
}

void Crossings::made(ValueId v, int m) {
  auto it = from_.find(v);
  if (it == from_.end()) return;
  for (NodeId n : it->second) send(n, m);
}

boxing::PointToPoint& Crossings::transfer(NodeId n, int m, const Array* in) {
  auto [it, fresh] = transfers_.try_emplace({n, m}, nullptr);
  if (!fresh) return *it->second;
  const Node& node = at_index(g_.nodes, n);
  const Value &from = g_.value(node.in[0]), &to = g_.value(node.out[0]);
  const bool strided = in && in->defined() && !in->is_contiguous();
  values_.program.transfers.push_back(boxing::PointToPoint::prepare(
      from.spec, to.spec, from.shape, from.dtype, number_.at(n) * values_.micro_batches + m,
      strided ? boxing::Input::kAnyStrides : boxing::Input::kContiguous));
  it->second = &values_.program.transfers.back();
  return *it->second;
}

void Crossings::send(NodeId n, int m) {
  const Node& node = at_index(g_.nodes, n);
  const ValueId v = node.in[0];
  if (!values_.member(v)) return;
  const Array* in = values_.array(v, m);
  boxing::PointToPoint& h = transfer(n, m, in);
  Sent sent{&h, n, m, {values_.instance(v, m).buffer}};
  auto scratch = values_.scratch_of(h.send_scratch_bytes(), LoweredValues::device_of(g_.value(v)), &sent.held);
  for (int32_t b : sent.held) ++values_.buffer(b).pending;
  values_.emit<SendInstruction>(&node, m, h, in, std::move(scratch));
  values_.read_done(v, m);
  const int after = pipeline_.received_after(n, m, task_);
  (after < 0 ? releases_at_end_ : at_index(releases_, after)).push_back(std::move(sent));
}

void Crossings::receive(NodeId n, int m) {
  const Node& node = at_index(g_.nodes, n);
  boxing::PointToPoint& h = transfer(n, m, nullptr);
  Array* out = memory_.fresh(node.out[0], m, h.out_shape(), contiguous_strides(h.out_shape()));
  values_.emit<ReceiveInstruction>(&node, m, h, out, values_.scratch_of(h.receive_scratch_bytes(), out->device));
  made(node.out[0], m);
}

void Crossings::release(const Sent& sent) {
  values_.emit<ReleaseInstruction>(&at_index(g_.nodes, sent.node), sent.micro_batch, *sent.transfer);
  for (int32_t b : sent.held) {
    Buffer& buffer = values_.buffer(b);
    --buffer.pending;
    buffer.life.last = std::max(buffer.life.first, values_.now() - 1);
  }
}

}  // namespace holon::graph
