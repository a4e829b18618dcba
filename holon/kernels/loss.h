// Cross-entropy of rows of logits, and its gradient; also for a part of the classes.
//
// logits: [rows, classes], floating, any strides. target: [rows], int32 or int64, contiguous. loss, lse, picked, dloss:
// [rows], float32 (float64 for float64 logits), contiguous. Errors: a target that is neither a class nor ignored
// (IndexError).
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

struct CrossEntropy {
  int64_t ignore_index = -100;  // rows with this target have loss 0 and gradient 0
  double label_smoothing = 0;
  // Where the logits hold the classes [class_offset, class_offset + their columns) of num_classes; -1: they hold all.
  int64_t class_offset = 0;
  int64_t num_classes = -1;
};

// loss = lse - picked, lse = log(sum(exp(logits))), picked = (1 - s) logits[target] + s / classes sum(logits).
void cross_entropy(const Array& logits, const Array& target, const CrossEntropy& options, Array& loss, Array& lse);
// The two parts of it that a part of the classes has: lse by log_sum_exp() (softmax.h), and this. The first joins the
// parts by log(sum(exp())), the second by a sum; rows to be ignored have 0, and their loss must be set to 0.
void cross_entropy_picked(const Array& logits, const Array& target, const CrossEntropy& options, Array& picked);
// dlogits = dloss (softmax(logits) - (1 - s) onehot(target) - s / classes), with the lse of all classes.
void cross_entropy_backward(const Array& logits, const Array& target, const CrossEntropy& options, const Array& lse,
                            const Array& dloss, Array& dlogits);

// loss = -log_probability[target] and its gradient.
void nll(const Array& log_probability, const Array& target, const CrossEntropy& options, Array& loss);
void nll_backward(const Array& target, const CrossEntropy& options, const Array& dloss, Array& dlog_probability);

}  // namespace holon::kernels
