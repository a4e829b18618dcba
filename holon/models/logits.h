// What changes the scores of a row's next token before one is chosen, as the processors of transformers do.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace holon::models {

// With transformers' names. What is there already is the row so far: a prompt with its padding and the new tokens, or a
// decoder's tokens from its start token on.
struct LogitsOptions {
  // The score of each token that is there already, padding left aside, is divided by it, or multiplied if it is
  // negative.
  double repetition_penalty = 1;
  // No run of so many tokens is there twice; 0: any may be.
  int64_t no_repeat_ngram_size = 0;
  // A row does not end before it has so many new tokens, or so many in all.
  int64_t min_new_tokens = 0, min_length = 0;
  // Runs of tokens that are not to be: the last token of one is left out where the others are before it. One of more
  // than a token counts in rows that are at least as long as it.
  std::vector<std::vector<int64_t>> bad_words_ids{};
};

// Changes scores by these options.
class LogitsProcessor {
 public:
  // ends: the tokens that end a row; prompt: the tokens of a row at first; vocabulary: how many scores there are.
  // Errors (ValueError): options out of range, and words that are empty or have tokens outside the vocabulary.
  LogitsProcessor(const LogitsOptions& options, std::vector<int64_t> ends, int64_t prompt, int64_t vocabulary);

  // Whether any of the options changes scores.
  bool changes() const;
  // Of a row, which begins with so many tokens of padding; -infinity leaves a token out.
  void operator()(std::span<float> scores, std::span<const int64_t> row, int64_t padding = 0) const;

 private:
  void penalize(std::span<float> scores, std::span<const int64_t> row) const;
  void leave_out_ngrams(std::span<float> scores, std::span<const int64_t> row) const;
  void leave_out_words(std::span<float> scores, std::span<const int64_t> row) const;
  LogitsOptions options_;
  std::vector<int64_t> ends_;
  int64_t prompt_;
};

}  // namespace holon::models
