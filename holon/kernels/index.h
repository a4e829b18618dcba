// Looking up, scattering, masking, sorting, and arrays made from their indices.
//
// Indices are int32 or int64, of any strides. Errors: an index out of range (IndexError), with the value, the range and
// the position. Arrays may have any strides unless said otherwise.
#pragma once

#include "holon/array/array.h"
#include "holon/array/scalar.h"

namespace holon::kernels {

// out[..., :] = weight[indices[...] - row_offset, :]. weight holds the rows from row_offset on of a table of v_logical
// rows; the other rows of the table give zeros. An index outside the table is an error.
void embedding(const Array& weight, const Array& indices, int64_t row_offset, int64_t v_logical, Array& out);
// dweight = 0 unless it adds, then dweight[indices[...] - row_offset, :] += dy[..., :].
void embedding_backward(const Array& dy, const Array& indices, int64_t row_offset, int64_t v_logical, Array& dweight,
                        bool adds = false);

// The part of an indexed axis that an array holds: its elements from offset on, of size in all (-1: what the array
// has). Indices count in the whole axis; what they name elsewhere reads as zero and is not written.
struct AxisPart {
  int64_t offset = 0, size = -1;
};

// out = x with its elements along the axis replaced by those at indices [k].
void index_select(const Array& x, int axis, const Array& indices, Array& out, AxisPart part = {});
// out[i][j][k] = x[i][index[i][j][k]][k] (for axis 1). index and out have one shape, at most x's along the other axes.
void gather(const Array& x, int axis, const Array& index, Array& out, AxisPart part = {});

enum class ScatterOp { kSet, kAdd, kMultiply };
// out[i][index[i][j][k]][k] op= src[i][j][k] (for axis 1), one after the other. src has at least index's shape; src and
// out have one dtype.
void scatter(ScatterOp op, Array& out, int axis, const Array& index, const Array& src, AxisPart part = {},
             const char* shown = "scatter");
void scatter_scalar(ScatterOp op, Array& out, int axis, const Array& index, Scalar value);
// out[.., indices[j], ..] += src[.., j, ..] along the axis; indices [k] as for index_select.
void index_add(Array& out, int axis, const Array& indices, const Array& src, AxisPart part = {});

// How many elements are not 0.
int64_t count_nonzero(const Array& x);
// The indices of these elements in row-major order. out: int64 [count, axes].
void nonzero(const Array& x, Array& out);
// The elements of x where mask (bool, x's shape) is true, in row-major order. out: [count].
void masked_select(const Array& x, const Array& mask, Array& out);

// out [..., classes of this part] = 1 where class_offset + column is the index, else 0. Errors: an index outside
// [0, classes).
void one_hot(const Array& indices, int64_t classes, int64_t class_offset, Array& out);

// The part of a matrix (the last two axes) on and below (above) a diagonal, zeros elsewhere; the local part begins at
// (row_offset, col_offset) of the logical matrix.
void tril(const Array& x, int64_t diagonal, int64_t row_offset, int64_t col_offset, Array& out);
void triu(const Array& x, int64_t diagonal, int64_t row_offset, int64_t col_offset, Array& out);

// out[i] = start + (offset + i) step, for a one-axis out whose first element is number `offset`.
void arange(Scalar start, Scalar step, int64_t offset, Array& out);
// out[i] = the value number offset + i of `steps` evenly spaced ones from start to end.
void linspace(double start, double end, int64_t steps, int64_t offset, Array& out);
void eye(int64_t row_offset, int64_t col_offset, Array& out);

// Along the last axis, stable; a NaN is larger than every number. values and indices (int64) have x's shape; values may
// be undefined.
void sort(const Array& x, bool descending, Array* values, Array& indices);
// The k largest (smallest), in order; values [..., k], indices int64 [..., k]. Errors: k larger than the axis.
void topk(const Array& x, int64_t k, bool largest, Array& values, Array& indices);

}  // namespace holon::kernels
