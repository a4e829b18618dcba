#include "holon/models/loss.h"

#include "holon/base/error.h"
#include "holon/models/inputs.h"
#include "holon/ops/cast.h"
#include "holon/ops/class_loss.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/tensor/tracer.h"

namespace holon::models {

namespace {

// The labels on the logits' ranks.
Tensor placed(const char* model, const Tensor& logits, const Tensor& labels, const Layout& layout) {
  Dims wanted = logits.shape();
  const int64_t classes = wanted.back();
  wanted.resize(wanted.size() - 1);
  if (labels.dtype() != int64 && labels.dtype() != int32)
    fail_type("{}: labels are {}; they must be int64 or int32. Convert them by to(int64).", model,
              name(labels.dtype()));
  if (labels.shape() != wanted)
    fail_value("{}: labels have shape {}; logits {} need {}.", model, labels.shape(), logits.shape(), wanted);
  if (!tracer() && labels.numel() > 0) {
    NoGradGuard guard;
    const Tensor whole = whole_on_each(labels), counted = masked_fill(whole, eq(whole, kIgnored), 0);
    const int64_t low = amin(counted).item().as_int(), high = amax(counted).item().as_int();
    if (low < 0 || high >= classes)
      fail(ErrorKind::kIndex, "{}: labels hold {}, which is neither in [0, {}) nor {} (not counted).", model,
           low < 0 ? low : high, classes, kIgnored);
  }
  return by_rows(labels, layout, labels.size(0)).to(int64);
}

}  // namespace

Tensor token_loss(const char* model, const Tensor& logits, const Tensor& labels, const Layout& layout) {
  // Classes as axis 1, where cross_entropy() expects them: merging the rows would need rows that divide evenly.
  return cross_entropy(logits.transpose(1, 2), placed(model, logits, labels, layout));
}

Tensor next_token_loss(const char* model, const Tensor& logits, const Tensor& labels, const Layout& layout) {
  // A label moves to the place before it, which may be another rank's.
  const NdSbp rows = layout.with_positions(layout.rows, sbp::broadcast());
  const Tensor here = placed(model, logits, labels, layout).to_global(layout.placement, rows);
  const Tensor nothing =
      full({here.size(0), 1}, kIgnored, {.placement = layout.placement, .sbp = rows, .dtype = int64});
  const Tensor next = cat({slice(here, 1, 1), nothing}, 1).to_global(layout.placement, layout.rows);
  return cross_entropy(logits.transpose(1, 2), next);
}

Tensor class_loss(const char* model, const Tensor& logits, const Tensor& labels, const Layout& layout) {
  return cross_entropy(logits, placed(model, logits, labels, layout));
}

}  // namespace holon::models
