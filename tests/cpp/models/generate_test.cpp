#include "holon/models/generate.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <set>

#include "error_of.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/random_state.h"
#include "holon/models/kv_cache.h"
#include "holon/ops/shape.h"
#include "models/small_models.h"

namespace holon::models {
namespace {

using comm::run_ranks;
using Tokens = std::vector<int64_t>;

Tokens generated(const Model& model, const Tensor& ids, const GenerateOptions& options) {
  return to_vector<int64_t>(generate(model, ids, options));
}

// Padding before two of three prompts.
Tensor padded_prompts() { return tensor(Tokens{0, 0, 0, 7, 3, 1, 4, 9, 2, 6, 0, 5, 8, 2, 11}, {3, 5}); }
Tensor padded_mask() { return tensor(Tokens{0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1}, {3, 5}); }

TEST(Generate, TheMostProbableTokensAreThoseOfWholeRows) {
  run_ranks(1, [](int) {
    for (auto& [name, config] : causal_models()) {
      const Model model = drawn(config);
      Tokens rows = to_vector<int64_t>(tokens(2, 4, 23));
      int64_t length = 4;
      for (; length < 16; ++length) {
        NoGradGuard guard;
        const auto logits = to_vector<float>(model(tensor(rows, {2, length})));
        Tokens longer;
        for (int64_t r = 0; r < 2; ++r) {
          longer.insert(longer.end(), rows.begin() + r * length, rows.begin() + (r + 1) * length);
          const auto* last = logits.data() + ((r + 1) * length - 1) * 23;
          longer.push_back(std::max_element(last, last + 23) - last);
        }
        rows = longer;
      }
      EXPECT_EQ(generated(model, tokens(2, 4, 23), {.max_new_tokens = 12}), rows) << name;
      EXPECT_EQ(generated(model, tokens(2, 4, 23), {.max_new_tokens = 12, .use_cache = false}), rows) << name;
    }
  });
}

TEST(Generate, PromptsWithPaddingGiveWhatEachGivesAlone) {
  run_ranks(1, [](int) {
    for (auto& [name, config] : causal_models()) {
      const Model model = drawn(config);
      const Tensor ids = padded_prompts(), mask = padded_mask();
      const Tokens together = generated(model, ids, {.max_new_tokens = 8, .attention_mask = mask});
      const Tokens again = generated(model, ids, {.max_new_tokens = 8, .attention_mask = mask, .use_cache = false});
      EXPECT_EQ(again, together) << name;
      for (int64_t r = 0; r < 3; ++r) {
        const int64_t padding = std::vector<int64_t>{3, 0, 1}[static_cast<size_t>(r)];
        const Tensor alone = slice(slice(ids, 0, r, r + 1), 1, padding);
        const Tokens wanted = generated(model, alone, {.max_new_tokens = 8});
        EXPECT_EQ(Tokens(together.begin() + r * 13 + padding, together.begin() + (r + 1) * 13), wanted)
            << name << " " << r;
      }
    }
  });
}

// By one rank, and then by several.
std::vector<Tokens> all_ways(const Model& model) {
  const Tensor ids = padded_prompts(), mask = padded_mask();
  return {generated(model, ids, {.max_new_tokens = 9}),
          generated(model, ids, {.max_new_tokens = 9, .attention_mask = mask}),
          generated(model, slice(ids, 0, 1, 2), {.max_new_tokens = 9}),
          generated(model, ids, {.max_new_tokens = 9, .do_sample = true, .seed = 3}),
          generated(model, ids,
                    {.max_new_tokens = 9,
                     .do_sample = true,
                     .sampling = {.temperature = 0.7, .top_k = 9, .top_p = 0.8},
                     .attention_mask = mask}),
          generated(model, ids, {.max_new_tokens = 6, .num_beams = 3, .eos_token_id = Tokens{4}}),
          generated(model, ids, {.max_new_tokens = 6, .num_beams = 2, .attention_mask = mask})};
}

TEST(Generate, EveryLayoutGivesTheTokensOfOneRank) {
  const std::vector<Parallel> layouts{{.dp = 2}, {.tp = 2},          {.pp = 2},          {.dp = 3},
                                      {.tp = 4}, {.dp = 2, .tp = 2}, {.tp = 2, .pp = 2}, {.dp = 2, .tp = 2, .pp = 2}};
  for (auto& kind : causal_models()) {
    std::vector<Tokens> wanted;
    run_ranks(1, [&](int) { wanted = all_ways(drawn(kind.second)); });
    for (auto& parallel : layouts) {
      run_ranks(static_cast<int>(parallel.size()), [&](int rank) {
        const auto found = all_ways(drawn(kind.second, parallel));
        for (size_t i = 0; i < wanted.size(); ++i)
          EXPECT_EQ(found[i], wanted[i]) << kind.first << " way " << i << " dp " << parallel.dp << " tp " << parallel.tp
                                         << " pp " << parallel.pp << " rank " << rank;
      });
    }
  }
  std::vector<Tokens> wanted;
  run_ranks(1, [&](int) { wanted = all_ways(drawn(causal_models().back().second)); });
  run_ranks(2, [&](int) { EXPECT_EQ(all_ways(drawn(causal_models().back().second, {.ep = 2})), wanted); });
}

Model encoder_decoder(const Parallel& parallel = {}) {
  return drawn(changed(kT5, {{"num_layers", 2}, {"decoder_start_token_id", 3}, {"initializer_factor", 4.0}}), parallel);
}

TEST(Generate, AnEncoderDecoderContinuesItsStart) {
  run_ranks(1, [](int) {
    const Model model = encoder_decoder();
    const Tensor ids = tokens(3, 5, 23), mask = tensor(Tokens{1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1}, {3, 5});
    Tokens rows{3, 3, 3};
    for (int64_t length = 1; length < 13; ++length) {
      NoGradGuard guard;
      const auto logits = to_vector<float>(
          model(ids, {.attention_mask = mask, .decoder_input_ids = tensor(rows, {3, length}), .logits_to_keep = 1}));
      Tokens longer;
      for (int64_t r = 0; r < 3; ++r) {
        longer.insert(longer.end(), rows.begin() + r * length, rows.begin() + (r + 1) * length);
        longer.push_back(std::max_element(logits.data() + r * 23, logits.data() + (r + 1) * 23) - logits.data() -
                         r * 23);
      }
      rows = longer;
    }
    EXPECT_GT(std::set<int64_t>(rows.begin(), rows.end()).size(), 4u);
    GenerateOptions o{.max_new_tokens = 12, .attention_mask = mask};
    EXPECT_EQ(generated(model, ids, o), rows);
    o.use_cache = false;
    EXPECT_EQ(generated(model, ids, o), rows);
    // Several tokens behind others, and what is padding in the encoder.
    NoGradGuard guard;
    KvCache cache;
    const Tensor targets = tokens(3, 7, 23);
    const Tensor whole = model(ids, {.attention_mask = mask, .decoder_input_ids = targets});
    int64_t at = 0;
    for (int64_t n : {2, 1, 4}) {
      const Tensor logits =
          model(ids, {.attention_mask = mask, .decoder_input_ids = slice(targets, 1, at, at + n), .cache = &cache});
      EXPECT_LT(difference(to_vector<float>(logits), to_vector<float>(slice(whole, 1, at, at + n))), 1e-5) << at;
      at += n;
    }
  });
}

TEST(Generate, AnEncoderDecoderGivesTheSameOnEveryLayout) {
  auto ways = [](const Model& model) {
    const Tensor ids = tokens(3, 5, 23), mask = tensor(Tokens{1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1}, {3, 5});
    GenerateOptions beams{.max_new_tokens = 8, .num_beams = 3, .eos_token_id = Tokens{4, 9}, .attention_mask = mask};
    GenerateOptions again = beams;
    again.use_cache = false;
    return std::vector<Tokens>{generated(model, ids, {.max_new_tokens = 8, .attention_mask = mask}),
                               generated(model, slice(ids, 0, 1, 2),
                                         {.max_new_tokens = 8, .do_sample = true, .seed = 1}),
                               generated(model, ids, beams), generated(model, ids, again)};
  };
  std::vector<Tokens> wanted;
  run_ranks(1, [&](int) { wanted = ways(encoder_decoder()); });
  EXPECT_EQ(wanted[2], wanted[3]);
  for (const Parallel& parallel : std::vector<Parallel>{{.dp = 2}, {.tp = 2}, {.pp = 2}, {.pp = 3}, {.dp = 2, .tp = 2}})
    run_ranks(static_cast<int>(parallel.size()), [&](int) { EXPECT_EQ(ways(encoder_decoder(parallel)), wanted); });
}

TEST(Generate, ProbabilitiesAreThoseOfTheFormulas) {
  const std::vector<float> logits{1, 3, 2, -1, 0};
  auto softmax = [&](double temperature, const std::vector<size_t>& kept) {
    std::vector<double> p(5, 0);
    double sum = 0;
    for (size_t i : kept) sum += p[i] = std::exp(static_cast<double>(logits[i]) / temperature);
    for (double& x : p) x /= sum;
    return p;
  };
  auto expect_near = [](const std::vector<double>& found, const std::vector<double>& wanted) {
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 1e-12) << i;
  };
  expect_near(probabilities(logits, {}), softmax(1, {0, 1, 2, 3, 4}));
  expect_near(probabilities(logits, {.temperature = 0.5}), softmax(0.5, {0, 1, 2, 3, 4}));
  expect_near(probabilities(logits, {.temperature = 2, .top_k = 3}), softmax(2, {0, 1, 2}));
  expect_near(probabilities(logits, {.top_k = 1}), softmax(1, {1}));
  // 0.636, 0.234, 0.086, ...: the second reaches 0.8, and so does it 0.637.
  expect_near(probabilities(logits, {.top_p = 0.8}), softmax(1, {1, 2}));
  expect_near(probabilities(logits, {.top_p = 0.637}), softmax(1, {1, 2}));
  expect_near(probabilities(logits, {.top_p = 0.6}), softmax(1, {1}));
  // Of the three that top_k keeps the first two have 0.91.
  expect_near(probabilities(logits, {.top_k = 3, .top_p = 0.9}), softmax(1, {1, 2}));
  // Tokens that are equal to the k-th stay.
  expect_near(probabilities(std::vector<float>{1, 2, 1, 0}, {.top_k = 2}),
              {1 / (2 + std::exp(1.0)), std::exp(1.0) / (2 + std::exp(1.0)), 1 / (2 + std::exp(1.0)), 0});
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(probabilities(std::vector<float>{-infinity, 0}, {}), (std::vector<double>{0, 1}));
  for (auto& bad : std::vector<std::vector<float>>{{0, NAN}, {NAN, 0}, {-infinity, -infinity}, {infinity, 0}}) {
    EXPECT_NE(value_error_of([&] { probabilities(bad, {}); }).find("the logits of a token"), std::string::npos);
    EXPECT_NE(value_error_of([&] { most_probable(bad); }).find("the logits of a token"), std::string::npos);
  }
}

TEST(Generate, TopPKeepsTheMostProbableOfManyTokens) {
  std::vector<float> logits;
  for (int64_t i = 0; i < 3000; ++i) logits.push_back(static_cast<float>((i * i * 31 + 7 * i) % 1009) / 200);
  const auto all = probabilities(logits, {.top_k = {}});
  std::vector<size_t> order(3000);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return all[a] > all[b]; });
  for (double top_p : {0.01, 0.3, 0.9, 0.999}) {
    const auto p = probabilities(logits, {.top_k = {}, .top_p = top_p});
    double sum = 0;
    size_t kept = 0;
    while (sum < top_p) sum += all[order[kept++]];
    for (size_t i = 0; i < 3000; ++i) EXPECT_NEAR(p[order[i]], i < kept ? all[order[i]] / sum : 0, 1e-12) << i;
  }
}

