#include "holon/autograd/buckets.h"

#include <algorithm>
#include <optional>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/settings.h"
#include "holon/boxing/executor.h"
#include "holon/comm/device/device_communicator.h"
#include "holon/contract/moves.h"
#include "holon/kernels/copy.h"
#include "holon/tensor/node.h"

namespace holon::autograd {

namespace {

// Below this a gradient travels with its neighbours: two copies cost less than a collective.
constexpr int64_t kSmallBytes = 256 << 10;

int64_t bytes_of(const Tensor& t) { return t.numel() * static_cast<int64_t>(size_bytes(t.dtype())); }

// Elements of a row from `at` on, in order, as an array of the shape.
Array piece(const Array& row, int64_t at, const Dims& shape) { return row.view(shape, contiguous_strides(shape), at); }

// Every rank's part is the whole tensor and is summed element by element, so several can be seen as one.
bool joinable(const boxing::Plan& plan) {
  for (Sbp s : plan.from()->nd_sbp)
    if (s.is_split()) return false;
  return plan.steps().size() == 1 && plan.steps()[0].kind == boxing::StepKind::kAllReduce;
}

// Whether small gradients of these layouts, the first of shape `one`, are summed as one tensor of shape `all`.
bool travel_together(const GlobalSpec* from, const GlobalSpec* to, const Dims& one, const Dims& all, DType dtype) {
  if (const auto frozen = contract::sums_gradients_together(from, to, all, dtype)) return *frozen;
  // A way of several steps might add in another order.
  return joinable(boxing::plan(from, to, one, dtype)) && joinable(boxing::plan(from, to, all, dtype));
}

}  // namespace

// Asked at the first gradient that matters: before, a program of local tensors need not have connected to the other
// ranks.
bool GradientBuckets::on(bool device) {
  int64_t& limit = limit_bytes_[device];
  if (limit >= 0) return limit > 0;
  limit = 0;
  // What travels together is the contract's choice, whether a second thread pays here or not.
  if (!contract::sums_gradients_together().value_or(false) &&
      (device ? !comm::device_overlap_wanted() || Context::current().world_size() == 1 : !comm::background_pays()))
    return false;
  double mib = settings::number("HOLON_GRADIENT_BUCKET_MB");
  if (!(mib > 0)) fail_value("HOLON_GRADIENT_BUCKET_MB=\"{}\" is not a size. Give a number of MiB above 0.", mib);
  limit = std::max<int64_t>(1, static_cast<int64_t>(std::min(mib, 1e6) * (1 << 20)));
  return true;
}

bool GradientBuckets::take(TensorImpl& leaf, const Tensor& g) {
  if (!leaf.spec || !g.is_global() || (leaf.meta && !leaf.meta->hooks.empty())) return false;
  if (g.spec() == leaf.spec || g.placement() != leaf.spec->placement || !g.nd_sbp().has_partial()) return false;
  const bool device = !g.placement().device().is_host();
  if (!on(device)) return false;
  if (!buckets_.empty() && buckets_.back()->bytes > 0 && buckets_.back()->device != device) close();
  put(leaf, g);
  Bucket& bucket = *buckets_.back();
  bucket.device = device;
  bucket.items.back().summed = false;
  bucket.bytes += bytes_of(g);
  if (bucket.bytes >= limit_bytes_[device]) close();
  return true;
}

void GradientBuckets::close() {
  let_go();
  plan(*buckets_.back());
  if (buckets_.back()->device) {
    begin(*buckets_.back());
    works_.emplace_back();
  } else {
    works_.push_back(comm::run_in_background([b = buckets_.back()] {
      begin(*b);
      share_out(*b);
    }));
  }
  buckets_.push_back(std::make_shared<Bucket>());
}

void GradientBuckets::put(TensorImpl& leaf, const Tensor& g) {
  if (buckets_.empty()) buckets_.push_back(std::make_shared<Bucket>());
  buckets_.back()->items.push_back({Ref<TensorImpl>(&leaf), g, {}, true});
  held_.insert(&leaf);
}

void GradientBuckets::plan(Bucket& bucket) {
  const contract::BackwardOf backward_of("leaf");
  auto& items = bucket.items;
  for (size_t i = 0; i < items.size();) {
    const Item& first = items[i];
    if (first.summed) {
      ++i;
      continue;
    }
    const GlobalSpec *from = first.gradient.spec(), *to = first.leaf->spec;
    const DType dtype = first.gradient.dtype();
    size_t end = i + 1;
    int64_t together = first.gradient.numel();
    if (bytes_of(first.gradient) < kSmallBytes)
      for (; end < items.size(); ++end) {
        const Item& next = items[end];
        if (next.summed || next.gradient.spec() != from || next.leaf->spec != to || next.gradient.dtype() != dtype ||
            bytes_of(next.gradient) >= kSmallBytes)
          break;
        together += next.gradient.numel();
      }
    Dims shape{together};
    if (end == i + 1 || !travel_together(from, to, first.gradient.shape(), shape, dtype)) {
      shape = first.gradient.shape();
      end = i + 1;
    }
    // One alone is the move that it would be without buckets.
    const char* what = end == i + 1 ? "to_global" : contract::kGradientsTogether;
    bucket.sums.push_back({i, end, contract::plan_move({what, from, to, shape, dtype}), {}, {}});
    i = end;
  }
}

// On whichever thread: touches nothing but the bucket.
void GradientBuckets::begin(Bucket& bucket) {
  auto& items = bucket.items;
  for (Sum& sum : bucket.sums) {
    const Item& first = items[sum.first];
    if (first.gradient.array().defined()) {
      if (sum.end == sum.first + 1) {
        sum.joined = kernels::contiguous(first.gradient.array());
      } else {
        sum.joined = Array::empty(sum.plan.shape(), sum.plan.dtype(), sum.plan.from()->placement.device());
        int64_t at = 0;
        for (size_t k = sum.first; k < sum.end; ++k) {
          const Array& part = items[k].gradient.array();
          Array place = piece(sum.joined, at, part.shape);
          kernels::copy(part, place);
          at += part.numel();
        }
      }
    }
    // Nothing follows the collective on the device where that is all of the plan.
    std::optional<comm::DeviceOverlapScope> beside;
    if (bucket.device && joinable(sum.plan)) beside.emplace();
    sum.sum = boxing::execute(sum.plan, sum.joined);
  }
}

void GradientBuckets::share_out(Bucket& bucket) {
  for (Sum& s : bucket.sums) {
    int64_t at = 0;
    for (size_t k = s.first; k < s.end; ++k) {
      Item& item = bucket.items[k];
      if (s.end == s.first + 1) {
        item.sum = std::move(s.sum);
      } else if (s.joined.defined()) {
        const Dims& shape = item.gradient.shape();
        item.sum = Array::empty(shape, item.gradient.dtype(), item.leaf->spec->placement.device());
        kernels::copy(piece(s.sum, at, shape), item.sum);
        at += shape.numel();
      }
    }
  }
  bucket.sums.clear();
}

// The addends of buckets that are done.
void GradientBuckets::let_go() {
  for (; let_go_ < works_.size() && !buckets_[let_go_]->device && works_[let_go_].done(); ++let_go_)
    for (Item& item : buckets_[let_go_]->items)
      if (!item.summed)
        item.gradient = Tensor::global({}, item.gradient.shape(), item.gradient.dtype(), item.gradient.spec());
}

void GradientBuckets::finish(const std::function<void(TensorImpl&, Tensor)>& add) {
  if (buckets_.empty()) return;
  // This thread has nothing else to do. (On all ranks the same bucket is the last one.)
  plan(*buckets_.back());
  begin(*buckets_.back());
  if (std::any_of(buckets_.begin(), buckets_.end(), [](auto& b) { return b->device; }))
    comm::join_device_communication();
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (i < works_.size()) works_[i].wait();
    share_out(*buckets_[i]);
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
