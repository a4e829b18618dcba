#include "holon/models/beam_search.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "holon/base/index.h"
#include "holon/models/sampling.h"

namespace holon::models {

namespace {

using Tokens = std::vector<int64_t>;

struct Beam {
  Tokens tokens;
  double score = 0;  // the log probability; of one that is complete, over its length^length_penalty
};

// A beam with one more token.
struct Candidate {
  int64_t beam = 0, token = 0;
  double score = 0;
};

// What a prompt has so far.
struct Prompt {
  std::vector<Beam> running, complete;  // both from the best on
  bool improvable = true;               // whether a running beam may still become better than those complete
};

bool better(const Candidate& a, const Candidate& b) {
  if (a.score != b.score) return a.score > b.score;
  return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
}

// log(sum of e^x).
double log_sum(std::span<const float> x) {
  const auto largest = static_cast<double>(x[to_size(most_probable(x))]);
  double sum = 0;
  for (float v : x) sum += std::exp(static_cast<double>(v) - largest);
  return largest + std::log(sum);
}

// Scores become log probabilities, changed as the options say.
void process_all(Logits& logits, const Decoder& decoder, const LogitsProcessor& process) {
  for (int64_t r = 0; r < logits.count(); ++r) {
    const auto x = logits.mutable_row(r);
    const double sum = log_sum(x);
    for (float& v : x) v = static_cast<float>(static_cast<double>(v) - sum);
    process(x, decoder.tokens(r), decoder.padding(r));
  }
}

// The best n continuations of a prompt's beams, from the best on; row: of its first beam in the logits. normalized: the
// logits are log probabilities.
std::vector<Candidate> best_of(const Prompt& prompt, const Logits& logits, int64_t row, int64_t n, bool normalized) {
  std::vector<Candidate> best;  // a heap with the worst of them first
  for (int64_t b = 0; b < static_cast<int64_t>(prompt.running.size()); ++b) {
    const auto x = logits.row(row + b);
    const double base = at_index(prompt.running, b).score - (normalized ? 0 : log_sum(x));
    for (int64_t t = 0; t < static_cast<int64_t>(x.size()); ++t) {
      const Candidate c{b, t, base + static_cast<double>(x[to_size(t)])};
      const bool full = static_cast<int64_t>(best.size()) == n;
      if (full && !better(c, best.front())) continue;
      if (full) {
        std::pop_heap(best.begin(), best.end(), better);
        best.pop_back();
      }
      best.push_back(c);
      std::push_heap(best.begin(), best.end(), better);
    }
  }
  std::sort_heap(best.begin(), best.end(), better);
  return best;
}

}  // namespace

std::vector<Tokens> beam_search(Decoder& decoder, int64_t rows, const BeamOptions& o, const LogitsProcessor& process) {
  std::vector<Prompt> prompts(to_size(rows));
  for (auto& p : prompts) p.running.emplace_back();
  const auto ends = static_cast<int64_t>(o.eos.size());
  // As many that do not end as there are beams are among these.
  const int64_t wanted = std::max<int64_t>(2, 1 + ends) * o.num_beams;
  for (int64_t length = 1; length <= o.max_new_tokens; ++length) {
    Logits logits = decoder.next();
    if (process.changes()) process_all(logits, decoder, process);
    const double divisor = std::pow(static_cast<double>(length), o.length_penalty);
    Tokens parents, next;
    int64_t row = 0;
    bool open = false, all_complete = true;
    for (auto& p : prompts) {
      const auto candidates = best_of(p, logits, row, wanted, process.changes());
      const auto full = [&] { return static_cast<int64_t>(p.complete.size()) == o.num_beams; };
      const bool closed = !p.improvable || (o.early_stopping && full());
      std::vector<Beam> running;
      for (int64_t i = 0; i < static_cast<int64_t>(candidates.size()); ++i) {
        const Candidate& c = at_index(candidates, i);
        Tokens tokens = at_index(p.running, c.beam).tokens;
        tokens.push_back(c.token);
        const bool ended = length == o.max_new_tokens || std::find(o.eos.begin(), o.eos.end(), c.token) != o.eos.end();
        if (!ended) {
          if (static_cast<int64_t>(running.size()) == o.num_beams) continue;
          parents.push_back(row + c.beam);
          next.push_back(c.token);
          running.push_back({std::move(tokens), c.score});
        } else if (i < o.num_beams && !closed) {
          p.complete.push_back({std::move(tokens), c.score / divisor});
        }
      }
      row += static_cast<int64_t>(p.running.size());
      std::stable_sort(p.complete.begin(), p.complete.end(),
                       [](const Beam& a, const Beam& b) { return a.score > b.score; });
      if (static_cast<int64_t>(p.complete.size()) > o.num_beams) p.complete.resize(to_size(o.num_beams));
      p.running = std::move(running);
      if (p.running.empty()) continue;
      p.improvable = p.improvable && (!full() || p.running[0].score / divisor > p.complete.back().score);
      open |= p.improvable;
      all_complete &= full();
    }
    if (!open || (o.early_stopping && all_complete)) break;
    // The first step is of the prompts alone; from then on each has as many rows as beams.
    decoder.select_rows(parents);
    decoder.append(next);
  }
  std::vector<Tokens> best;
  // The search ends when each prompt has one that is complete, at the latest with the last token.
  for (auto& p : prompts) best.push_back(at_index(p.complete, 0).tokens);
  return best;
}

}  // namespace holon::models