TEST(Generate, SamplesHaveTheirProbabilities) {
  run_ranks(1, [](int) {
    const Model model = drawn(Config(kLlama));
    constexpr int64_t kRows = 4000;
    const Tensor prompt = tokens(1, 3, 23);
    const auto logits = to_vector<float>(slice(model(prompt).detach(), 1, 2));
    for (const SamplingOptions& o : std::vector<SamplingOptions>{{.temperature = 1.5}, {.top_k = 4}, {.top_p = 0.7}}) {
      const auto p = probabilities(logits, o);
      const Tokens rows = generated(model, expand(prompt, {kRows, 3}).reshape({kRows, 3}),
                                    {.max_new_tokens = 1, .do_sample = true, .sampling = o, .seed = 8});
      std::vector<double> counts(23, 0);
      for (int64_t r = 0; r < kRows; ++r) ++counts[static_cast<size_t>(rows[static_cast<size_t>(4 * r + 3)])];
      for (size_t t = 0; t < 23; ++t)
        EXPECT_NEAR(counts[t] / kRows, p[t], 5 * std::sqrt(p[t] * (1 - p[t]) / kRows)) << t;
    }
  });
}

TEST(Generate, SamplesDependOnSeedAndRow) {
  run_ranks(1, [](int) {
    const Model model = drawn(Config(kLlama));
    auto sampled = [&](const Tensor& ids, std::optional<uint64_t> seed) {
      return generated(model, ids, {.max_new_tokens = 8, .do_sample = true, .seed = seed});
    };
    const Tensor row = tokens(1, 3, 23), rows = cat({row, row}, 0);
    const Tokens one = sampled(row, 1), two = sampled(rows, 1);
    EXPECT_EQ(Tokens(two.begin(), two.begin() + 11), one);
    EXPECT_NE(Tokens(two.begin() + 11, two.end()), one);
    EXPECT_NE(sampled(row, 2), one);
    // Without a seed they are the next draws of the random state.
    manual_seed(1);
    const Tokens first = sampled(row, {}), second = sampled(row, {});
    EXPECT_NE(first, second);
    manual_seed(1);
    EXPECT_EQ(sampled(row, {}), first);
  });
}

