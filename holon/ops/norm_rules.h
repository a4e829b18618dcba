// What normalisations of rows share: a row is the last `axes` axes together, and whole; all others may be split.
#pragma once

#include "holon/registry/op_def.h"

namespace holon::ops {

// Rows: the leading axes of inputs 0 to n_rows - 1 and of all outputs; columns: the `n_columns` normalised ones.
inline void row_rule(RuleCall& r, int n_columns, size_t n_rows = 1) {
  for (int a = 0; a < r.in[0].shape.size() - n_columns; ++a) {
    int f = r.rule.factor();
    for (size_t i = 0; i < n_rows; ++i) r.rule.in(i, a, f);
    for (size_t o = 0; o < r.out.size(); ++o) r.rule.out(o, a, f);
  }
}

// Rows are contracted in the gradients of weight and bias, which become partial sums, and split in that of x (input 1).
inline void row_backward_rule(RuleCall& r, std::initializer_list<size_t> with_rows) {
  for (int a = 0; a < r.in[1].shape.size() - static_cast<int>(r.i("axes"_attr)); ++a) {
    int f = r.rule.factor(true);
    for (size_t i : with_rows) r.rule.in(i, a, f);
    r.rule.out(0, a, f);
  }
}

inline DType statistics_dtype(DType dtype) { return dtype == float64 ? float64 : float32; }

// The shape of a weight, for normalised x of the given shape.
inline Dims columns_of(const Infer& c, const Dims& x) {
  Dims columns;
  for (int a = x.size() - static_cast<int>(c.i("axes"_attr)); a < x.size(); ++a) columns.push_back(x[a]);
  return columns;
}

}  // namespace holon::ops
