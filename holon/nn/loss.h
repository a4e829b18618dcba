// Losses: numbers of what a model gave and what was wanted, averaged ("mean"), added up ("sum") or each ("none").
#pragma once

#include "holon/nn/module.h"
#include "holon/ops/class_loss.h"
#include "holon/ops/ctc.h"
#include "holon/ops/layers.h"
#include "holon/ops/likelihood_loss.h"
#include "holon/ops/loss.h"
#include "holon/ops/margin_loss.h"

namespace holon::nn {

class L1Loss : public Layer<L1Loss> {
 public:
  explicit L1Loss(std::string_view reduction = "mean") : reduction_(reduction) {}
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return l1_loss(input, target, {.reduction = reduction_});
  }

 private:
  std::string reduction_;
};

class MSELoss : public Layer<MSELoss> {
 public:
  explicit MSELoss(std::string_view reduction = "mean") : reduction_(reduction) {}
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return mse_loss(input, target, {.reduction = reduction_});
  }

 private:
  std::string reduction_;
};

class SmoothL1Loss : public Layer<SmoothL1Loss> {
 public:
  explicit SmoothL1Loss(const SmoothL1LossOptions& o = {}) : reduction_(o.reduction), beta_(o.beta) {}
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return smooth_l1_loss(input, target, {.reduction = reduction_, .beta = beta_});
  }

 private:
  std::string reduction_;
  double beta_;
};

class HuberLoss : public Layer<HuberLoss> {
 public:
  explicit HuberLoss(const HuberLossOptions& o = {}) : reduction_(o.reduction), delta_(o.delta) {}
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return huber_loss(input, target, {.reduction = reduction_, .delta = delta_});
  }

 private:
  std::string reduction_;
  double delta_;
};

// weight: one number for each class, or undefined. It is a buffer.
class CrossEntropyLoss : public Layer<CrossEntropyLoss> {
 public:
  explicit CrossEntropyLoss(const CrossEntropyOptions& o = {}, const Tensor& weight = {})
      : ignore_index_(o.ignore_index), reduction_(o.reduction), label_smoothing_(o.label_smoothing) {
    if (weight.defined()) this->weight = register_buffer("weight", weight);
  }
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return cross_entropy(input, target, weight,
                         {.ignore_index = ignore_index_, .reduction = reduction_, .label_smoothing = label_smoothing_});
  }
  Buffer weight;

 private:
  int64_t ignore_index_;
  std::string reduction_;
  double label_smoothing_;
};

// Of log probabilities.
class NLLLoss : public Layer<NLLLoss> {
 public:
  explicit NLLLoss(const NllLossOptions& o = {}, const Tensor& weight = {})
      : ignore_index_(o.ignore_index), reduction_(o.reduction) {
    if (weight.defined()) this->weight = register_buffer("weight", weight);
  }
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return nll_loss(input, target, weight, {.ignore_index = ignore_index_, .reduction = reduction_});
  }
  Buffer weight;

 private:
  int64_t ignore_index_;
  std::string reduction_;
};

// target * (log(target) - input), input being log probabilities; so is target if log_target.
class KLDivLoss : public Layer<KLDivLoss> {
 public:
  explicit KLDivLoss(const KlDivOptions& o = {}) : reduction_(o.reduction), log_target_(o.log_target) {}
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return kl_div(input, target, {.reduction = reduction_, .log_target = log_target_});
  }

 private:
  std::string reduction_;
  bool log_target_;
};

// Of probabilities.
class BCELoss : public Layer<BCELoss> {
 public:
  explicit BCELoss(std::string_view reduction = "mean", const Tensor& weight = {}) : reduction_(reduction) {
    if (weight.defined()) this->weight = register_buffer("weight", weight);
  }
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return binary_cross_entropy(input, target, weight, {.reduction = reduction_});
  }
  Buffer weight;

 private:
  std::string reduction_;
};

