// Connectionist temporal classification. Samples split; steps, labels and classes are whole.
#include "holon/kernels/ctc.h"
#include "holon/internal_ops/ctc.h"

#include <algorithm>
#include <vector>

#include "holon/kernels/copy.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/ctc.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/reduce.h"
#include "holon/ops/reduction.h"
#include "holon/ops/rules.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"
#include "holon/ops/values.h"
#include "holon/ops/whole.h"

namespace holon::ops {
namespace {

Tensor as_indices(const BodyCall& c, size_t i, const char* what) {
  const Tensor& t = c.in(i);
  if (t.dtype() != int64 && t.dtype() != int32)
    fail_type("{}: {} is {}; it must be int64 or int32. Convert it by to(int64).", c.op().name(), what,
              name(t.dtype()));
  return bring_beside(c.in(0), t.dtype() == int64 ? t : cast(t, int64));
}

// Labels one after the other as rows: [n, longest], with blanks behind.
Tensor in_rows(const Tensor& labels, const Tensor& lengths) {
  std::vector<int64_t> all = to_vector<int64_t>(labels), sizes = to_vector<int64_t>(lengths);
  int64_t sum = 0, longest = 0;
  for (int64_t size : sizes) {
    if (size < 0) fail_value("ctc_loss: a target length is {}; it must not be negative.", size);
    sum += size;
    longest = std::max(longest, size);
  }
  if (sum != static_cast<int64_t>(all.size()))
    fail_value("ctc_loss: targets has {} labels one after the other, the target lengths add up to {}. They must be "
               "the same; or give targets as [n, longest].",
               all.size(), sum);
  Array rows = Array::empty({static_cast<int64_t>(sizes.size()), longest}, int64);
  int64_t *to = rows.data<int64_t>(), from = 0;
  for (size_t i = 0; i < sizes.size(); ++i)
    for (int64_t k = 0; k < longest; ++k) *to++ = k < sizes[i] ? at_index(all, from++) : 0;
  return beside(lengths, rows);
}

void check_operands(Infer& c, size_t log_probs) {
  c.require_dtype(c.dtype_of(log_probs) == float32 || c.dtype_of(log_probs) == float64,
                  "log_probs must be float32 or float64", "Call ctc_loss.");
  c.require(c.ndim(log_probs) == 3 && c.ndim(log_probs + 1) == 2, "log_probs has three axes, targets two",
            "Call ctc_loss.");
  const int64_t n = c.shape(log_probs)[1];
  c.require(c.shape(log_probs + 1)[0] == n, "targets has another number of samples", "Call ctc_loss.");
  for (size_t i : {log_probs + 1, log_probs + 2, log_probs + 3})
    c.require_dtype(c.dtype_of(i) == int64, "targets and lengths are int64", "Call ctc_loss.");
  for (size_t i : {log_probs + 2, log_probs + 3}) require_shape(c, i, {n});
}

Dims alpha_shape(const Dims& log_probs, const Dims& targets) {
  return {log_probs[1], log_probs[0], 2 * targets[1] + 1};
}

}  // namespace

HOLON_OP(ctc_loss,
         "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank=0, str "
         "reduction='mean', bool zero_infinity=False) -> Tensor")
    .doc("-log of the probability of the labels summed over all alignments with the steps, for log_probs [steps, n, "
         "classes] (or [steps, classes]) and targets [n, longest] (or one after the other, [sum of target_lengths]). "
         "'mean' divides each loss by its number of labels first. zero_infinity: where no alignment fits, the loss and "
         "its gradient are 0. The gradient is that by log_probs themselves; there is no second derivative.",
         "ctc_loss(log_softmax(ones(4, 1, 3), 2), ones(1, 2, dtype=int64), tensor([4]), tensor([2]))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      Tensor p = c.in(0), targets = as_indices(c, 1, "targets"), steps = as_indices(c, 2, "input_lengths"),
             lengths = as_indices(c, 3, "target_lengths");
      if (!is_floating(p.dtype()))
        fail_type("ctc_loss: log_probs is {}; it takes floating point tensors only. Convert it first, e.g. "
                  "x.to(float32).",
                  name(p.dtype()));
      if (p.ndim() != 3 && p.ndim() != 2)
        fail_value("ctc_loss: log_probs is {}; it takes [steps, n, classes], or [steps, classes] for one sample.",
                   p.shape());
      const int64_t blank = c.i("blank"_attr), classes = p.shape().back();
      if (blank < 0 || blank >= classes)
        fail_value("ctc_loss: blank is {}; it must be one of the {} classes of log_probs {}.", blank, classes,
                   p.shape());
      const bool batched = p.ndim() == 3;
      if (!batched) {
        p = unsqueeze(p, 1);
        if (targets.ndim() == 1) targets = unsqueeze(targets, 0);
        if (steps.ndim() == 0) steps = unsqueeze(steps, 0);
        if (lengths.ndim() == 0) lengths = unsqueeze(lengths, 0);
      }
      const Dims samples{p.shape()[1]};
      if (steps.shape() != samples || lengths.shape() != samples)
        fail_value("ctc_loss: input_lengths is {}, target_lengths {}; each needs one number for each of the {} samples "
                   "of log_probs {}.",
                   steps.shape(), lengths.shape(), samples[0], c.in(0).shape());
      if (targets.ndim() == 1) targets = in_rows(targets, lengths);
      if (targets.ndim() != 2 || targets.shape()[0] != samples[0])
        fail_value("ctc_loss: targets is {}; it must be [n, longest] for the {} samples, or the labels one after the "
                   "other.",
                   c.in(1).shape(), samples[0]);
      const DType given = p.dtype();
      if (given != float64 && given != float32) p = cast(p, float32);
      Tensor loss = ctc_loss_alpha(p, targets, steps, lengths, blank)[0];
      if (c.b("zero_infinity"_attr)) loss = masked_fill(loss, isinf(loss), 0.0);
      if (c.text("reduction"_attr) == "mean") loss = div(loss, cast(maximum(lengths, 1), loss.dtype()));
      loss = reduced(c, loss);
      if (!batched && loss.ndim() == 1) loss = squeeze(loss, Dims{0});
      c.out.push_back(loss.dtype() == given ? loss : cast(loss, given));
    });
