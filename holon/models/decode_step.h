// One step of a causal model compiled by nn::Graph: a token for each row behind those in a cache. It makes no dispatch
// and no plans, and no memory but its result's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "holon/models/decoder.h"
#include "holon/models/kv_cache.h"
#include "holon/models/model.h"

namespace holon::models {

class DecodeStep {
 public:
  // cache: what it holds is not moved while the step is used. mask: of the rows so far, as in Prompts. Collective.
  DecodeStep(const Model& model, KvCache& cache, const Rows& mask);
  ~DecodeStep();
  DecodeStep(const DecodeStep&) = delete;
  DecodeStep& operator=(const DecodeStep&) = delete;

  // Whether a token for each of so many rows has a place.
  bool fits(int64_t rows) const;
  // The padding of each row, after rows have changed places. Pre: as many rows as before.
  void set_mask(const Rows& mask);
  // The logits behind these tokens, one for each row, which become part of the cache; positions: of the tokens, where
  // there is padding. Collective.
  Logits run(const std::vector<int64_t>& tokens, const std::vector<int64_t>& positions);

 private:
  struct Graph;
  const Model model_;
  KvCache& cache_;
  int64_t rows_, capacity_;
  bool padded_;
  Tensor ids_;
  std::vector<StepTensors> stages_;
  std::unique_ptr<Graph> graph_;
};

}  // namespace holon::models
