// Searching in sorted rows, counting, and the distinct elements of an array.
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

// out (int32 or int64) = for each value the first place in its sorted row where it can be: before equal elements, or
// behind them if right. sorted is one row for all values, or has values' leading shape. Both have one dtype.
void searchsorted(const Array& sorted, const Array& values, bool right, Array& out);

// out[k] (contiguous, one axis) += 1, or the weight, for each element k of x (integers, checked to be in [0, out's
// size)).
void bincount(const Array& x, const Array* weights, Array& out);
// The largest element of integers, -1 of none. Errors: a negative element.
int64_t largest_count(const Array& x);

// out[b] = how many elements of x are in bin b of out's size between low and high; those outside, and NaNs, in none.
void histc(const Array& x, double low, double high, Array& out);

// The distinct rows of x [n, width] in rising order. order (int64 [n]): the rows sorted; group (int64 [n]): the number
// of each row's group. Returns the number of groups.
int64_t unique_rows(const Array& x, Array& order, Array& group);

}  // namespace holon::kernels
