#include "holon/models/generate.h"

#include <algorithm>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/dispatch/random_state.h"
#include "holon/models/beam_search.h"
#include "holon/models/decoder.h"
#include "holon/ops/to_global.h"
#include "holon/ops/values.h"
#include "holon/tensor/tracer.h"

namespace holon::models {

namespace {

constexpr const char* kName = "generate";
using Tokens = std::vector<int64_t>;

void check_options(const GenerateOptions& o) {
  const SamplingOptions& s = o.sampling;
  if (o.max_new_tokens && *o.max_new_tokens < 1)
    fail_value("{}: max_new_tokens is {}; it must be 1 or more.", kName, *o.max_new_tokens);
  if (!(s.temperature > 0) || s.temperature > 1e30)
    fail_value("{}: temperature is {}; it must be positive. For the most probable token leave out do_sample.", kName,
               s.temperature);
  if (s.top_k && *s.top_k < 1)
    fail_value("{}: top_k is {}; it must be 1 or more, or none for all tokens.", kName, *s.top_k);
  if (!(s.top_p > 0 && s.top_p <= 1)) fail_value("{}: top_p is {}; it must be above 0 and at most 1.", kName, s.top_p);
  if (o.num_beams < 1) fail_value("{}: num_beams is {}; it must be 1 or more.", kName, o.num_beams);
  if (o.num_beams > 1) {
    const char* other = o.do_sample ? "do_sample" : o.streamer ? "a streamer" : "stop_strings";
    if (o.do_sample || o.streamer || !o.stop_strings.empty())
      fail_value("{}: num_beams is {} with {}; beam search is without. Leave one out.", kName, o.num_beams, other);
  }
  if (!o.stop_strings.empty() && !o.decode)
    fail_value("{}: stop_strings need the text of tokens. Give decode, too (tokenizer in Python).", kName);
  for (auto& text : o.stop_strings)
    if (text.empty()) fail_value("{}: one of the stop_strings is empty. Leave it out.", kName);
}

CacheUse use_of(const GenerateOptions& o, bool encoded) {
  const bool compiled = o.cache_implementation == "static";
  if (!compiled && o.cache_implementation != "dynamic")
    fail_value("{}: cache_implementation is '{}'; it must be 'dynamic' or 'static'.", kName, o.cache_implementation);
  if (compiled && !o.use_cache)
    fail_value("{}: use_cache is false, and cache_implementation 'static'. Leave one out.", kName);
  if (compiled && encoded)
    fail_value("{}: cache_implementation is 'static'; steps of an encoder-decoder are not compiled. Leave it out.",
               kName);
  return !o.use_cache ? CacheUse::kNone : compiled ? CacheUse::kStatic : CacheUse::kDynamic;
}

// How many tokens follow rows of a length.
int64_t new_tokens_of(const GenerateOptions& o, int64_t length) {
  if (o.max_new_tokens) return *o.max_new_tokens;
  if (!o.max_length) return 20;
  if (*o.max_length <= length)
    fail_value("{}: max_length is {}, and the prompts have {} tokens already. Choose a larger one, or max_new_tokens.",
               kName, *o.max_length, length);
  return *o.max_length - length;
}

// The file of the two that has the member.
const Config& config_with(const Model& model, const char* key) {
  const Config& own = model.generation_config();
  return own.has(key) ? own : model.config();
}

// The tokens that end a row.
Tokens ends_of(const Model& model, const GenerateOptions& o, int64_t vocabulary) {
  auto known = [&](int64_t t) { return t >= 0 && t < vocabulary; };
  if (o.eos_token_id) {
    for (int64_t t : *o.eos_token_id)
      if (!known(t)) fail_value("{}: eos_token_id {} is not in the vocabulary [0, {}).", kName, t, vocabulary);
    return *o.eos_token_id;
  }
  const Config& c = config_with(model, "eos_token_id");
  if (!c.has("eos_token_id")) return {};
  Tokens ends = c.is_list("eos_token_id") ? c.integers("eos_token_id") : Tokens{c.integer("eos_token_id")};
  std::erase_if(ends, [&](int64_t t) { return !known(t); });
  return ends;
}

int64_t padding_of(const Model& model, const GenerateOptions& o, const Tokens& ends, int64_t vocabulary) {
  if (!o.pad_token_id) {
    const int64_t own = config_with(model, "pad_token_id").integer("pad_token_id", -1);
    if (own >= 0 && own < vocabulary) return own;
    return ends.empty() ? 0 : ends[0];
  }
  if (*o.pad_token_id < 0 || *o.pad_token_id >= vocabulary)
    fail_value("{}: pad_token_id {} is not in the vocabulary [0, {}).", kName, *o.pad_token_id, vocabulary);
  return *o.pad_token_id;
}

// 1 for tokens, 0 for padding; without values if there is no padding. continued: new tokens follow the row's last.
Rows mask_of(const Tensor& mask, const Tensor& ids, bool continued) {
  if (!mask.defined()) return {};
  check_inputs(kName, {.attention_mask = mask}, ids, "attention_mask");
  Rows rows{to_vector<int64_t>(mask), mask.size(1)};
  bool padded = false;
  for (int64_t& x : rows.values) {
    x = x != 0;
    padded |= x == 0;
  }
  for (int64_t i = 0; i < rows.count(); ++i)
    if (continued && rows.row(i).back() == 0)
      fail_value("{}: the prompt of row {} ends with padding, which new tokens would follow. Pad on the left: "
                 "attention_mask must end with 1 in each row.",
                 kName, i);
  return padded ? rows : Rows{};
}

// Whether all ranks go on: one that stops stops them all, or the others would wait for it.
bool all_go_on(bool here) {
  const int world = Context::current().world_size();
  if (world == 1) return here;
  const Tensor stopped = tensor({here ? 0 : 1});
  std::vector<int64_t> ranks;
  for (int r = 0; r < world; ++r) ranks.push_back(r);
  const Placement all("cpu", Dims{world}, ranks);
  return to_global(stopped, all, sbp::partial_sum()).item<int64_t>() == 0;
}

// Tokens of rows that have ended are the padding.
class NewTokens {
 public:
  NewTokens(int64_t rows, Tokens ends, int64_t padding, const GenerateOptions& o)
      : rows_(to_size(rows)), ended_(to_size(rows), false), ends_(std::move(ends)), padding_(padding), options_(o) {}

