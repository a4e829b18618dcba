#include "holon/models/logits.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "holon/base/error.h"
#include "holon/base/index.h"

namespace holon::models {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Whether a run is at the end of a row.
bool ends_with(std::span<const int64_t> row, std::span<const int64_t> run) {
  return run.size() <= row.size() && std::equal(run.begin(), run.end(), row.end() - static_cast<int64_t>(run.size()));
}

}  // namespace

LogitsProcessor::LogitsProcessor(const LogitsOptions& o, std::vector<int64_t> ends, int64_t prompt, int64_t vocabulary)
    : options_(o), ends_(std::move(ends)), prompt_(prompt) {
  if (!(o.repetition_penalty > 0) || o.repetition_penalty > 1e30)
    fail_value("generate: repetition_penalty is {}; it must be positive, and is 1 for none.", o.repetition_penalty);
  for (auto [name, n] : {std::pair{"no_repeat_ngram_size", o.no_repeat_ngram_size},
                         {"min_new_tokens", o.min_new_tokens},
                         {"min_length", o.min_length}})
    if (n < 0) fail_value("generate: {} is {}; it must be 0 or more.", name, n);
  for (auto& word : o.bad_words_ids) {
    if (word.empty()) fail_value("generate: one of the bad_words_ids is empty. Leave it out.");
    for (int64_t t : word)
      if (t < 0 || t >= vocabulary)
        fail_value("generate: the bad_words_ids hold {}, which is not in the vocabulary [0, {}).", t, vocabulary);
  }
  // A row can always end: its end cannot be a bad word, as in transformers.
  std::erase_if(options_.bad_words_ids, [&](auto& word) {
    return word.size() == 1 && std::find(ends_.begin(), ends_.end(), word[0]) != ends_.end();
  });
}

bool LogitsProcessor::changes() const {
  const LogitsOptions& o = options_;
  return o.repetition_penalty != 1 || o.no_repeat_ngram_size > 0 || !o.bad_words_ids.empty() ||
      (!ends_.empty() && (o.min_new_tokens > 0 || o.min_length > 0));
}

void LogitsProcessor::operator()(std::span<float> scores, std::span<const int64_t> row, int64_t padding) const {
  penalize(scores, row.subspan(to_size(padding)));
  leave_out_ngrams(scores, row);
  leave_out_words(scores, row);
  const auto length = static_cast<int64_t>(row.size());
  if (length < options_.min_length || length - prompt_ < options_.min_new_tokens)
    for (int64_t t : ends_) scores[to_size(t)] = kNever;
}

void LogitsProcessor::penalize(std::span<float> scores, std::span<const int64_t> row) const {
  if (options_.repetition_penalty == 1) return;
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  std::vector<int64_t> there(row.begin(), row.end());
  std::sort(there.begin(), there.end());
  there.erase(std::unique(there.begin(), there.end()), there.end());
  for (int64_t t : there) {
    float& x = scores[to_size(t)];
    x = x < 0 ? x * penalty : x / penalty;
  }
}

void LogitsProcessor::leave_out_ngrams(std::span<float> scores, std::span<const int64_t> row) const {
  const auto n = to_size(options_.no_repeat_ngram_size);
  if (n == 0 || row.size() + 1 < n) return;
  const auto run = row.last(n - 1);
  for (size_t i = 0; i + n <= row.size(); ++i)
    if (std::equal(run.begin(), run.end(), row.begin() + static_cast<int64_t>(i)))
      scores[to_size(row[i + n - 1])] = kNever;
}

void LogitsProcessor::leave_out_words(std::span<float> scores, std::span<const int64_t> row) const {
  for (auto& word : options_.bad_words_ids) {
    const std::span<const int64_t> all(word);
    const bool counts = all.size() == 1 || (all.size() <= row.size() && ends_with(row, all.first(all.size() - 1)));
    if (counts) scores[to_size(word.back())] = kNever;
  }
}

}  // namespace holon::models