TEST(Generate, RowsEndAndArePadded) {
  run_ranks(2, [](int) {
    const Model model = drawn(Config(kLlama), {.tp = 2});
    const Tensor ids = tokens(2, 4, 23);
    const Tokens whole = generated(model, ids, {.max_new_tokens = 10});
    const Tokens first(whole.begin(), whole.begin() + 14), second(whole.begin() + 14, whole.end());
    // A token of the first row's that the second has later, or not at all.
    const int64_t end = first[6];
    auto until = [&](const Tokens& row) {
      const auto at = std::find(row.begin() + 4, row.end(), end);
      return at == row.end() ? 14 : at - row.begin() + 1;
    };
    ASSERT_NE(until(first), until(second));
    const int64_t longest = std::max(until(first), until(second));
    Tokens wanted;
    for (const Tokens& row : {first, second})
      for (int64_t i = 0; i < longest; ++i) wanted.push_back(i < until(row) ? row[static_cast<size_t>(i)] : 21);
    EXPECT_EQ(generated(model, ids, {.max_new_tokens = 10, .eos_token_id = Tokens{end}, .pad_token_id = 21}), wanted);
    std::replace(wanted.begin(), wanted.end(), int64_t{21}, end);
    EXPECT_EQ(generated(model, ids, {.max_new_tokens = 10, .eos_token_id = Tokens{end}}), wanted);
    // By default it is the configuration's, one or several; those outside the vocabulary are never met.
    for (const checkpoint::Value& value : {checkpoint::Value(end), checkpoint::Value(checkpoint::Value::List{50, end})})
      EXPECT_EQ(generated(drawn(changed(kLlama, {{"eos_token_id", value}}), {.tp = 2}), ids,
                          {.max_new_tokens = 10, .pad_token_id = end}),
                wanted);
  });
}