  bool ended(int64_t row) const { return at_index(ended_, row); }
  bool all_ended() const {
    return std::all_of(ended_.begin(), ended_.end(), [](bool x) { return x; });
  }
  int64_t padding() const { return padding_; }
  void append(const Tokens& tokens) {
    for (size_t r = 0; r < rows_.size(); ++r) {
      rows_[r].push_back(tokens[r]);
      if (!ended_[r]) ended_[r] = ends_.end() != std::find(ends_.begin(), ends_.end(), tokens[r]) || has_stop(rows_[r]);
    }
  }
  const std::vector<Tokens>& rows() const { return rows_; }

 private:
  bool has_stop(const Tokens& tokens) const {
    if (options_.stop_strings.empty()) return false;
    const std::string text = options_.decode(tokens);
    return std::any_of(options_.stop_strings.begin(), options_.stop_strings.end(),
                       [&](const std::string& s) { return text.find(s) != std::string::npos; });
  }
  std::vector<Tokens> rows_;
  std::vector<bool> ended_;
  Tokens ends_;
  int64_t padding_;
  const GenerateOptions& options_;
};

// The seed, and the number of the first draw.
std::pair<uint64_t, uint64_t> draws_of(const GenerateOptions& o, int64_t new_tokens) {
  if (o.seed) return {*o.seed, 0};
  RandomState& state = random_state();
  const auto first = static_cast<uint64_t>(state.global_counter);
  state.global_counter += new_tokens;
  return {state.seed, first};
}

void token_by_token(Decoder& decoder, NewTokens& made, const GenerateOptions& o, const LogitsProcessor& process,
                    int64_t new_tokens) {
  const auto [seed, first] = o.do_sample ? draws_of(o, new_tokens) : std::pair<uint64_t, uint64_t>{};
  for (int64_t step = 0; step < new_tokens; ++step) {
    Logits logits = decoder.next();
    Tokens tokens;
    for (int64_t row = 0; row < logits.count(); ++row) {
      int64_t token = made.padding();
      if (!made.ended(row)) {
        if (process.changes()) process(logits.mutable_row(row), decoder.tokens(row), decoder.padding(row));
        const auto x = logits.row(row);
        token = o.do_sample
            ? sample(probabilities(x, o.sampling), uniform(seed, first + static_cast<uint64_t>(step), row))
            : most_probable(x);
      }
      tokens.push_back(token);
    }
    made.append(tokens);
    if (o.streamer && !all_go_on(o.streamer(step, tokens))) return;
    if (made.all_ended()) return;
    if (step + 1 < new_tokens) decoder.append(tokens);
  }
}

}  // namespace

Tensor generate(const Model& model, const Tensor& ids, const GenerateOptions& o) {
  if (tracer()) fail_runtime("{}: a graph is captured, in which tokens have no values. Call it outside.", kName);
  const auto sizes = model.causal_sizes();
  if (!sizes)
    fail_value("{}: a model of type '{}' does not predict next tokens; models that do are those of GPT-2, Llama, "
               "DeepSeek and T5.",
               kName, model.config().text("model_type", "?"));
  check_options(o);
  check_ids(kName, "the prompts", ids, sizes->vocabulary);
  const bool encoded = sizes->decoder_start.has_value();
  const int64_t rows = ids.size(0), length = encoded ? 1 : ids.size(1);
  const int64_t new_tokens = new_tokens_of(o, length);
  if (new_tokens > sizes->positions - length)
    fail_value("{}: prompts of {} tokens and {} new ones are longer than the {} positions of the model. Choose a "
               "smaller max_new_tokens, or cut the prompts.",
               kName, length, new_tokens, sizes->positions);
  const Tokens ends = ends_of(model, o, sizes->vocabulary);
  const int64_t padding = padding_of(model, o, ends, sizes->vocabulary);
  Rows mask = mask_of(o.attention_mask, ids, !encoded);
  Rows given{to_vector<int64_t>(ids), ids.size(1)};
  Prompts prompts{.tokens = given, .mask = mask};
  if (encoded)
    prompts = {.tokens = {Tokens(to_size(rows), *sizes->decoder_start), 1},
               .source = std::move(given),
               .source_mask = std::move(mask)};

  const LogitsProcessor process(o.logits, ends, length, sizes->vocabulary);
  Decoder decoder(model, prompts, length + new_tokens, use_of(o, encoded));
  std::vector<Tokens> made;
  if (o.num_beams > 1) {
    made = beam_search(decoder, rows,
                       {.num_beams = o.num_beams,
                        .max_new_tokens = new_tokens,
                        .length_penalty = o.length_penalty,
                        .early_stopping = o.early_stopping,
                        .eos = ends},
                       process);
  } else {
    NewTokens tokens(rows, ends, padding, o);
    token_by_token(decoder, tokens, o, process, new_tokens);
    made = tokens.rows();
  }
  size_t longest = 0;
  for (auto& row : made) longest = std::max(longest, row.size());
  Tokens out;
  for (int64_t r = 0; r < rows; ++r) {
    const auto prompt = prompts.tokens.row(r);
    Tokens& row = at_index(made, r);
    row.resize(longest, padding);
    out.insert(out.end(), prompt.begin(), prompt.end());
    out.insert(out.end(), row.begin(), row.end());
  }
  return tensor(out, {rows, length + static_cast<int64_t>(longest)});
}

Tensor generate(const Model& model, const Tensor& ids) { return generate(model, ids, generation_options(model)); }

}  // namespace holon::models
