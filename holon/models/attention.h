// Attention of all models: which keys a query sees, and where keys, values and positions are from.
#pragma once

#include <cstdint>
#include <optional>

#include "holon/models/inputs.h"
#include "holon/models/kv_cache.h"
#include "holon/models/layout.h"
#include "holon/models/rotary.h"
#include "holon/tensor/tensor.h"

namespace holon::models {

// What the attention layers of a stage have in common during a call.
struct Sequence {
  Tensor positions{};   // [batch or 1, length]
  Angles angles{};      // of the positions, for models with rotary embeddings
  Tensor mask{};        // bool, broadcasts to [batch, heads, queries, keys]: a query sees a key; undefined: no limits
  bool causal = false;  // query i sees the keys up to i; a mask with rows for queries has that in it
  int64_t window = 0;   // with causal: so many keys at most; 0: all
  Tensor documents{};   // [batch or 1, length]: a query sees the keys of its document; undefined: all
  KvCache* cache = nullptr;  // the keys and values of the tokens before
  int64_t layer = 0;         // which of the cache's layers this is
};

struct SequenceOptions {
  bool causal = true;   // with a cache always
  int64_t window = 0;   // the keys that a query sees at most, itself included; 0: all
  bool biased = false;  // a bias is added to the scores: all limits are in the mask
};
// Of rows with the tokens' shape [batch, length] on a stage, behind those in the cache; angles are left out. Only with
// a bias, behind a cache, or on devices, whose kernels know only masks, is there a mask of queries and keys. Errors
// (ValueError): a cache where positions are split over ranks.
Sequence sequence_of(const Dims& shape, const Inputs& inputs, const Layout& layout, const SequenceOptions& options);

// The last n positions of x [batch, length, ...]; all of them for n 0.
Tensor last_positions(const Tensor& x, int64_t n);

// x [batch, length, heads * width] as [batch, heads, length, width], and back.
Tensor split_heads(const Tensor& x, int64_t heads);
Tensor merge_heads(const Tensor& x);

struct AttendOptions {
  std::optional<double> scale{};  // by default 1 / sqrt(width)
  double dropout = 0;
  Tensor bias{};  // added to the scores, [1 or batch, heads, queries, keys]
};
// Attention of queries [batch, heads, length, width] over keys and values, whose heads may be fewer, each for as many
// of the queries': [batch, length, heads * width]. The one place that keys and values go through, into the cache and
// out of it.
Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, const Sequence& sequence,
              const AttendOptions& options = {});

}  // namespace holon::models