TEST(Generate, StopStringsEndRows) {
  run_ranks(1, [](int) {
    const Model model = drawn(Config(kLlama));
    const Tensor ids = tokens(1, 4, 23);
    const Tokens whole = generated(model, ids, {.max_new_tokens = 10});
    auto decode = [](const Tokens& tokens) {
      std::string text;
      for (int64_t t : tokens) text += static_cast<char>('a' + t);
      return text;
    };
    const Tokens made(whole.begin() + 4, whole.end());
    const std::string stop = decode({made[2], made[3]});
    const int64_t n = static_cast<int64_t>(decode(made).find(stop)) + 2;
    EXPECT_EQ(generated(model, ids, {.max_new_tokens = 10, .stop_strings = {"?", stop}, .decode = decode}),
              Tokens(whole.begin(), whole.begin() + 4 + n));
  });
}

TEST(Generate, TokensAreStreamedAndOneRankMayStop) {
  run_ranks(2, [](int rank) {
    const Model model = drawn(Config(kLlama), {.dp = 2});
    const Tensor ids = tokens(2, 4, 23);
    const Tokens whole = generated(model, ids, {.max_new_tokens = 10});
    Tokens streamed;
    const Tokens rows =
        generated(model, ids, {.max_new_tokens = 10, .streamer = [&](int64_t step, const Tokens& tokens) {
                                 EXPECT_EQ(step * 2, static_cast<int64_t>(streamed.size()));
                                 streamed.insert(streamed.end(), tokens.begin(), tokens.end());
                                 return rank == 0 || step < 2;
                               }});
    ASSERT_EQ(rows.size(), 14u);
    for (size_t r = 0; r < 2; ++r)
      for (size_t i = 0; i < 7; ++i) EXPECT_EQ(rows[r * 7 + i], whole[r * 14 + i]);
    for (size_t step = 0; step < 3; ++step)
      for (size_t r = 0; r < 2; ++r) EXPECT_EQ(streamed[step * 2 + r], rows[r * 7 + 4 + step]);
  });
}

