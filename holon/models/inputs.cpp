#include "holon/models/inputs.h"

#include <string>

#include "holon/base/error.h"
#include "holon/models/kv_cache.h"
#include "holon/ops/reduce.h"
#include "holon/tensor/tracer.h"

namespace holon::models {

namespace {

bool is_integer(DType t) { return t == int64 || t == int32; }

bool names(std::string_view list, std::string_view name) {
  for (size_t at = 0; (at = list.find(name, at)) != std::string_view::npos; at += name.size())
    if ((at == 0 || list[at - 1] == ' ') && (at + name.size() == list.size() || list[at + name.size()] == ','))
      return true;
  return false;
}

void check_cache(const char* model, const Inputs& in, const Tensor& ids) {
  if (in.logits_to_keep < 0 || in.logits_to_keep > ids.size(1))
    fail_value("{}: logits_to_keep is {} of {} positions; it must be from 0, for all of them, to that.", model,
               in.logits_to_keep, ids.size(1));
  if (!in.cache) return;
  if (in.document_ids.defined())
    fail_value("{}: document_ids with a cache are not supported: the documents before are not known. Leave one out.",
               model);
  if (in.cache->length() > 0 && in.cache->rows() != ids.size(0))
    fail_value("{}: {} rows of tokens for a cache of {}. Use a cache for each batch.", model, ids.size(0),
               in.cache->rows());
}

}  // namespace

void check_ids(const char* model, const char* what, const Tensor& ids, int64_t end) {
  if (!is_integer(ids.dtype()))
    fail_type("{}: {} are {}; they must be int64 or int32. Convert them by to(int64).", model, what, name(ids.dtype()));
  if (ids.ndim() != 2 || ids.shape().numel() == 0)
    fail_value("{}: {} have shape {}; it must be [batch, length], neither of them 0.", model, what, ids.shape());
  if (tracer()) return;  // there are no values yet: embedding() looks at them in each step
  NoGradGuard guard;
  const Tensor whole = whole_on_each(ids);
  const int64_t low = amin(whole).item().as_int(), high = amax(whole).item().as_int();
  if (low < 0 || high >= end)
    fail(ErrorKind::kIndex, "{}: {} hold {}, which is not in [0, {}). Use the tokenizer of this checkpoint.", model,
         what, low < 0 ? low : high, end);
}

void check_length(const char* model, int64_t length, int64_t positions) {
  if (length > positions)
    fail_value("{}: rows of {} tokens are longer than the {} positions of the model. Cut them, or scale the positions "
               "in config.json.",
               model, length, positions);
}

void check_inputs(const char* model, const Inputs& in, const Tensor& ids, std::string_view known) {
  const std::pair<const char*, const Tensor&> all[] = {
      {"attention_mask", in.attention_mask},       {"position_ids", in.position_ids},
      {"document_ids", in.document_ids},           {"token_type_ids", in.token_type_ids},
      {"decoder_input_ids", in.decoder_input_ids}, {"decoder_attention_mask", in.decoder_attention_mask}};
  const bool causal = names(known, "cache");
  if (!causal && (in.cache || in.logits_to_keep))
    fail_value("{}: takes no {}{}{}. Leave it out.", model, in.cache ? "cache" : "logits_to_keep",
               known.empty() ? "" : ", but ", known);
  if (causal) check_cache(model, in, ids);
  for (auto& [name, t] : all) {
    if (!t.defined()) continue;
    if (!names(known, name))
      fail_value("{}: takes no {}{}{}. Leave it out.", model, name, known.empty() ? "" : ", but ", known);
    if (std::string_view(name).starts_with("decoder")) continue;
    const bool one_row = std::string_view(name) == "position_ids" && t.ndim() == 2 && t.size(0) == 1;
    const int64_t before = in.cache && std::string_view(name) == "attention_mask" ? in.cache->length() : 0;
    if (t.ndim() != 2 || t.size(1) != before + ids.size(1) || (t.size(0) != ids.size(0) && !one_row))
      fail_value("{}: {} has shape {}, and the tokens {}{}. Give one value for each token.", model, name, t.shape(),
                 ids.shape(), before ? ", behind " + std::to_string(before) + " in the cache" : "");
    if (!is_integer(t.dtype()) && t.dtype() != boolean)
      fail_type("{}: {} is {}; it must be int64, int32 or bool.", model, name, holon::name(t.dtype()));
  }
}

void check_no_inputs(const char* model, const Inputs& in) { check_inputs(model, in, {}, ""); }

void check_pixels(const char* model, const Tensor& pixels, int64_t channels, int64_t size) {
  if (!is_floating(pixels.dtype()))
    fail_type("{}: pixels are {}; they must be floating point. Convert them by to(float32), and normalise them.", model,
              name(pixels.dtype()));
  const Dims& s = pixels.shape();
  const bool square = s.size() == 4 && (size == 0 || (s[2] == size && s[3] == size));
  if (!square || s[1] != channels || s.numel() == 0)
    fail_value("{}: pixels have shape {}; it must be [batch, {}, {}, {}].", model, s, channels,
               size ? std::to_string(size) : "height", size ? std::to_string(size) : "width");
}

}  // namespace holon::models
