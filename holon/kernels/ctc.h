// Connectionist temporal classification: the probability of a labelling, summed over all its alignments with the steps
// (A. Graves et al., "Connectionist Temporal Classification", ICML 2006), and its derivative.
//
// log_probs: [steps, n, classes], float32 or float64, contiguous. targets: [n, longest], int64, contiguous: of sample i
// the first target_lengths[i] are its labels. input_lengths, target_lengths: [n], int64, contiguous. loss: [n], of
// log_probs' dtype. alpha: [n, steps, 2 longest + 1], float64: the logarithms of the forward probabilities, which the
// derivative reads. Errors: a length outside [0, steps] or [0, longest] (ValueError), a label outside [0, classes)
// (IndexError).
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

// loss = -log p(labels); infinite where no alignment fits the steps.
void ctc_loss(const Array& log_probs, const Array& targets, const Array& input_lengths, const Array& target_lengths,
              int64_t blank, Array& loss, Array& alpha);
// d = dloss times the derivative of the loss by each log probability, 0 beyond a sample's steps and where dloss is 0.
void ctc_loss_backward(const Array& dloss, const Array& log_probs, const Array& targets, const Array& input_lengths,
                       const Array& target_lengths, const Array& alpha, int64_t blank, Array& d);

}  // namespace holon::kernels
