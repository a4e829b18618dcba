// Losses of routers, which a mixture of experts adds to that of its tokens: they keep experts evenly used, and the
// router's numbers small.
#pragma once

#include <cstdint>

#include "holon/models/layout.h"
#include "holon/tensor/tensor.h"

namespace holon::models {

// Collects what the routers of a model's layers choose in one call. Over all layers, and all tokens that the attention
// mask shows, with E experts:
//   balance: E * the sum over experts of (the share of tokens that chose it) * (the mean of its probability), as
//     transformers' load_balancing_loss_func has it (Switch Transformers, Fedus et al. 2021, eq. 4 to 6);
//   z: the mean of log(sum(exp(logits)))^2 (ST-MoE, Zoph et al. 2022, eq. 5).
// The means are those of the whole batch, whichever ranks hold it; in a graph with micro-batches, of one of these.
class RouterLosses {
 public:
  // What each is multiplied by; 0: it is left out. attention_mask [batch, length], as Inputs' one, or undefined.
  RouterLosses(double balance, double z, Tensor attention_mask = {})
      : balance_(balance), z_(z), mask_(std::move(attention_mask)) {}

  // Of the next layer: float32 logits [batch, length, experts], by rows, and the chosen experts [batch, length, k].
  void add(const Tensor& logits, const Tensor& chosen, const Layout& layout);
  // The sum of both losses, float32, whole on the ranks of the last stage. Pre: add() was called.
  Tensor total(const Layout& last);

 private:
  // Sums over rows and layers; partial on the ranks of a stage until the next one takes them over.
  struct Sums {
    Tensor chosen, probability, z;
  };
  Sums added_up(const Layout& to) const;
  // 1 for each row's tokens that count, [batch, length].
  Tensor counted(const Layout& layout) const;

  double balance_, z_;
  Tensor mask_;
  Sums before_{}, here_{};  // of earlier stages; of this one
  Layout layout_{};
  Tensor mask_here_;
  int64_t layers_ = 0, tokens_ = 0;
};

}  // namespace holon::models
