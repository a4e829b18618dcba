#include "holon/models/decode_step.h"

#include <utility>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/global/slice.h"
#include "holon/graph/nn_graph.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/on_device.h"
#include "holon/ops/cast.h"
#include "holon/ops/values.h"

namespace holon::models {

namespace {

// Writes this rank's part of a tensor, an input of the graph, whose whole value is `values`.
template <class T>
void write(Tensor& t, const std::vector<T>& values) {
  const Array& here = t.array();
  if (!here.defined()) return;
  const int index = t.placement().index_of(Context::current().rank());
  const Region part = region_of(t.shape(), t.placement(), t.nd_sbp(), index);
  // All tensors here have one row of values for each row of the batch, or one for all.
  const int64_t width = t.size(0) ? t.numel() / t.size(0) : 0;
  Array host = here.device.is_host() ? here : Array::empty(here.shape, here.dtype);
  for (int64_t i = 0; i < host.numel(); ++i)
    host.data<T>()[i] = static_cast<T>(values[to_size(part.offset[0] * width + i)]);
  if (here.device.is_host()) return;
  Array to = here;
  kernels::copy(host, to);
}

Tensor blank(const Dims& shape, DType dtype, const Layout& layout, const NdSbp& sbp) {
  const Tensor zero = Tensor::local([&] {
    Array a = Array::empty(shape, dtype);
    kernels::fill(a, 0);
    return a;
  }());
  return place(zero, layout.placement, sbp);
}

}  // namespace

struct DecodeStep::Graph : nn::Graph {
  Graph(const Model& m, KvCache& c) : model(m), cache(c) {}

  // inputs: the tokens, then what each stage has.
  std::vector<Tensor> build(TensorList in) override {
    std::vector<StepTensors> stages;
    size_t at = 1;
    for (auto& layout : model.layouts()) {
      StepTensors s{.placement = layout.placement, .place = in[at], .positions = in[at + 1]};
      at += 2;
      if (padded) s.seen = in[at++];
      stages.push_back(std::move(s));
    }
    cache.set_step(std::move(stages));
    const Tensor logits = model(in[0], {.cache = &cache, .logits_to_keep = 1});
    cache.set_step({});
    return {
        logits.to_global(Placement::all(name(model.layouts().back().placement.device_type())), NdSbp{sbp::broadcast()})
            .to(float32)};
  }
  const Model& model;
  KvCache& cache;
  bool padded = false;
};

DecodeStep::DecodeStep(const Model& model, KvCache& cache, const Rows& mask)
    : model_(model), cache_(cache), rows_(cache.rows()), capacity_(cache.capacity()), padded_(mask.count() > 0) {
  NoGradGuard guard;
  const auto& layouts = model_.layouts();
  ids_ = blank({rows_, 1}, int64, layouts.front(), layouts.front().rows);
  for (auto& layout : layouts) {
    StepTensors s{.placement = layout.placement, .place = blank({1}, int64, layout, layout.whole)};
    s.positions = blank({padded_ ? rows_ : 1, 1}, int64, layout, padded_ ? layout.rows : layout.whole);
    if (padded_) s.seen = blank({rows_, 1, 1, capacity_}, boolean, layout, layout.rows);
    stages_.push_back(std::move(s));
  }
  if (padded_) set_mask(mask);
  graph_ = std::make_unique<Graph>(model_, cache_);
  graph_->padded = padded_;
}

DecodeStep::~DecodeStep() = default;

bool DecodeStep::fits(int64_t rows) const {
  return rows == rows_ && cache_.capacity() == capacity_ && cache_.length() < capacity_;
}

void DecodeStep::set_mask(const Rows& mask) {
  std::vector<char> seen(to_size(rows_ * capacity_), 1);
  for (int64_t i = 0; i < rows_; ++i)
    for (int64_t j = 0; j < mask.length; ++j) at_index(seen, i * capacity_ + j) = mask.row(i)[to_size(j)] != 0;
  for (auto& s : stages_) write<bool>(s.seen, std::vector<bool>(seen.begin(), seen.end()));
}

Logits DecodeStep::run(const std::vector<int64_t>& tokens, const std::vector<int64_t>& positions) {
  NoGradGuard guard;
  const std::vector<int64_t> place{cache_.length()};
  write<int64_t>(ids_, tokens);
  std::vector<Tensor> inputs{ids_};
  for (auto& s : stages_) {
    write<int64_t>(s.place, place);
    write<int64_t>(s.positions, padded_ ? positions : place);
    inputs.push_back(s.place);
    inputs.push_back(s.positions);
    if (padded_) inputs.push_back(s.seen);
  }
  const Tensor logits = (*graph_)(inputs)[0];
  cache_.advance(1, rows_);
  const Array here = kernels::contiguous(kernels::on_device(logits.array(), Device()));
  const auto* first = here.data<float>();
  return {std::vector<float>(first, first + here.numel()), logits.size(2)};
}

}  // namespace holon::models
