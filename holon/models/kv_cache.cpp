#include "holon/models/kv_cache.h"

#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/internal_ops/kv_cache.h"
#include "holon/kernels/copy.h"
#include "holon/ops/index.h"
#include "holon/ops/values.h"
#include "holon/tensor/tracer.h"

namespace holon::models {

namespace {

// The first `length` places of the axis of tokens, from `begin` on.
Array tokens_of(const Array& a, int64_t begin, int64_t length) {
  Dims shape = a.shape;
  shape[2] = length;
  return a.view(shape, a.strides, begin * a.strides[2]);
}

// As x, with room for so many tokens. Places without one hold 0: a step reads them, too, and what its mask hides is
// multiplied by 0, which a NaN would survive.
Tensor room_for(const Tensor& x, int64_t capacity) {
  Dims shape = x.shape();
  shape[2] = capacity;
  Array here;
  if (x.array().defined()) {
    Dims own = x.array().shape;
    own[2] = capacity;
    here = Array::empty(own, x.dtype(), x.array().device);
    kernels::fill(here, Scalar(0));
  }
  return x.is_global() ? Tensor::global(here, shape, x.dtype(), x.spec()) : Tensor::local(here);
}

// The rows of x by a local index, divided as x.
Tensor selected_rows(const Tensor& x, const Tensor& index) {
  if (!x.is_global()) return index_select(x, 0, index);
  const NdSbp layout = x.nd_sbp();
  NdSbp whole_rows = layout;
  for (int i = 0; i < layout.size(); ++i)
    if (layout[i].is_split(0)) whole_rows = whole_rows.with(i, sbp::broadcast());
  const Tensor here = place(index, x.placement(), NdSbp::filled(layout.size(), sbp::broadcast()));
  return index_select(x.to_global(x.placement(), whole_rows), 0, here).to_global(x.placement(), layout);
}

}  // namespace

int64_t KvCache::capacity() const { return layers_.empty() ? 0 : layers_[0].key.size(2); }

Tensor KvCache::seen(const Tensor& held, int64_t length) const {
  const Array here = held.array().defined() ? tokens_of(held.array(), 0, length) : Array();
  if (!held.is_global()) return Tensor::local(here);
  Dims shape = held.shape();
  shape[2] = length;
  return Tensor::global(here, shape, held.dtype(), held.spec());
}

int64_t KvCache::bytes() const {
  int64_t sum = 0;
  for (auto* list : {&layers_, &sources_})
    for (const Layer& l : *list)
      for (const Tensor* t : {&l.key, &l.value})
        if (t->defined() && t->array().defined()) sum += static_cast<int64_t>(t->array().nbytes());
  return sum;
}

void KvCache::grow(Tensor& held, const Tensor& like, int64_t capacity) const {
  Tensor grown = room_for(like, capacity);
  if (length_ > 0 && grown.array().defined()) {
    Array to = tokens_of(grown.array(), 0, length_);
    kernels::copy(tokens_of(held.array(), 0, length_), to);
  }
  held = std::move(grown);
}

void KvCache::reserve(int64_t length) {
  for (Layer& l : layers_)
    for (Tensor* held : {&l.key, &l.value})
      if (held->defined() && held->size(2) < length) grow(*held, *held, length);
}

void KvCache::write(Tensor& held, const Tensor& x) const {
  const int64_t needed = length_ + x.size(2);
  if (!held.defined() || needed > held.size(2)) {
    int64_t capacity = (needed + kPage - 1) / kPage * kPage;
    if (max_length_ > 0) capacity = std::max(needed, std::min(capacity, max_length_));
    grow(held, x, capacity);
  }
  if (!held.array().defined()) return;
  Array to = tokens_of(held.array(), length_, x.size(2));
  kernels::copy(x.array(), to);
}

const StepTensors* KvCache::step_on(const Placement& stage) const {
  for (auto& step : step_)
    if (step.placement == stage) return &step;
  return nullptr;
}

std::pair<Tensor, Tensor> KvCache::append(int64_t layer, const Tensor& key, const Tensor& value) {
  if (grad_enabled())
    fail_runtime("KvCache: gradients are recorded; a cache is for inference. Use NoGradGuard (no_grad() in Python).");
  if (tracer()) return append_captured(layer, key, value);
  if (layer >= static_cast<int64_t>(layers_.size())) layers_.resize(to_size(layer + 1));
  Layer& l = at_index(layers_, layer);
  Tensor k = key, v = value;
  for (auto [held, x] : {std::pair{&l.key, &k}, {&l.value, &v}}) {
    if (length_ > 0 && held->defined()) {
      const Dims &was = held->shape(), &is = x->shape();
      if (was[0] != is[0] || was[1] != is[1] || was[3] != is[3] || held->dtype() != x->dtype())
        fail_value("KvCache: layer {} holds {} rows of {} heads x {} ({}); now they are {} rows of {} heads x {} ({}). "
                   "Use a cache for each batch and model.",
                   layer, was[0], was[1], was[3], name(held->dtype()), is[0], is[1], is[3], name(x->dtype()));
      if (held->spec() != x->spec() && held->is_global() && x->is_global())
        *x = x->to_global(held->placement(), held->nd_sbp());
    }
    if (length_ == 0) *held = {};
    write(*held, *x);
  }
  const int64_t length = length_ + key.size(2);
  return {seen(l.key, length), seen(l.value, length)};
}

std::pair<Tensor, Tensor> KvCache::append_captured(int64_t layer, const Tensor& key, const Tensor& value) const {
  const StepTensors* step = key.is_global() ? step_on(key.placement()) : nullptr;
  if (!step || layer >= static_cast<int64_t>(layers_.size()))
    fail_runtime(
        "KvCache: a graph is captured; its calls take no cache. Leave the cache out, or let generate() compile "
        "its steps (cache_implementation \"static\").");
  const Layer& l = at_index(layers_, layer);
  auto put = [&](const Tensor& held, const Tensor& x) {
    const Tensor made = kv_put(held, x, step->place).to_global(held.placement(), held.nd_sbp());
    tracer()->write("kv_put", held, made);
    return made;
  };
  return {put(l.key, key), put(l.value, value)};
}

void KvCache::advance(int64_t new_tokens, int64_t rows) {
  if (tracer()) return;
  length_ += new_tokens;
  rows_ = rows;
}

std::pair<Tensor, Tensor> KvCache::source(int64_t layer) const {
  // What a first call has left that failed may be of other tokens.
  if (length_ == 0 || layer >= static_cast<int64_t>(sources_.size())) return {};
  const Layer& l = at_index(sources_, layer);
  return {l.key, l.value};
}

void KvCache::keep_source(int64_t layer, const Tensor& key, const Tensor& value) {
  if (layer >= static_cast<int64_t>(sources_.size())) sources_.resize(to_size(layer + 1));
  at_index(sources_, layer) = {key, value};
}

void KvCache::select_rows(const std::vector<int64_t>& rows) {
  for (int64_t row : rows)
    if (row < 0 || row >= rows_)
      fail(ErrorKind::kIndex, "KvCache: row {} is not there; the cache has {} rows.", row, rows_);
  bool same = static_cast<int64_t>(rows.size()) == rows_;
  for (size_t i = 0; same && i < rows.size(); ++i) same = rows[i] == static_cast<int64_t>(i);
  if (same) return;
  NoGradGuard guard;
  const Tensor index = tensor(rows, {static_cast<int64_t>(rows.size())});
  std::vector<Layer> selected;
  for (const Layer& l : layers_) {
    Layer to;
    for (auto [from, held] : {std::pair{&l.key, &to.key}, {&l.value, &to.value}}) {
      const Tensor x = selected_rows(seen(*from, length_), index);
      // The same memory where it fits: a compiled step goes on with it.
      *held = x.shape()[0] == from->size(0) && x.spec() == from->spec() ? *from : room_for(x, from->size(2));
      if (!held->array().defined()) continue;
      Array there = tokens_of(held->array(), 0, length_);
      kernels::copy(x.array(), there);
    }
    selected.push_back(std::move(to));
  }
  for (Layer& l : sources_) l = {selected_rows(l.key, index), selected_rows(l.value, index)};
  layers_ = std::move(selected);
  rows_ = static_cast<int64_t>(rows.size());
}

}  // namespace holon::models