// Of logits. pos_weight: the weight of ones, for each class.
class BCEWithLogitsLoss : public Layer<BCEWithLogitsLoss> {
 public:
  explicit BCEWithLogitsLoss(std::string_view reduction = "mean", const Tensor& weight = {},
                             const Tensor& pos_weight = {})
      : reduction_(reduction) {
    if (weight.defined()) this->weight = register_buffer("weight", weight);
    if (pos_weight.defined()) this->pos_weight = register_buffer("pos_weight", pos_weight);
  }
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return binary_cross_entropy_with_logits(input, target, weight, pos_weight, {.reduction = reduction_});
  }
  Buffer weight, pos_weight;

 private:
  std::string reduction_;
};

class SoftMarginLoss : public Layer<SoftMarginLoss> {
 public:
  explicit SoftMarginLoss(std::string_view reduction = "mean") : reduction_(reduction) {}
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return soft_margin_loss(input, target, {.reduction = reduction_});
  }

 private:
  std::string reduction_;
};

// input where target is 1, max(0, margin - input) where it is -1.
class HingeEmbeddingLoss : public Layer<HingeEmbeddingLoss> {
 public:
  explicit HingeEmbeddingLoss(const HingeEmbeddingLossOptions& o = {}) : margin_(o.margin), reduction_(o.reduction) {}
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return hinge_embedding_loss(input, target, {.margin = margin_, .reduction = reduction_});
  }

 private:
  double margin_;
  std::string reduction_;
};

// max(0, -target * (input1 - input2) + margin).
class MarginRankingLoss : public Layer<MarginRankingLoss> {
 public:
  explicit MarginRankingLoss(const MarginRankingLossOptions& o = {}) : margin_(o.margin), reduction_(o.reduction) {}
  Tensor forward(const Tensor& input1, const Tensor& input2, const Tensor& target) const {
    return margin_ranking_loss(input1, input2, target, {.margin = margin_, .reduction = reduction_});
  }

 private:
  double margin_;
  std::string reduction_;
};

// 1 - cosine of two rows where target is 1, max(0, cosine - margin) where it is -1.
class CosineEmbeddingLoss : public Layer<CosineEmbeddingLoss> {
 public:
  explicit CosineEmbeddingLoss(const CosineEmbeddingLossOptions& o = {}) : margin_(o.margin), reduction_(o.reduction) {}
  Tensor forward(const Tensor& input1, const Tensor& input2, const Tensor& target) const {
    return cosine_embedding_loss(input1, input2, target, {.margin = margin_, .reduction = reduction_});
  }

 private:
  double margin_;
  std::string reduction_;
};

// max(0, distance of anchor and positive - distance of anchor and negative + margin).
class TripletMarginLoss : public Layer<TripletMarginLoss> {
 public:
  explicit TripletMarginLoss(const TripletMarginLossOptions& o = {})
      : margin_(o.margin), p_(o.p), eps_(o.eps), swap_(o.swap), reduction_(o.reduction) {}
  Tensor forward(const Tensor& anchor, const Tensor& positive, const Tensor& negative) const {
    return triplet_margin_loss(anchor, positive, negative,
                               {.margin = margin_, .p = p_, .eps = eps_, .swap = swap_, .reduction = reduction_});
  }

 private:
  double margin_, p_, eps_;
  bool swap_;
  std::string reduction_;
};

// Of the logarithms of rates (of rates themselves unless log_input) and counts. full: with Stirling's approximation of
// what depends on the counts only.
class PoissonNLLLoss : public Layer<PoissonNLLLoss> {
 public:
  explicit PoissonNLLLoss(const PoissonNllLossOptions& o = {})
      : log_input_(o.log_input), full_(o.full), eps_(o.eps), reduction_(o.reduction) {}
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return poisson_nll_loss(input, target,
                            {.log_input = log_input_, .full = full_, .eps = eps_, .reduction = reduction_});
  }

 private:
  bool log_input_, full_;
  double eps_;
  std::string reduction_;
};

