// Attention of arrays by a library (dnn.h): float16 and bfloat16, with lengths that are multiples of 64, without a
// mask, documents or dropout, whose draws are the same on every device. False, with nothing done: there is no library,
// it is not to be used (holon/kernels/cudnn.h), or it has no way to do this one.
#pragma once

#include "holon/kernels/attention.h"

namespace holon::kernels::cuda {

// As kernels::attention and its gradients, for arrays with elements.
bool library_attention(const Array& q, const Array& k, const Array& v, const Attention& options, Array& out,
                       Array* lse);
bool library_attention_backward(const Array& dout, const Array& q, const Array& k, const Array& v, const Array& out,
                                const Array& lse, const Attention& options, Array& dq, Array& dk, Array& dv);

}  // namespace holon::kernels::cuda
