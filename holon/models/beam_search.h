// Beam search, as transformers has it.
#pragma once

#include <cstdint>
#include <vector>

#include "holon/models/decoder.h"
#include "holon/models/logits.h"

namespace holon::models {

struct BeamOptions {
  int64_t num_beams = 2, max_new_tokens = 1;
  double length_penalty = 1;
  bool early_stopping = false;
  std::vector<int64_t> eos{};
};

// The new tokens of the best continuation of each of the decoder's rows, with the token that ends it, if there is one.
// As in transformers, what changes scores is given log probabilities. Collective.
std::vector<std::vector<int64_t>> beam_search(Decoder& decoder, int64_t rows, const BeamOptions& options,
                                              const LogitsProcessor& process);

}  // namespace holon::models
