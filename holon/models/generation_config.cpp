// What a checkpoint's generation_config.json asks for, as options of generate().
#include <utility>
#include <vector>

#include "holon/base/error.h"
#include "holon/models/generate.h"

namespace holon::models {

using checkpoint::Value;

namespace {

// What transformers knows and is not there, with the number, besides null, false, "" and an empty list, that asks for
// nothing.
struct Absent {
  const char* name;
  double nothing = 0;
};
constexpr Absent kAbsent[] = {{"begin_suppress_tokens"},
                              {"constraints"},
                              {"diversity_penalty"},
                              {"dola_layers"},
                              {"encoder_no_repeat_ngram_size"},
                              {"encoder_repetition_penalty", 1},
                              {"epsilon_cutoff"},
                              {"eta_cutoff"},
                              {"exponential_decay_length_penalty"},
                              {"force_words_ids"},
                              {"forced_bos_token_id", -1},
                              {"forced_decoder_ids"},
                              {"forced_eos_token_id", -1},
                              {"guidance_scale", 1},
                              {"max_time"},
                              {"min_p"},
                              {"num_beam_groups", 1},
                              {"num_return_sequences", 1},
                              {"penalty_alpha"},
                              {"remove_invalid_values"},
                              {"renormalize_logits"},
                              {"sequence_bias"},
                              {"suppress_tokens"},
                              {"token_healing"},
                              {"top_h"},
                              {"typical_p", 1},
                              {"watermarking_config"}};

bool asks_for_nothing(const Value& v, double nothing) {
  if (auto* flag = v.get_if<bool>()) return !*flag;
  if (auto* n = v.get_if<int64_t>()) return static_cast<double>(*n) == nothing;
  if (auto* x = v.get_if<double>()) return *x == nothing;
  if (auto* text = v.get_if<std::string>()) return text->empty();
  if (v.get_if<Value::List>() || v.get_if<Value::Tuple>()) return v.list().empty();
  if (auto* dict = v.get_if<Value::Dict>()) return dict->empty();
  return v.is_null();
}

std::vector<std::vector<int64_t>> words_of(const Config& c, const char* key) {
  auto wrong = [&] {
    fail_value("generate: {}: '{}' must be a list of lists of integers, the tokens of words.", c.source(), key);
  };
  std::vector<std::vector<int64_t>> words;
  if (!c.is_list(key)) wrong();
  for (auto& word : c.find(key)->list()) {
    if (!word.get_if<Value::List>()) wrong();
    auto& tokens = words.emplace_back();
    for (auto& t : word.list()) {
      if (!t.get_if<int64_t>()) wrong();
      tokens.push_back(t.integer());
    }
  }
  return words;
}

}  // namespace

GenerateOptions generation_options(const Model& model) {
  const Config& c = model.generation_config();
  for (auto& absent : kAbsent)
    if (const Value* v = c.find(absent.name); v && !asks_for_nothing(*v, absent.nothing))
      fail_value("generate: {} asks for '{}', which is not there. Take it out of the file or of the model's "
                 "generation_config.",
                 c.source(), absent.name);
  GenerateOptions o;
  if (c.has("max_new_tokens")) o.max_new_tokens = c.integer("max_new_tokens");
  if (c.has("max_length")) o.max_length = c.integer("max_length");
  o.do_sample = c.flag("do_sample", false);
  // Files of models that draw no samples have a temperature of 0.
  const double temperature = c.number("temperature", 1);
  if (o.do_sample || temperature > 0) o.sampling.temperature = temperature;
  o.sampling.top_p = c.number("top_p", 1);
  if (c.lists("top_k")) {
    const int64_t k = c.integer("top_k", 0);
    o.sampling.top_k = k == 0 ? std::optional<int64_t>() : k;
  }
  o.logits.repetition_penalty = c.number("repetition_penalty", 1);
  o.logits.no_repeat_ngram_size = c.integer("no_repeat_ngram_size", 0);
  o.logits.min_new_tokens = c.integer("min_new_tokens", 0);
  o.logits.min_length = c.integer("min_length", 0);
  if (c.has("bad_words_ids")) o.logits.bad_words_ids = words_of(c, "bad_words_ids");
  o.num_beams = c.integer("num_beams", 1);
  o.length_penalty = c.number("length_penalty", 1);
  o.early_stopping = c.flag("early_stopping", false);
  if (c.has("stop_strings"))
    o.stop_strings = c.is_list("stop_strings") ? c.texts("stop_strings") : std::vector{c.text("stop_strings")};
  o.use_cache = c.flag("use_cache", true);
  // How keys are kept changes no token: what another program keeps elsewhere is kept as ever here.
  if (o.use_cache && c.text("cache_implementation", "") == "static" && model.causal_sizes() &&
      !model.causal_sizes()->decoder_start)
    o.cache_implementation = "static";
  const auto sizes = model.causal_sizes();
  if (sizes && sizes->decoder_start &&
      c.integer("decoder_start_token_id", *sizes->decoder_start) != *sizes->decoder_start)
    fail_value("generate: {}: decoder_start_token_id is {}, and that of the model's configuration {}. Make them equal.",
               c.source(), c.integer("decoder_start_token_id"), *sizes->decoder_start);
  return o;
}

}  // namespace holon::models
