// Weighted sums of elements at given places: what reading an image between its pixels is made of. The three functions
// are the three derivatives of one form, sum of dy[n, c, q] weight[n, q, k] x[n, c, index[n, q, k]].
//
// x: [n, c, places], dy: [n, c, q], weight: [n, q, k], of one dtype, float32 or float64, contiguous. index: [n, q, k],
// int64, contiguous: a place in [0, size); what is negative counts nothing. x may be the part of the places from
// `first` on of `size`; places of other parts count nothing. Errors: an index of `size` or more (IndexError).
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

struct Places {
  int64_t first = 0, size = 0;
};

// y[n, c, q] = sum over k of weight x.
void sample_taps(const Array& x, const Array& weight, const Array& index, Places places, Array& y);
// dx[n, c, place] = sum over the (q, k) of that place of weight dy.
void sample_taps_input(const Array& dy, const Array& weight, const Array& index, Places places, Array& dx);
// dweight[n, q, k] = sum over c of dy x.
void sample_taps_weight(const Array& dy, const Array& x, const Array& index, Places places, Array& dweight);

}  // namespace holon::kernels
