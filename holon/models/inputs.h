// What a model is called with besides its tokens or pixels, and the checks of all that.
#pragma once

#include <cstdint>
#include <string_view>

#include "holon/models/layout.h"
#include "holon/tensor/tensor.h"

namespace holon::models {

class KvCache;
class RouterLosses;

// Each tensor is global, or local and alike on all ranks; [batch, length] of integers unless it says otherwise.
struct Inputs {
  // 1 (or true) where a token is seen, 0 where it is padding; with a cache, of all tokens: those there and these.
  Tensor attention_mask{};
  // By default 0, 1, ... in each row, behind those in the cache. Without an attention mask or a cache, a position that
  // is not its predecessor's plus 1 begins another document, as in transformers: attention stays within documents.
  Tensor position_ids{};
  Tensor document_ids{};                  // packed documents: attention is among tokens of equal ids
  Tensor token_type_ids{};                // BERT: which sentence a token is of
  Tensor decoder_input_ids{};             // T5: by default the labels, shifted
  Tensor decoder_attention_mask{};        // T5
  KvCache* cache = nullptr;               // keys and values of the tokens before these, to which these are added
  RouterLosses* router_losses = nullptr;  // takes what the routers of experts choose (router_loss.h)
  int64_t logits_to_keep = 0;             // logits of so many of the last positions only; 0: of all
};

// Errors, before anything is computed. model: for messages.
// Of tokens (TypeError, ValueError): not [batch, length] of int64 or int32; no token. IndexError: an id that is not in
// [0, vocabulary); it is not looked for while a graph is captured. Collective for a global tensor.
void check_ids(const char* model, const char* what, const Tensor& ids, int64_t end);
// ValueError: the length is over the number of positions.
void check_length(const char* model, int64_t length, int64_t positions);
// ValueError: one of the inputs that this model does not know is given, or one is not of the tokens' shape, or the
// cache is of other rows. known: names of Inputs' members, by commas; logits_to_keep goes with cache.
void check_inputs(const char* model, const Inputs& inputs, const Tensor& ids, std::string_view known);

// ValueError: any of the inputs is given.
void check_no_inputs(const char* model, const Inputs& inputs);
// Of images (TypeError, ValueError): not [batch, channels, size, size] of a floating point dtype; size 0: of any size.
void check_pixels(const char* model, const Tensor& pixels, int64_t channels, int64_t size);

}  // namespace holon::models
