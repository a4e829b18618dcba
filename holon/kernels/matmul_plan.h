// How a product with leading axes is cut into products of matrices, for every device.
#pragma once

#include <span>

#include "holon/array/array.h"
#include "holon/base/error.h"

namespace holon::kernels {

// How many rows x has if its leading axes are one: also where rows have no elements.
inline int64_t rows_in_all(const Array& x) {
  int64_t rows = 1;
  for (int i = 0; i < x.ndim() - 1; ++i) rows *= x.shape[i];
  return rows;
}

// What a call of matmul is after its leading axes were merged. Strides in elements: ars from row to row of a, acs from
// column to column, and so on.
struct MatmulPlan {
  int64_t m, n, k;
  int64_t ars, acs, brs, bcs, crs, ccs;
  Dims shape, a, b, c;  // leading axes and their strides, 0 where broadcast
};

// Errors: operands and result do not fit.
inline MatmulPlan plan_matmul(const Array& a, const Array& b, const Array& out) {
  HOLON_CHECK(a.ndim() >= 2 && b.ndim() >= 2, "matmul: operands of shapes {} and {} are not matrices.", a.shape,
              b.shape);
  const int na = a.ndim(), nb = b.ndim(), nc = out.ndim();
  MatmulPlan g;
  g.m = a.shape[na - 2], g.k = a.shape[na - 1], g.n = b.shape[nb - 1];
  g.ars = a.strides[na - 2], g.acs = a.strides[na - 1];
  g.brs = b.strides[nb - 2], g.bcs = b.strides[nb - 1];
  Dims lead_a(std::span<const int64_t>(a.shape.begin(), na - 2)),
      lead_b(std::span<const int64_t>(b.shape.begin(), nb - 2));
  Dims expected = broadcast_shapes(lead_a, lead_b, "matmul");
  expected.push_back(g.m);
  expected.push_back(g.n);
  HOLON_CHECK(b.shape[nb - 2] == g.k && out.shape == expected && a.dtype == out.dtype && b.dtype == out.dtype,
              "matmul: {} {} @ {} {} does not give {} {}.", name(a.dtype), a.shape, name(b.dtype), b.shape,
              name(out.dtype), out.shape);
  g.crs = out.strides[nc - 2], g.ccs = out.strides[nc - 1];
  auto stride = [](const Array& x, int axis) { return axis < 0 || x.shape[axis] == 1 ? 0 : x.strides[axis]; };
  // From the last leading axis on: into the rows where b is the same for all, else with the axis before it if possible.
  bool merging = true;
  for (int i = nc - 3; i >= 0; --i) {
    const int64_t size = out.shape[i];
    if (size == 1) continue;
    const int64_t sa = stride(a, i - nc + na), sb = stride(b, i - nc + nb), sc = out.strides[i];
    if (merging && sb == 0 && (g.m == 1 || (sa == g.m * g.ars && sc == g.m * g.crs))) {
      if (g.m == 1) g.ars = sa, g.crs = sc;
      g.m *= size;
      continue;
    }
    merging = false;
    if (!g.shape.empty() && sa == g.a[0] * g.shape[0] && sb == g.b[0] * g.shape[0] && sc == g.c[0] * g.shape[0]) {
      g.shape[0] *= size;
      continue;
    }
    g.shape.insert(0, size);
    g.a.insert(0, sa);
    g.b.insert(0, sb);
    g.c.insert(0, sc);
  }
  return g;
}

}  // namespace holon::kernels
