#include "holon/autograd/buckets.h"

#include <algorithm>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/settings.h"
#include "holon/boxing/executor.h"
#include "holon/kernels/cpu/copy.h"

namespace holon::autograd {

namespace {

// Below this a gradient travels with its neighbours: two copies weigh less than a meeting of the ranks.
constexpr int64_t kSmallBytes = 256 << 10;

int64_t bytes_of(const Tensor& t) { return t.numel() * static_cast<int64_t>(size_bytes(t.dtype())); }

// Elements of a row from `at` on, in order, as an array of the shape.
Array piece(const Array& row, size_t at, const Dims& shape) {
  return row.view(shape, contiguous_strides(shape), static_cast<int64_t>(at));
}

// Every rank's part is the whole tensor and is summed element by element, so several can be seen as one.
bool joinable(const boxing::Plan& plan) {
  for (Sbp s : plan.from()->nd_sbp)
    if (s.is_split()) return false;
  return plan.steps().size() == 1 && plan.steps()[0].kind == boxing::StepKind::kAllReduce;
}

}  // namespace

// Asked at the first gradient that matters: before, a program of local tensors need not have met the other ranks.
bool GradientBuckets::on() {
  if (limit_bytes_ >= 0) return limit_bytes_ > 0;
  limit_bytes_ = 0;
  if (!comm::background_pays()) return false;
  double mib = settings::number("HOLON_GRADIENT_BUCKET_MB");
  if (!(mib > 0)) fail_value("HOLON_GRADIENT_BUCKET_MB=\"{}\" is no size. Give a number of MiB above 0.", mib);
  limit_bytes_ = std::max<int64_t>(1, static_cast<int64_t>(std::min(mib, 1e6) * (1 << 20)));
  return true;
}

bool GradientBuckets::take(TensorImpl& leaf, const Tensor& g) {
  if (!leaf.spec || !g.is_global() || (leaf.meta && !leaf.meta->hooks.empty())) return false;
  if (g.spec() == leaf.spec || g.placement() != leaf.spec->placement || !g.nd_sbp().has_partial() || !on())
    return false;
  // A device's communication is asynchronous without this.
  if (g.placement().device().is_cuda()) return false;
  put(leaf, g);
  Bucket& bucket = *buckets_.back();
  bucket.items.back().summed = false;
  bucket.bytes += bytes_of(g);
  if (bucket.bytes < limit_bytes_) return true;
  let_go();
  works_.push_back(comm::run_in_background([b = buckets_.back()] { sum_up(*b); }));
  buckets_.push_back(std::make_shared<Bucket>());
  return true;
}

void GradientBuckets::put(TensorImpl& leaf, const Tensor& g) {
  if (buckets_.empty()) buckets_.push_back(std::make_shared<Bucket>());
  buckets_.back()->items.push_back({Ref<TensorImpl>(&leaf), g, {}, true});
  held_.insert(&leaf);
}

// On whichever thread: touches nothing but the bucket.
void GradientBuckets::sum_up(Bucket& bucket) {
  auto& items = bucket.items;
  for (size_t i = 0; i < items.size();) {
    Item& first = items[i];
    if (first.summed) {
      ++i;
      continue;
    }
    const GlobalSpec *from = first.gradient.spec(), *to = first.leaf->spec;
    const DType dtype = first.gradient.dtype();
    boxing::Plan plan = boxing::plan(from, to, first.gradient.shape(), dtype);
    size_t end = i + 1;
    int64_t together = first.gradient.numel();
    if (bytes_of(first.gradient) < kSmallBytes && joinable(plan))
      for (; end < items.size(); ++end) {
        const Item& next = items[end];
        if (next.summed || next.gradient.spec() != from || next.leaf->spec != to || next.gradient.dtype() != dtype ||
            bytes_of(next.gradient) >= kSmallBytes)
          break;
        together += next.gradient.numel();
      }
    if (end > i + 1) {
      plan = boxing::plan(from, to, {together}, dtype);
      if (!joinable(plan)) {  // a way of several steps might add in another order
        plan = boxing::plan(from, to, first.gradient.shape(), dtype);
        end = i + 1;
      }
    }
    if (end == i + 1) {
      first.sum = boxing::execute(plan, first.gradient.array());
    } else {
      Array joined;
      const bool here = first.gradient.array().defined();
      if (here) {
        joined = Array::empty({together}, dtype, from->placement.device());
        for (size_t k = i, at = 0; k < end; ++k) {
          const Array& part = items[k].gradient.array();
          Array place = piece(joined, at, part.shape);
          kernels::copy(part, place);
          at += static_cast<size_t>(part.numel());
        }
      }
      Array sum = boxing::execute(plan, joined);
      for (size_t k = i, at = 0; here && k < end; ++k) {
        items[k].sum = Array::empty(items[k].gradient.shape(), dtype, to->placement.device());
        kernels::copy(piece(sum, at, items[k].sum.shape), items[k].sum);
        at += static_cast<size_t>(items[k].sum.numel());
      }
    }
    i = end;
  }
}

// The addends of buckets that are done.
void GradientBuckets::let_go() {
  for (; let_go_ < works_.size() && works_[let_go_].done(); ++let_go_)
    for (Item& item : buckets_[let_go_]->items)
      if (!item.summed)
        item.gradient = Tensor::global({}, item.gradient.shape(), item.gradient.dtype(), item.gradient.spec());
}

void GradientBuckets::finish(const std::function<void(TensorImpl&, Tensor)>& add) {
  if (buckets_.empty()) return;
  // This thread has nothing else to do. (On all ranks the same bucket is the last one.)
  sum_up(*buckets_.back());
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (i < works_.size()) works_[i].wait();
    for (Item& item : buckets_[i]->items) {
      Tensor g = item.summed
          ? item.gradient
          : Tensor::global(std::move(item.sum), item.gradient.shape(), item.gradient.dtype(), item.leaf->spec);
      item.sum = {};
      item.gradient = {};
      add(*item.leaf, std::move(g));
    }
  }
  buckets_.clear();
  works_.clear();
  held_.clear();
}

}  // namespace holon::autograd
