// Attention whose queries and keys are both split along the sequence: each rank keeps its queries, and the keys and
// values of the others come to it one block after the other ("ring attention": Liu, Zaharia, Abbeel, 2023), of which it
// holds one at a time. Partial results are joined by the logarithms of their sums. In the backward pass the gradients
// of keys and values go back to the ranks that hold them, which add them in the order of the steps.
//
// Every rank of the group calls these in the same order; which shares it computes with is in sequence_shares.h.
#pragma once

#include "holon/kernels/attention.h"
#include "holon/registry/op_def.h"

namespace holon::ops {

// Whether inputs q and k of the call (query and key) are split along the sequence by the same axes of ranks.
bool sequence_is_split(const KernelCall& c, size_t q, size_t k);

// Inputs query, key, value from q on -> out, lse. options: of the rank's own parts; masks are as large along the keys
// as there are keys in all, documents likewise.
void ring_attention(KernelCall& c, const kernels::Attention& options);

// dout, query, key, value, out, lse -> dquery, dkey, dvalue.
void ring_attention_backward(KernelCall& c, const kernels::Attention& options);

}  // namespace holon::ops