// Of means, values and variances. full: with the constant log(2 pi) / 2; eps: the least variance.
class GaussianNLLLoss : public Layer<GaussianNLLLoss> {
 public:
  explicit GaussianNLLLoss(bool full = false, double eps = 1e-6, std::string_view reduction = "mean")
      : full_(full), eps_(eps), reduction_(reduction) {}
  Tensor forward(const Tensor& input, const Tensor& target, const Tensor& var) const {
    return gaussian_nll_loss(input, target, var, full_, eps_, reduction_);
  }

 private:
  bool full_;
  double eps_;
  std::string reduction_;
};

// max(0, margin - the target's score + another's)^p, p being 1 or 2. weight: one number for each class.
class MultiMarginLoss : public Layer<MultiMarginLoss> {
 public:
  explicit MultiMarginLoss(int64_t p = 1, double margin = 1, const Tensor& weight = {},
                           std::string_view reduction = "mean")
      : p_(p), margin_(margin), reduction_(reduction) {
    if (weight.defined()) this->weight = register_buffer("weight", weight);
  }
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return multi_margin_loss(input, target, p_, margin_, weight, reduction_);
  }
  Buffer weight;

 private:
  int64_t p_;
  double margin_;
  std::string reduction_;
};

// max(0, 1 - a target's score + another's), of several targets in a row up to the first negative one.
class MultiLabelMarginLoss : public Layer<MultiLabelMarginLoss> {
 public:
  explicit MultiLabelMarginLoss(std::string_view reduction = "mean") : reduction_(reduction) {}
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return multilabel_margin_loss(input, target, {.reduction = reduction_});
  }

 private:
  std::string reduction_;
};

// The mean over the classes of the binary cross-entropy of logits. weight: one number for each class.
class MultiLabelSoftMarginLoss : public Layer<MultiLabelSoftMarginLoss> {
 public:
  explicit MultiLabelSoftMarginLoss(const Tensor& weight = {}, std::string_view reduction = "mean")
      : reduction_(reduction) {
    if (weight.defined()) this->weight = register_buffer("weight", weight);
  }
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return multilabel_soft_margin_loss(input, target, weight, {.reduction = reduction_});
  }
  Buffer weight;

 private:
  std::string reduction_;
};

// Of log probabilities [steps, n, classes] and labels without alignment; see ctc_loss.
class CTCLoss : public Layer<CTCLoss> {
 public:
  explicit CTCLoss(int64_t blank = 0, std::string_view reduction = "mean", bool zero_infinity = false)
      : blank_(blank), reduction_(reduction), zero_infinity_(zero_infinity) {}
  Tensor forward(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                 const Tensor& target_lengths) const {
    return ctc_loss(log_probs, targets, input_lengths, target_lengths, blank_, reduction_, zero_infinity_);
  }

 private:
  int64_t blank_;
  std::string reduction_;
  bool zero_infinity_;
};

// Not losses, but what some are made of: the cosine of the angle between two rows, and the p-norm of their difference.
class CosineSimilarity : public Layer<CosineSimilarity> {
 public:
  explicit CosineSimilarity(int64_t dim = 1, double eps = 1e-8) : dim_(dim), eps_(eps) {}
  Tensor forward(const Tensor& x1, const Tensor& x2) const { return cosine_similarity(x1, x2, dim_, eps_); }

 private:
  int64_t dim_;
  double eps_;
};

class PairwiseDistance : public Layer<PairwiseDistance> {
 public:
  explicit PairwiseDistance(double p = 2, double eps = 1e-6, bool keepdim = false)
      : p_(p), eps_(eps), keepdim_(keepdim) {}
  Tensor forward(const Tensor& x1, const Tensor& x2) const { return pairwise_distance(x1, x2, p_, eps_, keepdim_); }

 private:
  double p_, eps_;
  bool keepdim_;
};

}  // namespace holon::nn