TEST(Generate, BeamsFindTheMostProbableContinuation) {
  run_ranks(1, [](int) {
    // As many beams as tokens: nothing is left out in two steps.
    const Model model = drawn(changed(kLlama, {{"vocab_size", 5}}));
    const Tensor prompt = tokens(1, 3, 5);
    auto log_probabilities = [&](const Tokens& row) {
      NoGradGuard guard;
      const auto n = static_cast<int64_t>(row.size());
      const auto p = probabilities(to_vector<float>(slice(model(tensor(row, {1, n})), 1, n - 1)), {});
      std::vector<double> out;
      for (double x : p) out.push_back(std::log(x));
      return out;
    };
    for (double length_penalty : {1.0, 0.0, -2.0, 3.0}) {
      constexpr int64_t kEnd = 2;
      Tokens row = to_vector<int64_t>(prompt), best;
      double most = -1e30;
      auto consider = [&](const Tokens& tokens, double score) {
        score /= std::pow(static_cast<double>(tokens.size() - 3), length_penalty);
        if (score > most) most = score, best = tokens;
      };
      const auto first = log_probabilities(row);
      for (int64_t a = 0; a < 5; ++a) {
        Tokens longer = row;
        longer.push_back(a);
        if (a == kEnd) {
          consider(longer, first[static_cast<size_t>(a)]);
          continue;
        }
        const auto second = log_probabilities(longer);
        for (int64_t b = 0; b < 5; ++b) {
          Tokens all = longer;
          all.push_back(b);
          consider(all, first[static_cast<size_t>(a)] + second[static_cast<size_t>(b)]);
        }
      }
      EXPECT_EQ(
          generated(
              model, prompt,
              {.max_new_tokens = 2, .num_beams = 5, .length_penalty = length_penalty, .eos_token_id = Tokens{kEnd}}),
          best)
          << length_penalty;
    }
  });
}

