#include <omp.h>

#include <algorithm>
#include <utility>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/matrix_product.h"
#include "holon/kernels/cpu/product_batch.h"
#include "holon/kernels/cpu/scratch.h"
#include "holon/kernels/cpu/tree_gemm.h"
#include "holon/kernels/matmul_plan.h"
#include "holon/kernels/sum_tree.h"
#include "holon/kernels/tree.h"

namespace holon::kernels::tree {

namespace {

using Product = MatrixProduct<float>;

enum class Order : uint8_t { kTree, kOneLeaf };

void run_part(const Product& g, Order order, int64_t i0, int64_t m, int64_t j0, int64_t n) {
  const bool packs = g.a.cs != 1;
  Scratch panel(to_size(tree_panel_floats(g.k)) * sizeof(float)),
      packed(packs ? to_size(tree_packed_floats(m, g.k)) * sizeof(float) : 0);
  tree_gemm().run({m, n, g.k, order == Order::kTree ? leaf_length(g.k) : g.k, g.alpha, g.a.data + i0 * g.a.rs, g.a.rs,
                   g.a.cs, g.b.data + j0 * g.b.cs, g.b.rs, g.b.cs, g.beta, g.c.data + i0 * g.c.rs + j0, g.c.rs,
                   panel.as<float>(), packs ? packed.as<float>() : nullptr});
}

// Parts of the longer side, in whole tiles, for the threads.
void run_parts(const Product& g, Order order, int threads) {
  if (threads == 1) return run_part(g, order, 0, g.m, 0, g.n);
  const bool rows = g.m >= g.n;
  const int64_t size = rows ? g.m : g.n, tile = rows ? tree_gemm().rows : tree_gemm().columns;
  const int64_t step = ((size + threads - 1) / threads + tile - 1) / tile * tile;
  parallel_for((size + step - 1) / step, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i * step, count = std::min(step, size - at);
      rows ? run_part(g, order, at, count, 0, g.n) : run_part(g, order, 0, g.m, at, count);
    }
  });
}

void add_bias(const Product& g) {
  for (int64_t i = 0; i < g.m; ++i)
    for (int64_t j = 0; j < g.n; ++j) g.c.data[i * g.c.rs + j * g.c.cs] += g.bias[j];
}

void run(const Product& g, Order order = Order::kTree) {
  if (g.m == 0 || g.n == 0) return;
  const double work = static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  const int threads = work < kParallelWork || omp_in_parallel() ? 1 : num_threads();
  if (g.k == 0 || (g.c.cs != 1 && g.c.rs != 1 && g.m > 1 && g.n > 1)) {
    // Sums of nothing, and rows without adjacent elements.
    Scratch block(to_size(g.m * g.n) * sizeof(float));
    float* sums = block.as<float>();
    std::fill_n(sums, g.m * g.n, 0.0f);
    Product dense = g;
    dense.beta = 0, dense.bias = nullptr, dense.c = {sums, g.n, 1};
    if (g.k != 0) run_parts(dense, order, threads);
    for (int64_t i = 0; i < g.m; ++i)
      for (int64_t j = 0; j < g.n; ++j) {
        float& c = g.c.data[i * g.c.rs + j * g.c.cs];
        c = g.beta == 0 ? sums[i * g.n + j] : (g.beta == 1 ? c : g.beta * c) + sums[i * g.n + j];
      }
  } else {
    Product turned = g;
    if (g.c.cs != 1 && g.n > 1) {
      std::swap(turned.m, turned.n);
      turned.a = {g.b.data, g.b.cs, g.b.rs};
      turned.b = {g.a.data, g.a.cs, g.a.rs};
      turned.c = {g.c.data, g.c.cs, 1};
    }
    run_parts(turned, order, threads);
  }
  if (g.bias) add_bias(g);
}

