#include "holon/models/router_loss.h"

#include "holon/base/error.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/index.h"
#include "holon/ops/norm.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::models {

namespace {

Tensor both(const Tensor& a, const Tensor& b) { return !a.defined() ? b : !b.defined() ? a : a + b; }

}  // namespace

Tensor RouterLosses::counted(const Layout& layout) const {
  NoGradGuard guard;
  const Tensor mask = by_rows(mask_, layout, mask_.size(0));
  return (mask.dtype() == boolean ? mask : ne(mask, 0)).to(float32);
}

RouterLosses::Sums RouterLosses::added_up(const Layout& to) const {
  auto one = [&](const Tensor& before, const Tensor& here) {
    if (!here.defined()) return Tensor();
    return both(before, here.to_global(layout_.placement, layout_.whole)).to_global(to.placement, to.whole);
  };
  return {one(before_.chosen, here_.chosen), one(before_.probability, here_.probability), one(before_.z, here_.z)};
}

void RouterLosses::add(const Tensor& logits, const Tensor& experts, const Layout& layout) {
  if (layers_ > 0 && !(layout.placement == layout_.placement)) {
    before_ = added_up(layout);
    here_ = {};
    mask_here_ = {};
  }
  layout_ = layout;
  ++layers_;
  tokens_ = logits.size(0) * logits.size(1);
  if (mask_.defined() && !mask_here_.defined()) mask_here_ = counted(layout);
  if (balance_ != 0) {
    Tensor probability = softmax(logits, -1), chosen;
    {
      NoGradGuard guard;
      Tensor ones = ones_like(experts).to(float32);
      if (mask_here_.defined()) ones = ones * unsqueeze(mask_here_, -1);
      chosen = scatter_add(zeros_like(logits), -1, experts, ones);
    }
    if (mask_here_.defined()) probability = probability * unsqueeze(mask_here_, -1);
    here_.chosen = both(here_.chosen, sum(chosen, {0, 1}));
    here_.probability = both(here_.probability, sum(probability, {0, 1}));
  }
  if (z_ != 0) {
    Tensor z = square(logsumexp(logits, {-1}));
    if (mask_here_.defined()) z = z * mask_here_;
    here_.z = both(here_.z, sum(z));
  }
}

Tensor RouterLosses::total(const Layout& last) {
  HOLON_CHECK(layers_ > 0, "RouterLosses: no layer was added");
  const Sums sums = added_up(last);
  const auto layers = static_cast<double>(layers_);
  // Of tokens that count, in all layers; one at least, so that a batch of padding alone has losses of 0.
  Tensor counts;
  if (mask_.defined()) {
    NoGradGuard guard;
    counts = clamp(sum(counted(last)).to_global(last.placement, last.whole), 1.0) * layers;
  }
  const double all = static_cast<double>(tokens_ > 0 ? tokens_ : 1) * layers;
  auto mean = [&](const Tensor& x) { return counts.defined() ? x / counts : x / all; };
  Tensor loss;
  if (balance_ != 0) {
    const auto experts = static_cast<double>(sums.chosen.size(0));
    loss = sum(mean(sums.chosen) * mean(sums.probability)) * (balance_ * experts);
  }
  if (z_ != 0) loss = both(loss, mean(sums.z) * z_);
  return loss;
}

}  // namespace holon::models
