// Products in trees (sum_tree.h) of matrices whose elements may be where tables say.
#pragma once

#include <cstdint>

#include "holon/kernels/cpu/tree_gemm.h"

namespace holon::kernels::tree {

// c[m, n] = a[m, k] @ b[k, n], by threads. c's columns are adjacent, its rows c_row_stride elements apart. The terms
// are so many equal runs, whose trees are added one after the other. Tables of b's columns increase. Pre: no size is 0.
void multiply(int64_t m, int64_t n, int64_t k, const TreeOperand& a, const TreeOperand& b, float* c,
              int64_t c_row_stride, int64_t runs = 1);

}  // namespace holon::kernels::tree
