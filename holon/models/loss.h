// Losses of models, as transformers has them: means over what counts in the whole batch, whichever ranks hold it.
#pragma once

#include <cstdint>

#include "holon/models/layout.h"
#include "holon/tensor/tensor.h"

namespace holon::models {

// Labels [batch, length] that are not counted.
inline constexpr int64_t kIgnored = -100;

// Cross-entropy of logits [batch, length, vocabulary] and labels [batch, length] at the same places; the vocabulary may
// be divided among ranks. Labels are local and alike on all ranks, or global; they go where the logits are. model: for
// messages. Errors (TypeError, ValueError, IndexError): labels of another shape or dtype; one that is neither in
// [0, vocabulary) nor -100.
Tensor token_loss(const char* model, const Tensor& logits, const Tensor& labels, const Layout& layout);
// The same with each label compared with the logits one place before it: the labels are the tokens themselves.
Tensor next_token_loss(const char* model, const Tensor& logits, const Tensor& labels, const Layout& layout);
// Cross-entropy of logits [batch, classes] and labels [batch]. The same errors.
Tensor class_loss(const char* model, const Tensor& logits, const Tensor& labels, const Layout& layout);

}  // namespace holon::models
