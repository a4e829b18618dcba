#include "holon/models/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

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

// Leaves the largest weights that together reach a sum, and returns theirs; the others become 0.
double keep_most_probable(std::vector<double>& weights, double enough) {
  std::vector<int64_t> order;
  for (size_t i = 0; i < weights.size(); ++i)
    if (weights[i] > 0) order.push_back(static_cast<int64_t>(i));
  const auto larger = [&](int64_t a, int64_t b) {
    const double x = at_index(weights, a), y = at_index(weights, b);
    return x != y ? x > y : a < b;
  };
  double sum = 0;
  auto at = order.begin();
  // Few are needed as a rule: they are sorted in parts that grow.
  for (int64_t part = 64; at != order.end() && sum < enough; part *= 4) {
    const auto end = at + std::min<int64_t>(part, order.end() - at);
    std::nth_element(at, end, order.end(), larger);
    std::sort(at, end, larger);
    // The one that reaches the sum is the last.
    for (; at != end && sum < enough; ++at) sum += at_index(weights, *at);
  }
  for (; at != order.end(); ++at) at_index(weights, *at) = 0;
  return sum;
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
    std::vector<float> top(to_size(*o.top_k));
    std::partial_sort_copy(logits.begin(), logits.end(), top.begin(), top.end(), std::greater<>());
    // As in transformers, tokens that are equal to the k-th stay.
    for (float& x : kept)
      if (x < top.back()) x = kNever;
  }
  std::vector<double> p(kept.size(), 0);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i)
    if (kept[i] != kNever)
      sum += p[i] = std::exp((static_cast<double>(kept[i]) - static_cast<double>(largest)) / o.temperature);
  if (o.top_p < 1) sum = keep_most_probable(p, o.top_p * sum);
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
