#include "holon/models/logits.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "error_of.h"
#include "models/small_models.h"

namespace holon::models {
namespace {

using Tokens = std::vector<int64_t>;
using Scores = std::vector<float>;
constexpr float kNever = -std::numeric_limits<float>::infinity();

Scores processed(const LogitsOptions& o, const Scores& scores, const Tokens& row, const Tokens& ends = {4},
                 int64_t prompt = 2) {
  const LogitsProcessor process(o, ends, prompt, static_cast<int64_t>(scores.size()));
  Scores out = scores;
  process(out, row);
  EXPECT_EQ(process.changes(),
            o.repetition_penalty != 1 || o.no_repeat_ngram_size > 0 || !o.bad_words_ids.empty() ||
                o.min_new_tokens > 0 || o.min_length > 0);
  return out;
}

const Scores kScores{1, -2, 3, 0.5, -1};

TEST(Logits, NothingIsChangedByDefault) { EXPECT_EQ(processed({}, kScores, {0, 1, 2}), kScores); }

TEST(Logits, TokensThatAreThereArePenalizedOnce) {
  EXPECT_EQ(processed({.repetition_penalty = 2}, kScores, {1, 0, 1, 1}), (Scores{0.5, -4, 3, 0.5, -1}));
  EXPECT_EQ(processed({.repetition_penalty = 0.5}, kScores, {1, 2}), (Scores{1, -1, 6, 0.5, -1}));
}

TEST(Logits, PaddingIsNotPenalized) {
  const LogitsProcessor process({.repetition_penalty = 2}, {}, 4, 5);
  Scores scores = kScores;
  process(scores, Tokens{0, 0, 1, 2}, 2);
  EXPECT_EQ(scores, (Scores{1, -4, 1.5, 0.5, -1}));
}

TEST(Logits, RunsAreNotThereTwice) {
  EXPECT_EQ(processed({.no_repeat_ngram_size = 1}, kScores, {1, 3}), (Scores{1, kNever, 3, kNever, -1}));
  // 1 was followed by 2, and by 0.
  EXPECT_EQ(processed({.no_repeat_ngram_size = 2}, kScores, {1, 2, 1, 0, 1}), (Scores{kNever, -2, kNever, 0.5, -1}));
  EXPECT_EQ(processed({.no_repeat_ngram_size = 3}, kScores, {0, 1, 2, 0, 1}), (Scores{1, -2, kNever, 0.5, -1}));
  EXPECT_EQ(processed({.no_repeat_ngram_size = 3}, kScores, {0, 1}), kScores);
  EXPECT_EQ(processed({.no_repeat_ngram_size = 9}, kScores, {0, 0, 0}), kScores);
}

TEST(Logits, RowsDoNotEndTooEarly) {
  const Scores without{1, -2, 3, 0.5, kNever};
  EXPECT_EQ(processed({.min_new_tokens = 2}, kScores, {0, 1}), without);
  EXPECT_EQ(processed({.min_new_tokens = 2}, kScores, {0, 1, 2}), without);
  EXPECT_EQ(processed({.min_new_tokens = 2}, kScores, {0, 1, 2, 2}), kScores);
  EXPECT_EQ(processed({.min_length = 3}, kScores, {0, 1}), without);
  EXPECT_EQ(processed({.min_length = 3}, kScores, {0, 1, 2}), kScores);
  EXPECT_FALSE(LogitsProcessor({.min_new_tokens = 2}, {}, 2, 5).changes());
}

TEST(Logits, BadWordsAreLeftOut) {
  EXPECT_EQ(processed({.bad_words_ids = {{2}, {4}}}, kScores, {0, 1}),
            (Scores{1, -2, kNever, 0.5, -1}));  // 4 ends rows
  const LogitsOptions words{.bad_words_ids = {{1, 0, 3}, {0, 2}}};
  EXPECT_EQ(processed(words, kScores, {2, 1, 0}), (Scores{1, -2, kNever, kNever, -1}));
  EXPECT_EQ(processed(words, kScores, {1, 0}), (Scores{1, -2, kNever, 0.5, -1}));  // shorter than the word
  EXPECT_EQ(processed(words, kScores, {0, 1}), kScores);
}

TEST(Logits, OptionsThatAreWrong) {
  auto refuses = [](const LogitsOptions& o, const char* text) {
    EXPECT_NE(value_error_of([&] { LogitsProcessor(o, {}, 1, 5); }).find(text), std::string::npos) << text;
  };
  refuses({.repetition_penalty = 0}, "repetition_penalty is 0");
  refuses({.no_repeat_ngram_size = -1}, "no_repeat_ngram_size is -1");
  refuses({.min_new_tokens = -2}, "min_new_tokens is -2");
  refuses({.bad_words_ids = {{}}}, "one of the bad_words_ids is empty");
  refuses({.bad_words_ids = {{1, 5}}}, "hold 5, which is not in the vocabulary [0, 5)");
}

// What generate() does with them: greedy, and by beams over log probabilities.
TEST(Logits, TokensOfWholeRows) {
  comm::run_ranks(1, [](int) {
    const Model model = drawn(Config(kLlama));
    GenerateOptions o{.max_new_tokens = 12, .logits = {.repetition_penalty = 1.7, .no_repeat_ngram_size = 2}};
    Tokens row = to_vector<int64_t>(tokens(1, 4, 23));
    const LogitsProcessor process(o.logits, {}, 4, 23);
    for (int64_t length = 4; length < 16; ++length) {
      NoGradGuard guard;
      Values logits = to_vector<float>(model(tensor(row, {1, length}), {.logits_to_keep = 1}));
      process(logits, row);
      row.push_back(std::max_element(logits.begin(), logits.end()) - logits.begin());
    }
    EXPECT_EQ(to_vector<int64_t>(generate(model, tokens(1, 4, 23), o)), row);
    EXPECT_NE(to_vector<int64_t>(generate(model, tokens(1, 4, 23), {.max_new_tokens = 12})), row);
    // No pair of tokens twice, in any beam.
    o.num_beams = 3;
    o.logits = {.no_repeat_ngram_size = 2};
    const Tokens beam = to_vector<int64_t>(generate(model, tokens(1, 4, 23), o));
    std::map<std::pair<int64_t, int64_t>, int> pairs;
    for (size_t i = 3; i + 1 < beam.size(); ++i) EXPECT_EQ(++pairs[std::pair(beam[i], beam[i + 1])], 1) << i;
    // The first step of two beams with a penalty: log probabilities, which are negative, are multiplied by it.
    o = {.max_new_tokens = 1, .logits = {.repetition_penalty = 30}, .num_beams = 2};
    const Tokens one = to_vector<int64_t>(generate(model, tokens(1, 4, 23), o));
    NoGradGuard guard;
    const Values logits = to_vector<float>(model(tokens(1, 4, 23), {.logits_to_keep = 1}));
    double sum = 0;
    for (float x : logits) sum += std::exp(static_cast<double>(x));
    std::vector<double> scores;
    for (float x : logits) scores.push_back(static_cast<double>(x) - std::log(sum));
    const Tokens prompt = to_vector<int64_t>(tokens(1, 4, 23));
    for (int64_t t : std::set<int64_t>(prompt.begin(), prompt.end())) scores[static_cast<size_t>(t)] *= 30;
    EXPECT_EQ(one.back(), std::max_element(scores.begin(), scores.end()) - scores.begin());
  });
}

}  // namespace
}  // namespace holon::models
