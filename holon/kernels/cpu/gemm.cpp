#include "holon/kernels/gemm.h"

#include <algorithm>
#include <type_traits>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/cpu/gemm_bf16.h"
#include "holon/kernels/cpu/matrix_product.h"
#include "holon/kernels/cpu/product_batch.h"
#include "holon/kernels/cpu/scratch.h"
#include "holon/kernels/cpu/small_gemm.h"
#include "holon/kernels/device.h"
#include "holon/kernels/half.h"
#include "holon/kernels/matmul_plan.h"
#include "holon/kernels/tree.h"

namespace holon::kernels {

namespace {

template <class T>
void run_batch(const MatmulPlan& g, double alpha, double beta, const T* a, const T* b, T* c, const T* bias) {
  for_each_product(g, [&](int64_t oa, int64_t ob, int64_t oc) {
    run_product(MatrixProduct<T>{g.m,
                                 g.n,
                                 g.k,
                                 static_cast<T>(alpha),
                                 static_cast<T>(beta),
                                 {a + oa, g.ars, g.acs},
                                 {b + ob, g.brs, g.bcs},
                                 {c + oc, g.crs, g.ccs},
                                 bias});
  });
}

// The bias, contiguous.
Array dense_vector(const Array& v) {
  if (v.strides[0] == 1 || v.shape[0] <= 1) return v;
  Array y = Array::empty(v.shape, v.dtype);
  visit_dtype(v.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < v.shape[0]; ++i) y.data<T>()[i] = v.data<T>()[i * v.strides[0]];
  });
  return y;
}

// Leading axes join the rows where b is one matrix for all of them.
bool product_bf16(const Array& a, const Array& b, const Array* bias, Array& out) {
  if (out.dtype != DType::kBFloat16 || a.dtype != out.dtype || b.dtype != out.dtype) return false;
  if (b.ndim() == 2 && a.ndim() > 2 && out.ndim() == a.ndim()) {
    const int last = a.ndim() - 1;
    const int64_t rows = a.shape[last] == 0 ? 0 : a.numel() / a.shape[last];
    Dims shape{rows, a.shape[last]}, out_shape{rows, out.shape[last]}, strides, out_strides;
    if (rows == 0 || !view_strides(a.shape, a.strides, shape, &strides) ||
        !view_strides(out.shape, out.strides, out_shape, &out_strides))
      return false;
    Array matrix = a.view(shape, strides), out_matrix = out.view(out_shape, out_strides);
    return matmul_bf16(matrix, b, bias, out_matrix);
  }
  return matmul_bf16(a, b, bias, out);
}

void product(const Array& a, const Array& b, const Array* bias, Array& out, double alpha, double beta) {
  // The most frequent case without planning, which costs more than a tiny product does.
  if (out.dtype == DType::kFloat32 && out.ndim() == 2 && a.ndim() == 2 && b.ndim() == 2 && a.dtype == out.dtype &&
      b.dtype == out.dtype && a.shape[0] == out.shape[0] && a.shape[1] == b.shape[0] && b.shape[1] == out.shape[1] &&
      (!bias || bias->strides[0] == 1)) {
    const SmallGemm& small = small_gemm();
    const int64_t m = out.shape[0], n = out.shape[1], k = a.shape[1];
    if (m * k <= 64 && n * 4 <= small.vector_bytes && a.strides[1] == 1 && b.strides[1] == 1 && out.strides[1] == 1 &&
        !bias && alpha == 1 && beta == 0 && n > 0) {
      small.tiny_f32(reinterpret_cast<const float*>(a.storage->data()) + a.offset, a.strides[0],
                     reinterpret_cast<const float*>(b.storage->data()) + b.offset, b.strides[0],
                     reinterpret_cast<float*>(out.storage->data()) + out.offset, out.strides[0], m, n, k);
      return;
    }
    run_product(MatrixProduct<float>{m,
                                     n,
                                     k,
                                     static_cast<float>(alpha),
                                     static_cast<float>(beta),
                                     {a.data<float>(), a.strides[0], a.strides[1]},
                                     {b.data<float>(), b.strides[0], b.strides[1]},
                                     {out.data<float>(), out.strides[0], out.strides[1]},
                                     bias ? bias->data<float>() : nullptr});
    return;
  }
  if (out.numel() == 0) return;
  if (is_half(out.dtype)) {
    if (alpha == 1 && beta == 0 && product_bf16(a, b, bias, out)) return;
    Array fa = to_float(a), fb = to_float(b), fbias;
    Array c = Array::empty(out.shape, DType::kFloat32);
    if (bias) fbias = to_float(*bias);
    if (beta != 0) {
      Array before = to_float(out);
      matmul(fa, fb, c, alpha, 0);
      const int last = c.ndim() - 1;
      float* to = c.data<float>();
      for_each_row(before.shape, before.strides, [&](int64_t at) {
        for (int64_t i = 0; i < c.shape[last]; ++i)
          *to++ += static_cast<float>(beta) * before.data<float>()[at + i * before.strides[last]];
      });
    } else {
      product(fa, fb, bias ? &fbias : nullptr, c, alpha, 0);
    }
    from_float(c, out);
    return;
  }
  const MatmulPlan batch = plan_matmul(a, b, out);
  visit_dtype(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, Float16> && !std::is_same_v<T, BFloat16>) {
      Array dense;
      if (bias) dense = dense_vector(*bias);
      run_batch<T>(batch, alpha, beta, a.data<T>(), b.data<T>(), out.data<T>(), bias ? dense.data<T>() : nullptr);
    }
  });
}

