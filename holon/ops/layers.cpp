// What the layers of both languages are made of where one op is not enough: compositions without kernels of their own,
// whose distribution follows from their parts; and the orthonormal matrix that an initialiser needs.
#include <algorithm>
#include <cmath>

#include "holon/dispatch/dispatch.h"
#include "holon/kernels/copy.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/matmul.h"
#include "holon/ops/pool.h"
#include "holon/ops/reduce.h"
#include "holon/ops/resize.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"
#include "holon/registry/op_def.h"

namespace holon::ops {

HOLON_OP(bilinear, "bilinear(Tensor x1, Tensor x2, Tensor weight, Tensor? bias=None) -> Tensor")
    .doc("x1 @ weight[o] @ x2 + bias[o] for each output o; x1 [..., i], x2 [..., j], weight [out, i, j].",
         "bilinear(ones(2, 3), ones(2, 4), ones(5, 3, 4))")
    .autocast(Autocast::kLower)
    .function_only()
    .body([](BodyCall& c) {
      const Tensor &x1 = c.in(0), &x2 = c.in(1), &w = c.in(2);
      int n = x1.ndim();
      bool fits = n > 0 && x2.ndim() == n && w.ndim() == 3;
      for (int a = 0; a + 1 < n && fits; ++a) fits = x1.shape()[a] == x2.shape()[a];
      if (!fits || w.shape()[1] != x1.shape()[n - 1] || w.shape()[2] != x2.shape()[n - 1])
        fail_value("bilinear: x1 is {}, x2 {}, weight {}. They must be [..., i], [..., j] and [out, i, j].", x1.shape(),
                   x2.shape(), w.shape());
      Tensor products = mul(unsqueeze(x1, -1), unsqueeze(x2, -2));
      Dims rows = x1.shape();
      rows[n - 1] = w.shape()[1] * w.shape()[2];
      c.out.push_back(linear(products.reshape(rows), w.reshape({w.shape()[0], rows[n - 1]}), c.in(3)));
    });

HOLON_OP(pairwise_distance,
         "pairwise_distance(Tensor x1, Tensor x2, float p=2.0, float eps=1e-06, bool keepdim=False) -> Tensor")
    .doc("The p-norm of x1 - x2 + eps along the last axis.", "pairwise_distance(ones(2, 3), zeros(2, 3))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      double p = c.f("p"_attr);
      bool keep = c.b("keepdim"_attr);
      if (c.in(0).ndim() < 1 || c.in(1).ndim() < 1)
        fail_value("pairwise_distance: x1 is {}, x2 {}; both need an axis.", c.in(0).shape(), c.in(1).shape());
      if (!is_floating(c.in(0).dtype()) || !is_floating(c.in(1).dtype()))
        fail_type("pairwise_distance: x1 is {}, x2 {}; both must be floating point.", name(c.in(0).dtype()),
                  name(c.in(1).dtype()));
      if (!(p > 0)) fail_value("pairwise_distance: p is {}; the order of a norm must be positive.", p);
      Tensor d = abs(add(sub(c.in(0), c.in(1)), c.f("eps"_attr)));
      Dims last{-1};
      if (std::isinf(p))
        c.out.push_back(amax(d, last, keep));
      else if (p == 1)
        c.out.push_back(sum(d, last, keep));
      else if (p == 2)
        c.out.push_back(sqrt(sum(square(d), last, keep)));
      else
        c.out.push_back(pow(sum(pow(d, p), last, keep), 1 / p));
    });

HOLON_OP(local_response_norm,
         "local_response_norm(Tensor x, int size, float alpha=0.0001, float beta=0.75, float k=1.0) -> Tensor")
    .doc("x [n, c, ...] over (k + alpha * the mean of the squares of size channels around each) ** beta; channels "
         "beyond the ends count as 0.",
         "local_response_norm(ones(2, 3, 4), 2)")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      int64_t size = c.i("size"_attr);
      if (x.ndim() < 3)
        fail_value("local_response_norm: x is {}; it must be [n, c, ...] with 3 axes or more.", x.shape());
      if (size < 1) fail_value("local_response_norm: size is {}; it must be at least 1.", size);
      if (x.numel() == 0) {
        c.out.push_back(x);
        return;
      }
      Tensor squares = square(x).reshape({x.shape()[0], 1, x.shape()[1], x.numel() / (x.shape()[0] * x.shape()[1])});
      Tensor around = avg_pool2d(pad(squares, Dims{0, 0, size / 2, (size - 1) / 2}), Dims{size, 1}, Dims{1, 1});
      Tensor divisor = add(mul(around.reshape(x.shape()), c.f("alpha"_attr)), c.f("k"_attr));
      c.out.push_back(div(x, pow(divisor, c.f("beta"_attr))));
    });

HOLON_OP(orthonormalize, "orthonormalize(Tensor x) -> Tensor")
    .doc("The rows of x [m, n], or its columns if they are fewer, each orthogonal to those before it and of length 1.",
         "orthonormalize(randn(3, 5))")
    .function_only()
    .infer([](Infer& c) {
      c.require_floating(0);
      c.require(c.ndim(0) == 2, "x must be a matrix", "Reshape it first.");
      c.out(c.shape(0), c.dtype_of(0));
    })
    .only_whole("each row depends on all rows before it")
    .kernel([](KernelCall& c) {
      int64_t rows = std::min(c.in(0).shape[0], c.in(0).shape[1]), n = std::max(c.in(0).shape[0], c.in(0).shape[1]);
      bool by_rows = c.in(0).shape[0] == rows;
      Dims strides = by_rows ? Dims{n, 1} : Dims{1, n};
      Array work = Array::empty({rows, n}, float64), as_given = work.view(c.in(0).shape, strides);
      kernels::copy(c.in(0), as_given);
      double* w = work.data<double>();
      auto dot = [n](const double* a, const double* b) {
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < n; ++j) sum += a[j] * b[j];
        return sum;
      };
      for (int64_t i = 0; i < rows; ++i) {
        double* row = w + i * n;
        // A second time, as rounding leaves a part along rows that are nearly alike.
        for (int pass = 0; pass < 2; ++pass)
          for (int64_t k = 0; k < i; ++k) {
            const double* before = w + k * n;
            double along = dot(row, before);
            for (int64_t j = 0; j < n; ++j) row[j] -= along * before[j];
          }
        double length = std::sqrt(dot(row, row));
        for (int64_t j = 0; j < n; ++j) row[j] = length > 0 ? row[j] / length : 0;
      }
      kernels::copy(as_given, c.out());
    });

}  // namespace holon::ops
