// The choice of the next token from its logits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace holon::models {

// With transformers' names, and in its order: temperature, top_k, top_p.
struct SamplingOptions {
  double temperature = 1;             // logits are divided by it
  std::optional<int64_t> top_k = 50;  // the tokens with the k largest logits; none: all
  double top_p = 1;                   // of these, the most probable ones that together have this probability
};

// The probabilities of a vocabulary's tokens, 0 for those left out. Errors (ValueError): logits that are NaN or
// infinite, or all -infinite; -infinity alone leaves a token out.
std::vector<double> probabilities(std::span<const float> logits, const SamplingOptions& options);

// The token with the largest logit, the first of several. Errors: as above.
int64_t most_probable(std::span<const float> logits);

// A token with these probabilities; u is a uniform number in [0, 1).
int64_t sample(std::span<const double> probabilities, double u);

// A uniform number in [0, 1), by the seed, the number of the draw and the row only.
double uniform(uint64_t seed, uint64_t draw, int64_t row);

}  // namespace holon::models
