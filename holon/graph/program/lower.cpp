// The order of a rank's instructions.
#include <algorithm>
#include <iterator>
#include <memory>

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

Lowering::Lowering(const Graph& g, const LoweringOptions& options)
    : g_(g),
      p_(std::make_unique<Program>()),
      values_(g, *p_),
      strides_(g, values_.rank),
      order_(g, values_.rank),
      pipeline_(g, options.schedule, values_.rank),
      memory_(values_, options.background),
      crossings_(values_, memory_, pipeline_),
      gradients_(values_, [this](ValueId v) { need(v, 0); }),
      outputs_(values_, memory_, crossings_, order_),
      stages_(std::max(1, g.stages)) {}

std::unique_ptr<Program> Lowering::run() {
  sort_nodes();
  bind_outside();
  for (auto& u : g_.updates) p_->updates.push_back({u.rule, {}, u.optimizer});
  p_->schedule = pipeline_.schedule();
  run_section(Section::kOnceBefore, 0, 0);
  auto& tasks = pipeline_.tasks();
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Task& t = tasks[i];
    p_->tasks.push_back({t, values_.now(), 0});
    crossings_.begin_task(static_cast<int>(i));
    run_section(section_of(t.phase), t.stage, t.micro_batch);
    outputs_.put(t.micro_batch);
    crossings_.end_task();
    p_->tasks.back().end = values_.now();
  }
  crossings_.end_of_tasks();
  for (int m = 0; m < values_.micro_batches; ++m) outputs_.put(m, true);
  crossings_.release_rest();
  if (gradients_.any()) put_updates_last();
  run_section(Section::kOnceAfter, 0, 0);
  outputs_.put(0, true);
  outputs_.finish();
  values_.place();
  return std::move(p_);
}

void Lowering::sort_nodes() {
  for (auto& lists : lists_) lists.resize(to_size(stages_ * g_.variants()));
  for (size_t i = 0; i < g_.nodes.size(); ++i) {
    const Node& node = g_.nodes[i];
    const auto n = static_cast<NodeId>(i);
    if (!values_.takes_part(node) || crossings_.crosses(n)) continue;
    list(node.section, std::clamp<int>(node.stage, 0, stages_ - 1), node.variant).push_back(n);
    if (node.kind == NodeKind::kAccumulate && values_.reads(node.in[0]) == 1) sum_of_[node.in[0]] = node.out[0];
  }
}

void Lowering::put_updates_last() {
  auto& nodes = list(Section::kOnceAfter, 0, 0);
  const std::vector<bool> after = after_gradients(g_);
  std::stable_partition(nodes.begin(), nodes.end(), [&](NodeId n) { return !at_index(after, n); });
}

void Lowering::run_section(Section section, int stage, int m) {
  values_.section = section;
  for (NodeId n : list(section, stage, g_.variant(m))) {
    const Node& node = at_index(g_.nodes, n);
    for (ValueId v : node.in) {
      need(v, m);
      HOLON_CHECK(v == kNoValue || !values_.member(v) || values_.array(v, m)->defined(),
                  "{} reads value {} before it is computed", graph::str(g_, node), v);
    }
    (this->*at_index(kLowerings, node.kind).lower)(node, m);
    for (ValueId v : node.in) values_.read_done(v, m);
    for (ValueId v : node.out) crossings_.made(v, m);
  }
}

void Lowering::need(ValueId v, int m) {
  if (v == kNoValue) return;
  crossings_.need(v, m);
  memory_.need(v, m);
}

void Lowering::bind_input(size_t i) {
  if (!values_.member(g_.inputs_of(0)[i])) return;
  const int micro = values_.micro_batches;
  std::vector<std::vector<RowPiece>> pieces;  // of each micro-batch, if known
  bool moves = false;                         // some micro-batch's rows are not together
  for (int m = 0; m < micro; ++m) {
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
  for (int m = 0; m < micro; ++m) {
    const ValueId v = g_.inputs_of(g_.variant(m))[i];
    const Value& value = g_.value(v);
    const Dims shape = values_.local_shape(value);
    Array a = Array::placeholder(shape, contiguous_strides(shape), value.dtype, LoweredValues::device_of(value));
    const int32_t b = values_.new_buffer(a.nbytes(), a.device, Buffer::Kind::kInput);
    Buffer& buffer = values_.buffer(b);
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
    values_.set(v, m, std::move(a), b);
  }
}

void Lowering::bind_outside() {
  p_->moved_rows.resize(g_.n_inputs());
  for (size_t i = 0; i < g_.n_inputs(); ++i) bind_input(i);
  for (size_t e = 0; e < g_.externals.size(); ++e) {
    const External& x = g_.externals[e];
    const Array& own = x.tensor.array();
    if (!own.defined()) continue;
    Array a = own;
    const int32_t b = values_.new_buffer(0, a.device, Buffer::Kind::kExternal);
    values_.buffer(b).index = static_cast<int32_t>(e);
    a.storage = values_.buffer(b).storage;
    a.offset = 0;
    values_.set(x.value, 0, std::move(a), b);
  }
}

std::unique_ptr<Program> lower(const Graph& g, const LoweringOptions& options) { return Lowering(g, options).run(); }

}  // namespace holon::graph