// The leading axes as one, copied if the strides do not allow a view.
Array as_matrix(const Array& x) {
  const int last = x.ndim() - 1;
  Dims shape{rows_in_all(x), x.shape[last]}, strides;
  if (x.ndim() == 2) return x;
  if (view_strides(x.shape, x.strides, shape, &strides)) return x.view(shape, strides);
  Array y = Array::empty(shape, x.dtype);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* to = y.data<T>();
    for_each_row(x.shape, x.strides, [&](int64_t at) {
      for (int64_t i = 0; i < x.shape[last]; ++i) *to++ = x.data<T>()[at + i * x.strides[last]];
    });
  });
  return y;
}

// Leading axes join the rows, which blocks of the finish are counted in.
void finished(const Array& a, const Array& b, const Array* bias, Array& out, double alpha, const Finish& finish) {
  HOLON_CHECK(out.dtype == DType::kFloat32 && a.dtype == out.dtype && b.dtype == out.dtype && out.is_contiguous(),
              "a product with a finish: {} into {} {}", name(a.dtype), name(out.dtype), out.shape);
  const Array rows = as_matrix(a), dense = bias ? dense_vector(*bias) : Array();
  const int64_t m = rows.shape[0], k = rows.shape[1], n = b.shape[1];
  HOLON_CHECK(b.shape[0] == k && out.numel() == m * n, "a product with a finish: {} @ {} does not give {}", a.shape,
              b.shape, out.shape);
  run_product(MatrixProduct<float>{m,
                                   n,
                                   k,
                                   static_cast<float>(alpha),
                                   0,
                                   {rows.data<float>(), rows.strides[0], rows.strides[1]},
                                   {b.data<float>(), b.strides[0], b.strides[1]},
                                   {out.data<float>(), n, 1},
                                   bias ? dense.data<float>() : nullptr,
                                   finish});
}

Array transposed(const Array& x) { return x.view({x.shape[1], x.shape[0]}, {x.strides[1], x.strides[0]}); }

template <class T>
void sum_columns(const Array& x, Array& out, double beta) {
  using C = std::conditional_t<std::is_same_v<T, float>, float, typename DTypeOf<T>::Compute>;
  const int64_t rows = x.shape[0], cols = x.shape[1], rs = x.strides[0], cs = x.strides[1];
  const T* data = x.data<T>();
  T* to = out.data<T>();
  // Blocks of rows first: sums of sums lose fewer digits, and their columns fit the first cache.
  constexpr int64_t kBlock = 256;
  for (int64_t j0 = 0; j0 < cols; j0 += kBlock) {
    const int64_t n = std::min(kBlock, cols - j0);
    C total[kBlock] = {};
    for (int64_t i0 = 0; i0 < rows; i0 += kBlock) {
      C part[kBlock] = {};
      const int64_t end = std::min(rows, i0 + kBlock);
      for (int64_t i = i0; i < end; ++i) {
        const T* row = data + i * rs + j0 * cs;
        if (cs == 1)
          for (int64_t j = 0; j < n; ++j) part[j] += static_cast<C>(row[j]);
        else
          for (int64_t j = 0; j < n; ++j) part[j] += static_cast<C>(row[j * cs]);
      }
      for (int64_t j = 0; j < n; ++j) total[j] += part[j];
    }
    for (int64_t j = 0; j < n; ++j) {
      T& c = to[(j0 + j) * out.strides[0]];
      c = static_cast<T>(beta != 0 ? static_cast<C>(total[j] + static_cast<C>(beta) * static_cast<C>(c)) : total[j]);
    }
  }
}

}  // namespace

void matmul(const Array& a, const Array& b, Array& out, double alpha, double beta) {
  using Variant = void (*)(const Array&, const Array&, Array&, double, double);
  HOLON_ON_DEVICE_AS(out, "matmul", Variant, matmul, a, b, out, alpha, beta);
  if (adds_in_tree(out)) return tree::matmul(a, b, out, alpha, beta);
  product(a, b, nullptr, out, alpha, beta);
}