HOLON_OP(ctc_loss_alpha,
         "ctc_loss_alpha(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank) -> "
         "(Tensor, Tensor)")
    .doc("ctc_loss of each sample, and the logarithms of the forward probabilities.")
    .hidden()
    .infer([](Infer& c) {
      check_operands(c, 0);
      c.out({c.shape(0)[1]}, c.dtype_of(0));
      c.out(alpha_shape(c.shape(0), c.shape(1)), float64);
    })
    .rule([](RuleCall& r) {
      const int f = r.rule.factor();
      r.rule.in(0, 1, f);
      for (size_t i : {1, 2, 3}) r.rule.in(i, 0, f);
      for (size_t o : {0, 1}) r.rule.out(o, 0, f);
    })
    .kernel([](KernelCall& c) {
      using kernels::contiguous;
      kernels::ctc_loss(contiguous(c.in(0)), contiguous(c.in(1)), contiguous(c.in(2)), contiguous(c.in(3)),
                        c.i("blank"_attr), c.out(0), c.out(1));
    })
    .saves({0, 1, 2, 3}, {1})
    .grad([](Grad& g) {
      if (g.has_dy()) g.dx(0, ctc_loss_backward(g.dy(), g.x(0), g.x(1), g.x(2), g.x(3), g.y(1), g.i("blank"_attr)));
    });
HOLON_OP(ctc_loss_backward,
         "ctc_loss_backward(Tensor dy, Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
         "Tensor alpha, int blank) -> Tensor")
    .doc("Gradient of ctc_loss_alpha in log_probs.")
    .hidden()
    .infer([](Infer& c) {
      check_operands(c, 1);
      require_shape(c, 0, {c.shape(1)[1]});
      c.require(c.shape(5) == alpha_shape(c.shape(1), c.shape(2)), "alpha is of other steps or labels",
                "Call ctc_loss.");
      c.out(c.shape(1), c.dtype_of(1));
    })
    .rule([](RuleCall& r) {
      const int f = r.rule.factor();
      r.rule.in(1, 1, f);
      for (size_t i : {0, 2, 3, 4, 5}) r.rule.in(i, 0, f);
      r.rule.out(0, 1, f);
    })
    .linear_in({0})
    .kernel([](KernelCall& c) {
      using kernels::contiguous;
      Array dy = contiguous(c.in(0));
      if (dy.dtype != c.in(1).dtype) {
        Array converted = Array::empty(dy.shape, c.in(1).dtype, dy.device);
        kernels::copy(dy, converted);
        dy = converted;
      }
      kernels::ctc_loss_backward(dy, contiguous(c.in(1)), contiguous(c.in(2)), contiguous(c.in(3)), contiguous(c.in(4)),
                                 contiguous(c.in(5)), c.i("blank"_attr), c.out());
    });

}  // namespace holon::ops
