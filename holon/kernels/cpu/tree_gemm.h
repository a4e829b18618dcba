// float32 products whose sums are trees (sum_tree.h): the bits of an element depend on its row of a and its column of b
// only, not on the sizes m and n, strides or threads. Three builds of one body, of which those with fused
// multiply-adds have the same bits.
#pragma once

#include <cstdint>

namespace holon::kernels {

// A matrix that is read. Its element [i, j] is data[i * row_stride + j * col_stride], or, with tables,
// data[rows[i] + columns[j]].
struct TreeOperand {
  const float* data;
  int64_t row_stride = 0, col_stride = 0;
  const int64_t* rows = nullptr;
  const int64_t* columns = nullptr;

  bool tabled() const { return rows; }
  // From row i and column j on.
  TreeOperand from(int64_t i, int64_t j) const {
    if (tabled()) return {data, 0, 0, rows + i, columns + j};
    return {data + i * row_stride + j * col_stride, row_stride, col_stride};
  }
};

// c[m, n] = alpha * a @ b + beta * c. Strides in elements; c's columns are adjacent.
struct TreeGemmArgs {
  int64_t m, n, k;
  int64_t runs;  // of terms, which are added one after the other: each is a tree
  int64_t leaf;  // terms of a leaf: leaf_length(k / runs), or k
  float alpha;
  TreeOperand a, b;
  float beta;  // 0: c is not read
  float* c;
  int64_t c_row_stride;
  float* panel;   // room for tree_panel_floats(k), aligned to 64 bytes
  float* packed;  // room for tree_packed_floats(m, k) where a is strided and its columns are; else nullptr
};

struct TreeGemm {
  void (*run)(const TreeGemmArgs&);
  int rows, columns;  // of a tile
  bool fused;         // multiply-adds round once
};

// The build for this machine.
const TreeGemm& tree_gemm();

inline int64_t tree_panel_floats(int64_t k) { return k * tree_gemm().columns; }
inline int64_t tree_packed_floats(int64_t m, int64_t k) {
  const int64_t rows = tree_gemm().rows;
  return (m + rows - 1) / rows * rows * k;
}

namespace base {
TreeGemm tree_gemm();
}
namespace avx2 {
TreeGemm tree_gemm();
}
namespace avx512 {
TreeGemm tree_gemm();
}

}  // namespace holon::kernels
