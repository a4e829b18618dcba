// Tokens that follow prompts, by causal models, or that an encoder-decoder makes of them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "holon/models/logits.h"
#include "holon/models/model.h"
#include "holon/models/sampling.h"

namespace holon::models {

// The names are those of transformers' generate().
struct GenerateOptions {
  // How many tokens follow at most; or else how long rows become at most, with their prompts; or else 20 new ones.
  std::optional<int64_t> max_new_tokens{};
  std::optional<int64_t> max_length{};
  // Samples tokens, by the sampling's options; otherwise the most probable token is next.
  bool do_sample = false;
  SamplingOptions sampling{};
  LogitsOptions logits{};
  // Samples depend on the seed, the step and the row only, not on the layout. By default they are draws of this rank's
  // random state, as manual_seed() sets it.
  std::optional<uint64_t> seed{};
  // Beam search: the continuations that are kept for each prompt; the score of one is its log probability over
  // length^length_penalty. early_stopping: ends with the first num_beams that are complete.
  int64_t num_beams = 1;
  double length_penalty = 1;
  bool early_stopping = false;
  // A row ends with any of these; by default "eos_token_id" of generation_config.json, or else that of config.json, if
  // the vocabulary has it.
  std::optional<std::vector<int64_t>> eos_token_id{};
  // Behind the end of a row; by default "pad_token_id" of the same files, or else the first eos_token_id.
  std::optional<int64_t> pad_token_id{};
  // [batch, length]: 0 for padding, which must be before the prompts; an encoder's may be anywhere.
  Tensor attention_mask{};
  // A row ends where the text of its new tokens has one of these, by decode, which makes text of tokens.
  std::vector<std::string> stop_strings{};
  std::function<std::string(const std::vector<int64_t>& tokens)> decode{};
  // Called with the number of each step, from 0 on, and the new token of each row, on every rank. false on any rank
  // ends the generation after this step.
  std::function<bool(int64_t step, const std::vector<int64_t>& tokens)> streamer{};
  // Keeps keys and values; otherwise each step computes all tokens again.
  bool use_cache = true;
  // "dynamic": steps run op by op, as models do. "static": steps of one token are compiled (nn::Graph), again each time
  // that the memory of keys and values has become twice as large; not for encoder-decoders.
  std::string cache_implementation = "dynamic";
};

// What the model's generation_config says (Model::generation_config()), and the defaults above for the rest, such as
// the tokens that end a row, which generate() looks up there itself. Members that transformers does not know are passed
// over, as there. Errors (ValueError): one of another type; one that asks for what is not there, such as contrastive
// search, which names it.
GenerateOptions generation_options(const Model& model);

// The prompts with the tokens that follow: int64 [batch, length + new tokens], local and alike on all ranks, padded
// behind the ends of rows; of an encoder-decoder (T5) the decoder's tokens [batch, 1 + new tokens]. ids: prompts
// [batch, length], global, or local and alike on all ranks. The model's mode stays: call eval() first. Collective over
// the world.
//
// Errors, before anything is computed: a model that is not causal, prompts and new tokens longer than its positions,
// options out of range, padding behind a prompt (ValueError); prompts that are not integers (TypeError), or not in the
// vocabulary (IndexError).
Tensor generate(const Model& model, const Tensor& ids, const GenerateOptions& options);
// By generation_options(model).
Tensor generate(const Model& model, const Tensor& ids);

}  // namespace holon::models