// The leading axes as one, copied if the strides do not allow a view.
Array as_matrix(const Array& x) {
  const int last = x.ndim() - 1;
  if (last == 0) return x.view({1, x.shape[0]}, {x.shape[0], x.strides[0]});
  if (last == 1) return x;
  Dims shape{rows_in_all(x), x.shape[last]}, strides;
  if (view_strides(x.shape, x.strides, shape, &strides)) return x.view(shape, strides);
  Array y = Array::empty(x.shape, x.dtype);
  copy(x, y);
  return y.view(shape, contiguous_strides(shape));
}

StridedMatrix<const float> matrix(const Array& x) { return {x.data<float>(), x.strides[0], x.strides[1]}; }

Array dense_vector(const Array& v) { return contiguous(v); }

}  // namespace

void matmul(const Array& a, const Array& b, Array& out, double alpha, double beta) {
  if (out.numel() == 0) return;
  const MatmulPlan g = plan_matmul(a, b, out);
  for_each_product(g, [&](int64_t oa, int64_t ob, int64_t oc) {
    run({g.m,
         g.n,
         g.k,
         static_cast<float>(alpha),
         static_cast<float>(beta),
         {a.data<float>() + oa, g.ars, g.acs},
         {b.data<float>() + ob, g.brs, g.bcs},
         {out.data<float>() + oc, g.crs, g.ccs},
         nullptr});
  });
}

void linear(const Array& x, const Array& w, const Array* bias, Array& out) {
  const Array rows = as_matrix(x);
  Array to = out.is_contiguous() || out.ndim() == 2 ? out : Array::empty(out.shape, out.dtype);
  Array matrix_out = as_matrix(to);
  const Array dense = bias ? dense_vector(*bias) : Array();
  HOLON_CHECK(w.ndim() == 2 && rows.shape[1] == w.shape[1] && matrix_out.shape == (Dims{rows.shape[0], w.shape[0]}),
              "linear: {} and weight {} do not give {}.", x.shape, w.shape, out.shape);
  run({rows.shape[0],
       w.shape[0],
       rows.shape[1],
       1,
       0,
       matrix(rows),
       {w.data<float>(), w.strides[1], w.strides[0]},
       {matrix_out.data<float>(), matrix_out.strides[0], matrix_out.strides[1]},
       bias ? dense.data<float>() : nullptr});
  if (to.storage.get() != out.storage.get()) copy(to, out);
}

void linear_weight_grad(const Array& dy, const Array& x, Array& dw, Array* dbias, double beta) {
  const Array rows = as_matrix(dy), columns = as_matrix(x);
  HOLON_CHECK(rows.shape[0] == columns.shape[0] && dw.shape == (Dims{rows.shape[1], columns.shape[1]}),
              "linear_weight_grad: {} and {} do not give {}.", dy.shape, x.shape, dw.shape);
  run({rows.shape[1],
       columns.shape[1],
       rows.shape[0],
       1,
       static_cast<float>(beta),
       {rows.data<float>(), rows.strides[1], rows.strides[0]},
       matrix(columns),
       {dw.data<float>(), dw.strides[0], dw.strides[1]},
       nullptr});
  if (!dbias) return;
  if (beta == 0) return sum(rows, 1, *dbias);
  Array more = Array::empty(dbias->shape, dbias->dtype);
  sum(rows, 1, more);
  for (int64_t j = 0; j < more.numel(); ++j) {
    float& to = dbias->data<float>()[j * dbias->strides[0]];
    to = (beta == 1 ? to : static_cast<float>(beta) * to) + more.data<float>()[j];
  }
}

void gemm_one_leaf(int64_t m, int64_t n, int64_t k, float alpha, MatrixView a, MatrixView b, float beta, float* c,
                   int64_t c_row_stride, const float* bias) {
  run({m,
       n,
       k,
       alpha,
       beta,
       {a.data, a.row_stride, a.col_stride},
       {b.data, b.row_stride, b.col_stride},
       {c, c_row_stride, 1},
       bias},
      Order::kOneLeaf);
}

}  // namespace holon::kernels::tree
