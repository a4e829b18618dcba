// Losses: numbers of what a model gave and what was wanted, averaged ("mean"), added up ("sum") or each ("none").
#pragma once

#include "holon/nn/module.h"
#include "holon/ops.h"

namespace holon::nn {

class MSELoss : public Layer<MSELoss> {
 public:
  explicit MSELoss(std::string_view reduction = "mean") : reduction_(reduction) {}
  Tensor forward(const Tensor& x, const Tensor& target) const { return mse_loss(x, target, {.reduction = reduction_}); }

 private:
  std::string reduction_;
};

class CrossEntropyLoss : public Layer<CrossEntropyLoss> {
 public:
  explicit CrossEntropyLoss(const CrossEntropyOptions& options = {})
      : ignore_index_(options.ignore_index), reduction_(options.reduction), label_smoothing_(options.label_smoothing) {}
  Tensor forward(const Tensor& logits, const Tensor& target) const {
    return cross_entropy(logits, target,
                         {.ignore_index = ignore_index_, .reduction = reduction_, .label_smoothing = label_smoothing_});
  }

 private:
  int64_t ignore_index_;
  std::string reduction_;
  double label_smoothing_;
};

}  // namespace holon::nn
