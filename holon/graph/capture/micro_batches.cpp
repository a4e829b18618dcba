#include "holon/graph/capture/micro_batches.h"

#include <algorithm>
#include <numeric>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/op_names/arithmetic.h"

namespace holon::graph {

namespace {

// Between how many ranks the rows are split.
int64_t row_ranks(const Tensor& t) {
  int64_t ranks = 1;
  if (t.is_global())
    for (int a = 0; a < t.nd_sbp().size(); ++a)
      if (t.nd_sbp()[a].is_split(0)) ranks *= t.placement().hierarchy()[a];
  return ranks;
}

// How many of so many rows are of each rank between which the tensor's rows are split.
std::vector<int64_t> parts_of(int64_t rows, const Tensor& t) {
  std::vector<int64_t> parts{rows};
  for (int a = 0; t.is_global() && a < t.nd_sbp().size(); ++a) {
    if (!t.nd_sbp()[a].is_split(0)) continue;
    const int64_t n = t.placement().hierarchy()[a];
    std::vector<int64_t> finer;
    for (int64_t part : parts)
      for (int64_t k = 0; k < n; ++k) finer.push_back(part / n + (k < part % n));
    parts = std::move(finer);
  }
  return parts;
}

bool has_rows(const Tensor& t) { return t.ndim() > 0; }

// Which values depend on the inputs, or are drawn again.
std::vector<bool> of_inputs(const Graph& g) {
  std::vector<bool> of(g.values.size(), false);
  for (ValueId v : g.only().inputs) at_index(of, v) = true;
  for (auto& n : g.nodes) {
    bool varies = n.draw >= 0;
    for (ValueId v : n.in) varies = varies || (v != kNoValue && at_index(of, v));
    for (ValueId v : n.out) at_index(of, v) = varies;
  }
  return of;
}

// A node that makes another output of an output, in addition to the one that made it.
Node after_output(Graph& g, ValueId& output, NodeKind kind, const GlobalSpec* spec) {
  Node n;
  n.kind = kind;
  if (const NodeId by = at_index(producers(g), output); by >= 0) {
    const Node& producer = at_index(g.nodes, by);
    n.section = producer.section;
    n.stage = producer.stage;
    n.scope = producer.scope;
    n.site = producer.site;
  } else {
    n.stage = -1;
  }
  n.in.push_back(output);
  Value like = g.value(output);
  like.kind = ValueKind::kNode;
  like.index = -1;
  like.spec = spec;
  output = g.add_value(like);
  n.out.push_back(output);
  return n;
}

void weigh(Graph& g, ValueId& output, double factor) {
  Node n = after_output(g, output, NodeKind::kOp, g.value(output).spec);
  n.op = &op::mul_scalar.def();
  n.attrs.push_scalar(Scalar(factor));  // the value; then what has a default
  for (int i = 1; i < n.op->schema.n_attrs; ++i) n.attrs.push_from(n.op->schema.defaults, i);
  g.nodes.push_back(std::move(n));
}

}  // namespace

int64_t equal_rows(const Tensor& input, size_t number, int n) {
  const int64_t rows = input.shape()[0];
  if (n == 1) return rows;
  const int64_t parts = n * row_ranks(input);
  if (rows % parts)
    fail_value("input {} of the graph has {} rows, which {} micro-batches{} do not divide. Pass a multiple of {} rows "
               "(drop_last=True in a loader), choose another number by config.set_gradient_accumulation_steps(), or "
               "allow micro-batches of unequal rows by config.set_gradient_accumulation_steps({}, uneven=True).",
               number, rows, n, parts > n ? fmt::format(" on {} ranks", parts / n) : "", parts, n);
  return rows / n;
}

namespace {

// Whether the ranks that have these parts of an input's rows have whole parts of the finest input's.
bool fits(const std::vector<int64_t>& own, const std::vector<int64_t>& finest, int64_t rows, int64_t finest_rows) {
  if (own.size() == 1) return true;  // all ranks have all rows
  if (finest.size() % own.size()) return false;
  const size_t each = finest.size() / own.size();
  for (size_t p = 0; p < own.size(); ++p) {
    const auto first = finest.begin() + static_cast<std::ptrdiff_t>(p * each);
    if (std::accumulate(first, first + static_cast<std::ptrdiff_t>(each), int64_t{0}) * rows != own[p] * finest_rows)
      return false;
  }
  return true;
}

MicroBatches divide(std::span<const Tensor> inputs, int n, bool uneven) {
  MicroBatches all;
  const bool divides = std::all_of(inputs.begin(), inputs.end(), [&](const Tensor& t) {
    return !has_rows(t) || n == 1 || t.shape()[0] % (n * row_ranks(t)) == 0;
  });
  if (divides || !uneven) {
    all.count = n;
    all.shares.push_back(1.0 / n);
    all.rows.emplace_back();
    for (size_t i = 0; i < inputs.size(); ++i)
      all.rows[0].push_back(has_rows(inputs[i]) ? equal_rows(inputs[i], i, n) : 0);
    return all;
  }
  const size_t first = to_size(std::find_if(inputs.begin(), inputs.end(), has_rows) - inputs.begin());
  const int64_t rows = inputs[first].shape()[0];
  int64_t ranks = 1;
  for (size_t i = first; i < inputs.size(); ++i) {
    if (!has_rows(inputs[i])) continue;
    if (rows == 0 || inputs[i].shape()[0] % rows)
      fail_value("input {} of the graph has {} rows and input {} has {}: with micro-batches of unequal rows each "
                 "input's must be a multiple of the first one's. Pass what does not depend on the rows as a buffer of "
                 "a module, or without axes.",
                 i, inputs[i].shape()[0], first, rows);
    ranks = std::lcm(ranks, row_ranks(inputs[i]));
  }
  const int64_t each = rows / ranks;  // of a rank
  all.count = static_cast<int>(std::clamp<int64_t>(each, 1, n));
  std::vector<int64_t> sizes;
  for (int m = 0; m < all.count; ++m) {
    const int64_t own = each / all.count + (m < each % all.count), rest = m == all.count - 1 ? rows % ranks : 0;
    const int64_t size = own * ranks + rest;
    auto known = std::find(sizes.begin(), sizes.end(), size);
    all.variant_of.push_back(static_cast<int8_t>(known - sizes.begin()));
    if (known == sizes.end()) sizes.push_back(size);
  }
  if (sizes.size() == 1) all.variant_of.clear();
  for (int64_t size : sizes) {
    all.shares.push_back(static_cast<double>(size) / static_cast<double>(rows));
    all.rows.emplace_back();
    for (auto& t : inputs) all.rows.back().push_back(has_rows(t) ? t.shape()[0] / rows * size : 0);
  }
  return all;
}

}  // namespace

MicroBatches divide_rows(std::span<const Tensor> inputs, int n, bool uneven) {
  MicroBatches all = divide(inputs, n, uneven);
  size_t finest = 0;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (has_rows(inputs[i]) && (!has_rows(inputs[finest]) || row_ranks(inputs[i]) > row_ranks(inputs[finest])))
      finest = i;
  all.parts.resize(all.rows.size());
  // Rows of a local tensor are the rank's own: build() says what they are of a global one.
  const bool known = std::none_of(inputs.begin(), inputs.end(), [](auto& t) { return has_rows(t) && t.is_local(); });
  if (all.count == 1 || inputs.empty() || !has_rows(inputs[finest]) || !known) return all;
  for (size_t f = 0; f < all.rows.size(); ++f) {
    const int64_t rows = all.rows[f][finest];
    if (rows > 0) all.parts[f] = parts_of(rows, inputs[finest]);
    for (size_t i = 0; i < inputs.size() && rows > 0; ++i)
      if (has_rows(inputs[i]) && !fits(parts_of(all.rows[f][i], inputs[i]), all.parts[f], all.rows[f][i], rows))
        fail_value("input {} of the graph is {} and input {} is {}: their rows are split between ranks differently, so "
                   "that a micro-batch of one would have other rows than that of the other. Split both in the same way "
                   "along the rows, or pass one as broadcast.",
                   i, inputs[i].spec()->str(), finest, inputs[finest].spec()->str());
  }
  return all;
}

void match_outputs(std::span<Graph> captured, const MicroBatches& all) {
  if (captured.size() < 2) return;
  for (size_t o = 0; o < captured[0].n_outputs(); ++o) {
    const Value& first = captured[0].value(captured[0].only().outputs[o]);
    for (size_t f = 1; f < captured.size(); ++f) {
      Graph& g = captured[f];
      const Value& v = g.value(g.only().outputs[o]);
      if (v.dtype != first.dtype || v.is_global() != first.is_global() || v.shape.size() != first.shape.size())
        fail_value("output {} of the graph is {} {}{} for some micro-batches and {} {}{} for others, whose rows "
                   "differ. Pass batches that the micro-batches divide, or make build() return the same for any rows.",
                   o, name(first.dtype), first.shape, first.is_global() ? "" : ", local", name(v.dtype), v.shape,
                   v.is_global() ? "" : ", local");
      if (v.spec != first.spec) g.nodes.push_back(after_output(g, g.only().outputs[o], NodeKind::kBoxing, first.spec));
    }
  }
  std::vector<std::vector<bool>> varies;
  for (auto& g : captured) varies.push_back(of_inputs(g));
  const std::vector<NodeId> made_by = producers(captured[0]);
  for (size_t o = 0; o < captured[0].n_outputs(); ++o) {
    const ValueId v = captured[0].only().outputs[o];
    const NodeId by = at_index(made_by, v);
    bool weighed = by >= 0 && at_index(captured[0].nodes, by).section == Section::kForward &&
        is_floating(captured[0].value(v).dtype);
    for (size_t f = 0; f < captured.size(); ++f) {
      const ValueId own = captured[f].only().outputs[o];
      weighed = weighed && at_index(varies[f], own) && captured[f].value(own).shape == captured[0].value(v).shape;
    }
    if (!weighed) continue;
    for (size_t f = 0; f < captured.size(); ++f)
      weigh(captured[f], captured[f].only().outputs[o], all.shares[f] * all.count);
  }
}

}  // namespace holon::graph
