// The steps of generate(): calls of a causal model with a batch of rows, each of which grows by a token a step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "holon/models/kv_cache.h"
#include "holon/models/model.h"

namespace holon::models {

// Rows of integers of the same length, in one vector.
struct Rows {
  std::vector<int64_t> values;
  int64_t length = 0;

  int64_t count() const { return length ? static_cast<int64_t>(values.size()) / length : 0; }
  std::span<const int64_t> row(int64_t i) const;
};

// Logits of a vocabulary for each row.
struct Logits {
  std::vector<float> values;
  int64_t vocabulary = 0;

  int64_t count() const { return static_cast<int64_t>(values.size()) / vocabulary; }
  std::span<const float> row(int64_t i) const;
  std::span<float> mutable_row(int64_t i);
};

// What is generated from: of an encoder-decoder the tokens of its encoder, too.
struct Prompts {
  Rows tokens{}, mask{};  // mask: 1 for tokens, 0 for padding before them; no values where there is no padding
  Rows source{}, source_mask{};
};

class DecodeStep;

// How keys and values of the tokens so far are kept: not at all; in memory that grows with them; likewise, and steps of
// one token are compiled.
enum class CacheUse : uint8_t { kNone, kDynamic, kStatic };

class Decoder {
 public:
  // max_length: of a row.
  Decoder(const Model& model, Prompts prompts, int64_t max_length, CacheUse use);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // The logits of each row's next token, alike on all ranks. Collective.
  Logits next();
  // A row so far, from its prompt on; of an encoder-decoder that of the decoder.
  std::span<const int64_t> tokens(int64_t row) const { return tokens_.row(row); }
  // How many tokens of padding it begins with.
  int64_t padding(int64_t row) const;
  // Adds a token to each row.
  void append(const std::vector<int64_t>& tokens);
  // Row i becomes what row rows[i] was. Collective.
  void select_rows(const std::vector<int64_t>& rows);

 private:
  Model model_;
  Rows source_, source_mask_, tokens_, mask_, positions_;
  Logits compiled_next();
  int64_t max_length_;
  CacheUse use_;
  KvCache cache_;
  std::unique_ptr<DecodeStep> step_;
};

}  // namespace holon::models