TEST(Generate, BeamsOfEachPromptAreTheSameWithoutACacheAndAlone) {
  run_ranks(1, [](int) {
    for (auto& [name, config] : causal_models()) {
      const Model model = drawn(config);
      GenerateOptions o{.max_new_tokens = 9, .num_beams = 3, .length_penalty = 2, .eos_token_id = Tokens{4, 9, 13}};
      const Tensor ids = padded_prompts();
      const Tensor together = generate(model, ids, o);
      for (int64_t r = 0; r < 3; ++r) {
        const Tokens alone = generated(model, slice(ids, 0, r, r + 1), o);
        Tokens row = to_vector<int64_t>(slice(together, 0, r, r + 1));
        row.resize(std::min(row.size(), alone.size()));
        EXPECT_EQ(row, alone) << name << " " << r;
      }
      o.use_cache = false;
      EXPECT_EQ(generated(model, ids, o), to_vector<int64_t>(together)) << name;
    }
  });
}

TEST(Generate, WhatCannotBeDoneIsSaidBeforeAStep) {
  run_ranks(2, [](int) {
    const Model model = drawn(Config(kLlama), {.dp = 2});
    const Tensor ids = tokens(2, 4, 23);
    int64_t steps = 0;
    auto error = [&](GenerateOptions o) {
      if (o.num_beams == 1) o.streamer = [&](int64_t, const Tokens&) { return ++steps > 0; };
      return value_error_of([&] { generate(model, ids, o); });
    };
    auto contains = [](const std::string& text, const std::string& part) { return text.find(part) != text.npos; };
    EXPECT_TRUE(contains(error({.max_new_tokens = 0}), "max_new_tokens is 0"));
    EXPECT_TRUE(contains(error({.max_new_tokens = 29}), "4 tokens and 29 new ones are longer than the 32 positions"));
    EXPECT_TRUE(contains(error({.max_new_tokens = INT64_MAX}), "longer than the 32 positions"));
    EXPECT_TRUE(contains(error({.sampling = {.temperature = 0}}), "temperature is 0"));
    EXPECT_TRUE(contains(error({.sampling = {.temperature = NAN}}), "temperature is nan"));
    EXPECT_TRUE(contains(error({.sampling = {.top_k = 0}}), "top_k is 0"));
    EXPECT_TRUE(contains(error({.sampling = {.top_p = 0}}), "top_p is 0"));
    EXPECT_TRUE(contains(error({.sampling = {.top_p = 1.5}}), "top_p is 1.5"));
    EXPECT_TRUE(contains(error({.num_beams = 0}), "num_beams is 0"));
    EXPECT_TRUE(contains(error({.do_sample = true, .num_beams = 2}), "num_beams is 2 with do_sample"));
    EXPECT_TRUE(contains(error({.eos_token_id = Tokens{3, 23}}), "eos_token_id 23 is not in the vocabulary [0, 23)"));
    EXPECT_TRUE(contains(error({.pad_token_id = -1}), "pad_token_id -1 is not in the vocabulary"));
    EXPECT_TRUE(contains(error({.stop_strings = {"x"}}), "Give decode"));
    EXPECT_TRUE(contains(error({.attention_mask = tensor(Tokens{1, 1, 1, 1, 1, 1, 1, 0}, {2, 4})}), "row 1 ends with"));
    EXPECT_TRUE(contains(error({.attention_mask = tokens(2, 3, 2)}), "attention_mask has shape"));
    EXPECT_EQ(steps, 0);
    const Model bert =
        from_config(Config(R"({"model_type": "bert", "vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 1,
                   "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 8})"),
                    {.dp = 2});
    EXPECT_TRUE(contains(value_error_of([&] { generate(bert, ids); }), "type 'bert' does not predict next tokens"));
  });
}

}  // namespace
}  // namespace holon::models
