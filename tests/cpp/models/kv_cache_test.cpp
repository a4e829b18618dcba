#include "holon/models/kv_cache.h"

#include <gtest/gtest.h>

#include "error_of.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/random_state.h"
#include "holon/ops/shape.h"
#include "models/small_models.h"

namespace holon::models {
namespace {

using comm::run_ranks;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST(KvCache, LogitsAreThoseOfTheWholeRow) {
  run_ranks(1, [](int) {
    NoGradGuard guard;
    for (auto& [name, config] : causal_models()) {
      const Model model = drawn(config);
      const Tensor ids = tokens(2, 10, 23);
      const Tensor whole = model(ids);
      KvCache cache;
      int64_t at = 0;
      for (int64_t n : {4, 1, 1, 3, 1}) {  // several tokens behind others, too
        const Tensor logits = model(slice(ids, 1, at, at + n), {.cache = &cache});
        at += n;
        EXPECT_LT(difference(to_vector<float>(logits), to_vector<float>(slice(whole, 1, at - n, at))), 1e-5)
            << name << " " << at;
        EXPECT_EQ(cache.length(), at);
      }
      const Tensor last = model(ids, {.logits_to_keep = 2});
      EXPECT_LT(difference(to_vector<float>(last), to_vector<float>(slice(whole, 1, 8))), 1e-5) << name;
    }
  });
}

TEST(KvCache, LogitsAreThoseOfTheWholeRowOnEveryLayout) {
  for (const Parallel& parallel : std::vector<Parallel>{{.dp = 2}, {.tp = 2}, {.pp = 2}, {.tp = 4}, {.dp = 2, .tp = 2}})
    run_ranks(static_cast<int>(parallel.size()), [&](int) {
      NoGradGuard guard;
      for (auto& [name, config] : causal_models()) {
        const Model model = drawn(config, parallel);
        const Tensor ids = tokens(3, 8, 23);
        KvCache cache;
        const auto first = to_vector<float>(model(slice(ids, 1, 0, 5), {.cache = &cache})),
                   last = to_vector<float>(model(slice(ids, 1, 5), {.cache = &cache}));
        const Tensor whole = model(ids);
        EXPECT_LT(difference(first, to_vector<float>(slice(whole, 1, 0, 5))), 1e-5) << name;
        EXPECT_LT(difference(last, to_vector<float>(slice(whole, 1, 5))), 1e-5) << name;
      }
    });
}

TEST(KvCache, GrowsByPagesUpToTheLongestRow) {
  run_ranks(1, [](int) {
    NoGradGuard guard;
    KvCache cache(300);
    Values expected;
    std::vector<int64_t> capacities;
    for (int64_t i = 0; i < 150; ++i) {
      const Tensor x = tensor(std::vector<float>{static_cast<float>(i), static_cast<float>(-i)}, {1, 1, 2, 1});
      const auto [keys, values] = cache.append(0, x, x * 2.0);
      cache.advance(2, 1);
      expected.push_back(static_cast<float>(i)), expected.push_back(static_cast<float>(-i));
      ASSERT_EQ(to_vector<float>(keys), expected);
      ASSERT_EQ(values.shape(), (Dims{1, 1, 2 * i + 2, 1}));
      if (capacities.empty() || cache.capacity() != capacities.back()) capacities.push_back(cache.capacity());
    }
    EXPECT_EQ(capacities, (std::vector<int64_t>{128, 256, 300}));
  });
}

// Memory is that of the tokens there are, in pages, and not of the longest row that there may be.
TEST(KvCache, MemoryIsThatOfItsTokens) {
  for (const Parallel& parallel : std::vector<Parallel>{{}, {.tp = 2}, {.dp = 2}, {.pp = 2}})
    run_ranks(static_cast<int>(parallel.size()), [&](int) {
      NoGradGuard guard;
      const Model model = drawn(changed(kLlama, {{"max_position_embeddings", 4096}}), parallel);
      // Of a token of two rows: keys and values of 2 layers with 2 heads of 4, shared by the ranks.
      const int64_t token_bytes = 2 * 2 * 2 * 2 * 4 * 4 / parallel.size();
      KvCache cache(4096);
      int64_t length = 0, pages = 0;
      for (int64_t n : {100, 28, 1, 127, 300}) {
        model(tokens(2, n, 23), {.cache = &cache, .logits_to_keep = 1});
        length += n;
        pages = (length + KvCache::kPage - 1) / KvCache::kPage;
        EXPECT_EQ(cache.bytes(), pages * KvCache::kPage * token_bytes) << length;
      }
      EXPECT_EQ(pages, 5);
    });
}

TEST(KvCache, RowsAreSelectedOnEveryLayout) {
  for (const Parallel& parallel : std::vector<Parallel>{{}, {.dp = 2}, {.tp = 2}, {.dp = 2, .tp = 2}, {.pp = 2}})
    run_ranks(static_cast<int>(parallel.size()), [&](int) {
      NoGradGuard guard;
      const Model model = drawn(Config(kLlama), parallel);
      const Tensor ids = tokens(3, 6, 23);
      KvCache cache;
      model(slice(ids, 1, 0, 5), {.cache = &cache});
      cache.select_rows({2, 0, 2, 1, 1});
      EXPECT_EQ(cache.rows(), 5);
      auto row = [&](int64_t i) { return slice(ids, 0, i, i + 1); };
      const Tensor selected = cat({row(2), row(0), row(2), row(1), row(1)}, 0);
      EXPECT_LT(difference(to_vector<float>(model(slice(selected, 1, 5), {.cache = &cache})),
                           to_vector<float>(slice(model(selected), 1, 5))),
                1e-5);
      EXPECT_TRUE(contains(error_of([&] { cache.select_rows({5}); }, ErrorKind::kIndex), "row 5 is not there"));
    });
}

TEST(KvCache, WhatDoesNotFitIsAnError) {
  run_ranks(1, [](int) {
    const Model model = drawn(Config(kLlama));
    const Tensor ids = tokens(2, 4, 23);
    KvCache cache;
    EXPECT_TRUE(
        contains(error_of([&] { model(ids, {.cache = &cache}); }, ErrorKind::kRuntime), "gradients are recorded"));
    NoGradGuard guard;
    const auto whole = to_vector<float>(model(ids));
    EXPECT_EQ(to_vector<float>(model(ids, {.cache = &cache})), whole);  // the failed call has left nothing
    EXPECT_TRUE(contains(value_error_of([&] { model(tokens(3, 1, 23), {.cache = &cache}); }),
                         "3 rows of tokens for a cache of 2"));
    EXPECT_TRUE(contains(value_error_of([&] { model(tokens(2, 29, 23), {.cache = &cache}); }),
                         "33 tokens are longer than the 32 positions"));
    EXPECT_TRUE(contains(value_error_of([&] { model(ids, {.attention_mask = tokens(2, 4, 1), .cache = &cache}); }),
                         "[2, 4], behind 4 in the cache"));
    EXPECT_TRUE(contains(value_error_of([&] { model(ids, {.document_ids = ids, .cache = &cache}); }),
                         "document_ids with a cache"));
    EXPECT_TRUE(contains(value_error_of([&] { model(ids, {.logits_to_keep = 5}); }), "logits_to_keep is 5"));
    const Model other = drawn(changed(kLlama, {{"num_key_value_heads", 4}}));
    EXPECT_TRUE(
        contains(value_error_of([&] { other(ids, {.cache = &cache}); }), "Use a cache for each batch and model"));
    const Model bert =
        from_config(Config(R"({"model_type": "bert", "vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 1,
                   "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 8})"));
    EXPECT_TRUE(contains(value_error_of([&] { bert(ids, {.cache = &cache}); }), "takes no cache"));
    EXPECT_EQ(cache.length(), 4);
  });
}

}  // namespace
}  // namespace holon::models
