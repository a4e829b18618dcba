#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/device.h"
#include "holon/kernels/random.h"

namespace holon::kernels {

void multinomial(uint64_t seed, uint64_t counter, const Array& weights, int64_t first_row, int64_t rows,
                 bool replacement, Array& out) {
  HOLON_ON_DEVICE(out, multinomial, seed, counter, weights, first_row, rows, replacement, out);
  const int64_t n = out.ndim() == 2 ? out.shape[0] : 1, classes = weights.shape.back(), draws = out.shape.back();
  Array w = Array::empty({n, classes}, DType::kFloat64), drawn = Array::empty({n, draws}, DType::kInt64);
  copy(weights.ndim() == 2 ? weights : weights.view({1, classes}, {0, weights.strides[0]}), w);
  // With replacement a number for each draw, else one for each class.
  const int64_t numbers = replacement ? draws : classes;
  Array u = Array::empty({n, numbers}, DType::kFloat64);
  uniform({seed, counter, {rows, numbers}, {first_row, 0}}, 0, 1, u);
  std::vector<double> sums(to_size(classes));
  std::vector<int64_t> order(to_size(classes));
  for (int64_t i = 0; i < n; ++i) {
    const double *p = w.data<double>() + i * classes, *r = u.data<double>() + i * numbers;
    int64_t* to = drawn.data<int64_t>() + i * draws;
    double total = 0;
    int64_t positive = 0, last = 0;
    for (int64_t k = 0; k < classes; ++k) {
      if (!(p[k] >= 0) || std::isinf(p[k]))
        fail_value("multinomial: the weight {} of class {} in row {} is negative or not finite.", p[k], k,
                   first_row + i);
      total += p[k];
      at_index(sums, k) = total;
      if (p[k] > 0) {
        ++positive;
        last = k;
      }
    }
    if (positive < (replacement ? 1 : draws))
      fail_value("multinomial: row {} has {} weights above 0; {} are needed.", first_row + i, positive,
                 replacement ? 1 : draws);
    if (replacement) {
      for (int64_t k = 0; k < draws; ++k) {
        auto at = std::upper_bound(sums.begin(), sums.end(), r[k] * total) - sums.begin();
        to[k] = std::min<int64_t>(at, last);
      }
      continue;
    }
    // The first to arrive of events with the rates p: the same as drawing one after the other from those that are left.
    for (int64_t k = 0; k < classes; ++k) at_index(sums, k) = p[k] > 0 ? -std::log1p(-r[k]) / p[k] : INFINITY;
    std::iota(order.begin(), order.end(), int64_t{0});
    std::partial_sort(order.begin(), order.begin() + draws, order.end(), [&](int64_t a, int64_t b) {
      const double x = at_index(sums, a), y = at_index(sums, b);
      return x != y ? x < y : a < b;
    });
    std::copy_n(order.begin(), draws, to);
  }
  copy(out.ndim() == 2 ? drawn : drawn.view({draws}, {1}), out);
}

}  // namespace holon::kernels
