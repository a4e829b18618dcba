// What the device variants of products and convolutions are made of.
#pragma once

#include "holon/array/array.h"
#include "holon/kernels/cuda/blas.h"
#include "holon/kernels/matmul_plan.h"

namespace holon::kernels::cuda {

struct ProductOptions {
  double alpha = 1, beta = 0;    // beta == 0: out is not read
  const Array* bias = nullptr;   // [n], of out's dtype; beta is 0 then
  const Array* other = nullptr;  // added: of out's shape and dtype, may be out itself; beta is 0 then
  // [m], of out's dtype: becomes beta times itself + the sums of a's rows. a and b have two axes then, alpha is 1, and
  // of the others only beta and tf32 are given.
  Array* sums = nullptr;
  Act act = Act::kNone;
  bool tf32 = false;
};

// out[..., m, n] = act(alpha * a[..., m, k] @ b[..., k, n] + beta * out + bias + other), as kernels::matmul. a and b
// have one dtype; out has the same or, where that is float16 or bfloat16, float32. False: act was not done, the rest
// was.
bool multiply(const Array& a, const Array& b, Array& out, const ProductOptions& options);

// The plan's products by an own kernel: for what no library does. Any dtype.
void plain_product(const MatmulPlan& plan, const Array& a, const Array& b, Array& out, double alpha, double beta);

// y = gelu(y), and its slope where y was.
void gelu_and_slope(Array& y, Array& slope, bool by_tanh);

}  // namespace holon::kernels::cuda
