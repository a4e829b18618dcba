// How attention over a split sequence communicates: a choice by cost, alike on all ranks.
#pragma once

#include <cstdint>

#include "holon/tensor/tensor.h"

namespace holon::ops {

// kRing: the op as it is, keys and values pass by (ring_attention.h). kHeads: query, key and value are split along the
// heads instead, and the result comes back (all-to-all over heads: "DeepSpeed Ulysses", Jacobs et al., 2023). kGather:
// each rank gets all keys and values, for sequences so short that a rank's cache has them.
enum class SequenceAttention : uint8_t { kRing, kHeads, kGather };

// Of query, key and value [batch, heads, length, width].
struct SequenceCall {
  Tensor query{}, key{}, value{};
  bool causal = false;
  int64_t window = 0;
  bool gradients = false;  // a backward pass follows
};

// Whether all three are split along the sequence by the same axes of ranks.
bool sequence_is_split(const SequenceCall& call);

// Errors (ValueError): HOLON_SEQUENCE_ATTENTION is none of its texts, or asks for heads that the ranks do not divide.
SequenceAttention choose_sequence_attention(const SequenceCall& call, const char* op);

// x with these axes of ranks splitting `axis` instead of the sequence, or broadcast (axis < 0); op's event of a boxing.
Tensor instead_of_sequence(const Tensor& x, const SequenceCall& call, int axis, const char* op);
// The other way round: y, split along the heads, as the call's query is.
Tensor back_to_sequence(const Tensor& y, const SequenceCall& call, const char* op);

}  // namespace holon::ops
