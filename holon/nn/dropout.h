// Dropout: in training, zeros at random, of elements or of whole channels.
#pragma once

#include "holon/nn/module.h"
#include "holon/ops/random.h"

namespace holon::nn {

// Errors: p outside [0, 1].
double checked_probability(double p, const char* layer);

// Zeroes elements with probability p while training, and scales the others by 1 / (1 - p).
class Dropout : public Layer<Dropout> {
 public:
  // Errors: p outside [0, 1].
  explicit Dropout(double p = 0.5) : p_(checked_probability(p, "Dropout")) {}
  Tensor forward(const Tensor& x) const { return dropout(x, p_, is_training()); }

 private:
  double p_;
};

// Dropout of whole channels of signals, images and volumes [n, c, ...] or [c, ...].
class Dropout1d : public Layer<Dropout1d> {
 public:
  explicit Dropout1d(double p = 0.5) : p_(checked_probability(p, "Dropout1d")) {}
  Tensor forward(const Tensor& x) const { return dropout1d(x, p_, is_training()); }

 private:
  double p_;
};
class Dropout2d : public Layer<Dropout2d> {
 public:
  explicit Dropout2d(double p = 0.5) : p_(checked_probability(p, "Dropout2d")) {}
  Tensor forward(const Tensor& x) const { return dropout2d(x, p_, is_training()); }

 private:
  double p_;
};
class Dropout3d : public Layer<Dropout3d> {
 public:
  explicit Dropout3d(double p = 0.5) : p_(checked_probability(p, "Dropout3d")) {}
  Tensor forward(const Tensor& x) const { return dropout3d(x, p_, is_training()); }

 private:
  double p_;
};

// Dropout for networks of selu, which keeps mean 0 and variance 1: of elements, or of whole channels of [n, c, ...].
class AlphaDropout : public Layer<AlphaDropout> {
 public:
  explicit AlphaDropout(double p = 0.5) : p_(checked_probability(p, "AlphaDropout")) {}
  Tensor forward(const Tensor& x) const { return alpha_dropout(x, p_, is_training()); }

 private:
  double p_;
};
class FeatureAlphaDropout : public Layer<FeatureAlphaDropout> {
 public:
  explicit FeatureAlphaDropout(double p = 0.5) : p_(checked_probability(p, "FeatureAlphaDropout")) {}
  Tensor forward(const Tensor& x) const { return feature_alpha_dropout(x, p_, is_training()); }

 private:
  double p_;
};

}  // namespace holon::nn
