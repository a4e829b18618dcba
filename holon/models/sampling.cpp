#include "holon/models/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/kernels/random.h"

namespace holon::models {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

void check_logits(std::span<const float> logits, float largest) {
  const bool numbers = std::none_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); });
  if (!numbers || !std::isfinite(largest))
    fail_value("generate: the logits of a token {}. Check the parameters, or use a dtype with a larger range.",
               numbers ? "are infinite" : "are not numbers (NaN)");
}

}  // namespace

int64_t most_probable(std::span<const float> logits) {
  const auto at = std::max_element(logits.begin(), logits.end());
  check_logits(logits, *at);
  return at - logits.begin();
}

std::vector<double> probabilities(std::span<const float> logits, const SamplingOptions& o) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  check_logits(logits, largest);
  std::vector<float> kept(logits.begin(), logits.end());
  if (o.top_k && *o.top_k < static_cast<int64_t>(kept.size())) {
    std::vector<float> order(kept);
    const auto kth = order.begin() + (*o.top_k - 1);
    std::nth_element(order.begin(), kth, order.end(), std::greater<>());
    // As in transformers, tokens that are equal to the k-th stay.
    for (float& x : kept)
      if (x < *kth) x = kNever;
  }
  std::vector<double> p(kept.size());
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i)
    sum += p[i] = std::exp((static_cast<double>(kept[i]) - static_cast<double>(largest)) / o.temperature);
  if (o.top_p < 1) {
    std::vector<int64_t> order;
    for (size_t i = 0; i < p.size(); ++i)
      if (p[i] > 0) order.push_back(static_cast<int64_t>(i));
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return at_index(p, a) > at_index(p, b); });
    double before = 0, left = 0;
    for (int64_t i : order) {
      // The token that reaches top_p is the last one.
      if (before >= o.top_p * sum) {
        at_index(p, i) = 0;
        continue;
      }
      before += at_index(p, i);
      left += at_index(p, i);
    }
    sum = left;
  }
  for (double& x : p) x /= sum;
  return p;
}

int64_t sample(std::span<const double> p, double u) {
  int64_t last = 0;
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] <= 0) continue;
    last = static_cast<int64_t>(i);
    sum += p[i];
    if (u < sum) break;
  }
  return last;
}

double uniform(uint64_t seed, uint64_t draw, int64_t row) {
  Array one = Array::empty({1}, float64);
  kernels::uniform({.seed = seed, .counter = draw, .logical_shape = {row + 1}, .offset = {row}}, 0, 1, one);
  return *one.data<double>();
}

}  // namespace holon::models