void matmul(const Array& a, const Array& b, Array& out, double alpha, const Finish& finish) {
  HOLON_CHECK(b.ndim() == 2, "matmul with a finish: b is {}", b.shape);
  finished(a, b, nullptr, out, alpha, finish);
}

void linear(const Array& x, const Array& w, const Array* bias, Array& out, const Finish& finish) {
  HOLON_ON_DEVICE(out, linear, x, w, bias, out, finish);
  HOLON_CHECK(w.ndim() == 2 && x.ndim() >= 1 && out.ndim() == x.ndim(), "linear: {} and weight {} do not give {}.",
              x.shape, w.shape, out.shape);
  HOLON_CHECK(!bias || (bias->ndim() == 1 && bias->shape[0] == w.shape[0] && bias->dtype == out.dtype),
              "linear: a bias of shape {} does not fit the weight {}.", bias ? bias->shape : Dims{}, w.shape);
  if (adds_in_tree(out) && !finish.run) return tree::linear(x, w, bias, out);
  if (x.ndim() == 1) {
    Array row = x.view({1, x.shape[0]}, {x.shape[0], x.strides[0]});
    Array row_out = out.view({1, out.shape[0]}, {out.shape[0], out.strides[0]});
    finish.run ? finished(row, transposed(w), bias, row_out, 1, finish)
               : product(row, transposed(w), bias, row_out, 1, 0);
    return;
  }
  finish.run ? finished(x, transposed(w), bias, out, 1, finish) : product(x, transposed(w), bias, out, 1, 0);
}

void linear_weight_grad(const Array& dy, const Array& x, Array& dw, Array* dbias, double beta) {
  HOLON_ON_DEVICE(dw, linear_weight_grad, dy, x, dw, dbias, beta);
  HOLON_CHECK(dy.ndim() >= 1 && x.ndim() == dy.ndim(), "linear_weight_grad: {} and {} differ in axes.", dy.shape,
              x.shape);
  if (adds_in_tree(dw)) return tree::linear_weight_grad(dy, x, dw, dbias, beta);
  Array rows = as_matrix(dy.ndim() == 1 ? dy.view({1, dy.shape[0]}, {dy.shape[0], dy.strides[0]}) : dy);
  Array columns = as_matrix(x.ndim() == 1 ? x.view({1, x.shape[0]}, {x.shape[0], x.strides[0]}) : x);
  const int64_t n = rows.shape[1], k = columns.shape[1];
  if (dbias && dw.dtype == DType::kFloat32 && rows.strides[1] == 1 && dw.is_contiguous() && dbias->is_contiguous() &&
      dy.dtype == dw.dtype && x.dtype == dw.dtype && dbias->dtype == dw.dtype && rows.shape[0] == columns.shape[0] &&
      dw.shape == Dims{n, k} && dbias->shape == Dims{n}) {
    // dy is read for the product anyway.
    const bool joins = beta != 0 && k > 0;
    Scratch sums(joins ? to_size(n) * sizeof(float) : 0);
    run_product(MatrixProduct<float>{n,
                                     k,
                                     rows.shape[0],
                                     1,
                                     static_cast<float>(beta),
                                     {rows.data<float>(), 1, rows.strides[0]},
                                     {columns.data<float>(), columns.strides[0], columns.strides[1]},
                                     {dw.data<float>(), k, 1},
                                     nullptr,
                                     {},
                                     joins ? sums.as<float>() : dbias->data<float>()});
    for (int64_t j = 0; joins && j < n; ++j) {
      float& d = dbias->data<float>()[j];
      d = static_cast<float>(beta) * d + sums.as<float>()[j];
    }
    if (k == 0) column_sums(rows, *dbias, beta);
    return;
  }
  matmul(transposed(rows), columns, dw, 1, beta);
  if (!dbias) return;
  column_sums(rows, *dbias, beta);
}

void column_sums(const Array& x, Array& out, double beta) {
  HOLON_ON_DEVICE(out, column_sums, x, out, beta);
  HOLON_CHECK(x.ndim() == 2 && out.ndim() == 1 && out.shape[0] == x.shape[1] && out.dtype == x.dtype,
              "column_sums: {} of {} does not fit {}.", out.shape, x.shape, name(x.dtype));
  if (adds_in_tree(out) && beta == 0) return tree::sum(x, 1, out);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, bool>) sum_columns<T>(x, out, beta);
  });
}

void gemm(int64_t m, int64_t n, int64_t k, float alpha, MatrixView a, MatrixView b, float beta, float* c,
          int64_t c_row_stride, const float* bias) {
  run_product(MatrixProduct<float>{m,
                                   n,
                                   k,
                                   alpha,
                                   beta,
                                   {a.data, a.row_stride, a.col_stride},
                                   {b.data, b.row_stride, b.col_stride},
                                   {c, c_row_stride, 1},
                                   bias});
}

}  // namespace holon::kernels
