// Softmax, norms and losses.
#include <algorithm>
#include <functional>

#include "holon/kernels/copy.h"
#include "holon/kernels/loss.h"
#include "holon/kernels/norm.h"
#include "holon/kernels/softmax.h"
#include "tests/cpp/kernels/util.h"

namespace holon::kernels::testing {
namespace {

const DType kFloats[] = {float32, float64, bfloat16, float16};
double tolerance(DType dtype) { return dtype == float32 ? 2e-6 : dtype == float64 ? 1e-12 : 2 * epsilon(dtype); }

// Calls f(index with 0 at the axis) for every line along the axis.
void each_line(const Dims& shape, int axis, const std::function<void(Dims)>& f) {
  Dims one = shape;
  if (one.numel() == 0) return;
  one[axis] = 1;
  each(one, [&](const Dims& i) { f(i); });
}

TEST(Softmax, EveryAxisTypeAndLayout) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : kFloats)
      for (const Dims& shape :
           {Dims{6}, Dims{3, 37}, Dims{5, 300}, Dims{4, 9, 11}, Dims{2, 5, 270}, Dims{0, 3}, Dims{3, 1}})
        for (int axis = 0; axis < shape.size(); ++axis)
          for (Layout layout : kAllLayouts)
            for (bool log : {false, true}) {
              Array x = random(shape, dtype, layout, noise, -6, 6);
              Array y = make(shape, dtype, layout == Layout::kTransposed ? layout : Layout::kContiguous);
              Array dy = random(shape, dtype, layout == Layout::kSliced ? layout : Layout::kContiguous, noise, -1, 1),
                    dx = make(shape, dtype);
              log ? log_softmax(x, axis, y) : softmax(x, axis, y);
              log ? log_softmax_backward(dy, y, axis, dx) : softmax_backward(dy, y, axis, dx);
              each_line(shape, axis, [&](Dims i) {
                double sum = 0, dot = 0;
                const int64_t n = shape[axis];
                for (i[axis] = 0; i[axis] < n; ++i[axis]) sum += std::exp(get(x, i));
                for (i[axis] = 0; i[axis] < n; ++i[axis]) dot += log ? get(dy, i) : get(dy, i) * get(y, i);
                for (i[axis] = 0; i[axis] < n; ++i[axis]) {
                  double p = std::exp(get(x, i)) / sum;
                  expect_near(get(y, i), log ? get(x, i) - std::log(sum) : p, tolerance(dtype),
                              smallest(dtype) + (log ? tolerance(dtype) : 0), "softmax");
                  double want = log ? get(dy, i) - std::exp(get(y, i)) * dot : get(y, i) * (get(dy, i) - dot);
                  expect_near(get(dx, i), want, 2 * tolerance(dtype), 2 * tolerance(dtype), "gradient");
                }
              });
            }
  });
}

TEST(Softmax, LimitsAndInPlace) {
  on_every_isa([] {
    Array x =
        of({-INFINITY, 1000, 999, -1000, NAN, 0, 0, 0, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -3e38, 3e38, 0, 1},
           float32, {4, 4});
    softmax(x, 1, x);
    EXPECT_EQ(get(x, {0, 0}), 0);
    EXPECT_NEAR(get(x, {0, 1}), 0.7310586, 1e-6);
    EXPECT_EQ(get(x, {0, 3}), 0);
    for (int64_t j = 0; j < 4; ++j) {
      EXPECT_TRUE(std::isnan(get(x, {1, j})));
      EXPECT_TRUE(std::isnan(get(x, {2, j})));
      EXPECT_EQ(get(x, {3, j}), j == 1);
    }
    Array wrong = of({1, 2}, int32), out = make({2}, int32);
    EXPECT_NE(message_of(ErrorKind::kType, [&] { softmax(wrong, 0, out); }).find("int32"), std::string::npos);
  });
}

TEST(Softmax, CausalAndScaled) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : kFloats)
      for (auto [q, k] : {std::pair<int64_t, int64_t>{5, 5}, {3, 70}, {7, 4}})
        for (int64_t first : {0, 2}) {
          Array x = random({2, 3, q, k}, dtype, Layout::kContiguous, noise, -6, 6), y = make(x.shape, dtype);
          const int64_t diagonal = k - q + first;
          const double scale = 0.25;
          scale_mask_softmax(x, scale, diagonal, y);
          Array dy = random(x.shape, dtype, Layout::kContiguous, noise, -1, 1), dx = make(x.shape, dtype);
          scale_mask_softmax_backward(dy, y, scale, dx);
          each_line(x.shape, 3, [&](Dims i) {
            double sum = 0, dot = 0;
            const int64_t visible = std::min(k, i[2] + diagonal + 1);
            for (i[3] = 0; i[3] < visible; ++i[3]) sum += std::exp(scale * get(x, i)), dot += get(y, i) * get(dy, i);
            for (i[3] = 0; i[3] < k; ++i[3]) {
              const bool seen = i[3] < visible;
              expect_near(get(y, i), seen ? std::exp(scale * get(x, i)) / sum : 0, tolerance(dtype), 0,
                          "masked softmax");
              expect_near(get(dx, i), seen ? scale * get(y, i) * (get(dy, i) - dot) : 0, tolerance(dtype),
                          tolerance(dtype), "gradient");
            }
          });
        }
    Array x = of({1, 2}, float32, {1, 2}), y = make({1, 2}, float32);
    message_of(ErrorKind::kValue, [&] { scale_mask_softmax(x, 0, std::nullopt, y); });
    scale_mask_softmax(x, 1, -5, y);
    EXPECT_EQ(get(y, {0, 0}), 0);
  });
}

TEST(Norm, LayerAndRootMeanSquare) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : kFloats)
      for (bool centered : {true, false})
        for (int axes : {1, 2})
          for (Layout layout : kAllLayouts)
            for (int affine : {0, 1, 2}) {
              const Dims shape{9, 5, 70};
              const Dims row = axes == 1 ? Dims{70} : Dims{5, 70};
              const int64_t n = row.numel(), rows = shape.numel() / n;
              const double eps = 1e-3;
              DType stat = dtype == float64 ? float64 : float32;
              Array x = random(shape, dtype, layout, noise, 1, 4),
                    dy = random(shape, dtype, Layout::kContiguous, noise, -1, 1);
              Array y = make(shape, dtype, layout == Layout::kSliced ? layout : Layout::kContiguous),
                    dx = make(shape, dtype);
              Array w, b, mean = make({rows}, stat), rstd = make({rows}, stat);
              if (affine > 0) w = random(row, dtype, Layout::kContiguous, noise, 0.5, 2);
              if (affine > 1 && centered) b = random(row, dtype, Layout::kContiguous, noise, -1, 1);
              Array dw = make(row, dtype), db = make(row, dtype);
              if (centered) {
                layer_norm(x, axes, w, b, eps, y, mean, rstd);
                layer_norm_backward(dy, x, axes, w, mean, rstd, dx, affine ? &dw : nullptr, affine > 1 ? &db : nullptr);
              } else {
                rms_norm(x, axes, w, eps, y, rstd);
                rms_norm_backward(dy, x, axes, w, rstd, dx, affine ? &dw : nullptr);
              }
              std::vector<double> dw_want(static_cast<size_t>(n)), db_want(static_cast<size_t>(n));
              for (int64_t r = 0; r < rows; ++r) {
                auto at = [&](int64_t j) { return axes == 1 ? Dims{r / 5, r % 5, j} : Dims{r, j / 70, j % 70}; };
                auto in_row = [&](int64_t j) { return axes == 1 ? Dims{j} : Dims{j / 70, j % 70}; };
                double m = 0, v = 0, c1 = 0, c2 = 0;
                for (int64_t j = 0; j < n; ++j) m += get(x, at(j)) / double(n);
                if (!centered) m = 0;
                for (int64_t j = 0; j < n; ++j) v += std::pow(get(x, at(j)) - m, 2) / double(n);
                const double s = 1 / std::sqrt(v + eps);
                auto hat = [&](int64_t j) { return (get(x, at(j)) - m) * s; };
                auto g = [&](int64_t j) { return get(dy, at(j)) * (affine ? get(w, in_row(j)) : 1); };
                for (int64_t j = 0; j < n; ++j) c1 += g(j) / double(n), c2 += g(j) * hat(j) / double(n);
                for (int64_t j = 0; j < n; ++j) {
                  double want = hat(j) * (affine ? get(w, in_row(j)) : 1) + (b.defined() ? get(b, in_row(j)) : 0);
                  expect_near(get(y, at(j)), want, tolerance(dtype), 4 * tolerance(dtype), "norm");
                  double slope = s * (g(j) - (centered ? c1 : 0) - hat(j) * c2);
                  expect_near(get(dx, at(j)), slope, 2 * tolerance(dtype), 4 * tolerance(dtype), "dx");
                  dw_want[size_t(j)] += get(dy, at(j)) * hat(j);
                  db_want[size_t(j)] += get(dy, at(j));
                }
                expect_near(get(rstd, {r}), s, 1e-6, 0, "rstd");
                if (centered) expect_near(get(mean, {r}), m, 1e-6, 0, "mean");
              }
              for (int64_t j = 0; j < n; ++j) {
                const Dims i = axes == 1 ? Dims{j} : Dims{j / 70, j % 70};
                if (affine)
                  expect_near(get(dw, i), dw_want[size_t(j)], tolerance(dtype),
                              20 * epsilon(dtype == float64 ? float64 : float32), "dweight");
                if (affine > 1 && centered)
                  expect_near(get(db, i), db_want[size_t(j)], tolerance(dtype),
                              20 * epsilon(dtype == float64 ? float64 : float32), "dbias");
              }
            }
    Array none = make({0, 8}, float32), y = make({0, 8}, float32), stat = make({0}, float32), dw = make({8}, float32),
          db = make({8}, float32);
    layer_norm(none, 1, Array(), Array(), 1e-5, y, stat, stat);
    layer_norm_backward(none, none, 1, Array(), stat, stat, y, &dw, &db);
    for (int64_t j = 0; j < 8; ++j) EXPECT_EQ(get(dw, {j}), 0);
  });
}

TEST(CrossEntropy, LossAndGradientInEveryTypeAndLayout) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : kFloats)
      for (Layout layout : kAllLayouts)
        for (DType index : {int32, int64})
          for (double smoothing : {0.0, 0.1}) {
            const int64_t n = 6, c = 75;
            const DType wide = dtype == float64 ? float64 : float32;
            Array x = random({n, c}, dtype, layout, noise, -5, 5),
                  dx = make({n, c}, dtype, layout == Layout::kTransposed ? layout : Layout::kContiguous);
            Array t = of({0, 74, -100, 5, 17, 3}, index), loss = make({n}, wide), lse = make({n}, wide),
                  dloss = random({n}, wide, Layout::kContiguous, noise, 0.5, 2);
            CrossEntropy o{.label_smoothing = smoothing};
            cross_entropy(x, t, o, loss, lse);
            cross_entropy_backward(x, t, o, lse, dloss, dx);
            for (int64_t i = 0; i < n; ++i) {
              double sum = 0, all = 0;
              for (int64_t j = 0; j < c; ++j) sum += std::exp(get(x, {i, j})), all += get(x, {i, j});
              const int64_t k = static_cast<int64_t>(get(t, {i}));
              const bool ignored = k == -100;
              double want =
                  ignored ? 0 : std::log(sum) - (1 - smoothing) * get(x, {i, k}) - smoothing / double(c) * all;
              expect_near(get(loss, {i}), want, wide == float32 ? 1e-6 : 1e-12, 1e-6 * (wide == float32), "loss");
              for (int64_t j = 0; j < c; ++j) {
                double g = ignored ? 0
                                   : get(dloss, {i}) *
                        (std::exp(get(x, {i, j})) / sum - (1 - smoothing) * (j == k) - smoothing / double(c));
                expect_near(get(dx, {i, j}), g, 2 * tolerance(dtype),
                            1e-2 * tolerance(dtype) + (wide == float32) * 1e-7, "gradient");
              }
            }
          }
  });
}

TEST(CrossEntropy, SplitClassesGiveTheSame) {
  on_every_isa([] {
    Noise noise;
    const int64_t n = 4, c = 31, cut = 13;
    Array x = random({n, c}, float32, Layout::kContiguous, noise, -5, 5), t = of({12, 13, 30, -1}, int64);
    CrossEntropy o{.ignore_index = -1, .label_smoothing = 0.2};
    Array loss = make({n}, float32), lse = make({n}, float32), dx = make({n, c}, float32),
          dloss = of({1, 2, 3, 4}, float32);
    cross_entropy(x, t, o, loss, lse);
    cross_entropy_backward(x, t, o, lse, dloss, dx);
    Array part_lse[2], picked[2];
    for (int p = 0; p < 2; ++p) {
      Array part = x.view({n, p ? c - cut : cut}, x.strides, p ? cut : 0);
      CrossEntropy mine = o;
      mine.class_offset = p ? cut : 0;
      mine.num_classes = c;
      part_lse[p] = make({n}, float32), picked[p] = make({n}, float32);
      log_sum_exp(part, part_lse[p]);
      cross_entropy_picked(part, t, mine, picked[p]);
      Array dpart = make(part.shape, float32);
      cross_entropy_backward(part, t, mine, lse, dloss, dpart);
      each(part.shape, [&](const Dims& i) { EXPECT_EQ(get(dpart, i), get(dx, {i[0], i[1] + (p ? cut : 0)})); });
    }
    for (int64_t i = 0; i < n; ++i) {
      double all = std::log(std::exp(get(part_lse[0], {i})) + std::exp(get(part_lse[1], {i})));
      EXPECT_NEAR(all, get(lse, {i}), 1e-6);
      EXPECT_NEAR(i == 3 ? 0 : all - get(picked[0], {i}) - get(picked[1], {i}), get(loss, {i}), 2e-6);
    }
  });
}

TEST(CrossEntropy, TargetsOutOfRangeAreNamed) {
  Array x = make({2, 3}, float32), t = of({0, 3}, int64), loss = make({2}, float32), lse = make({2}, float32);
  fill(x, 0);
  std::string message = message_of(ErrorKind::kIndex, [&] { cross_entropy(x, t, {}, loss, lse); });
  EXPECT_NE(message.find("target 3 at row 1 is outside [0, 3)"), std::string::npos) << message;
  Array negative = of({-1, 0}, int32);
  message_of(ErrorKind::kIndex, [&] { cross_entropy_backward(x, negative, {}, lse, loss, x); });
  message_of(ErrorKind::kIndex, [&] { nll(x, negative, {}, loss); });
}

TEST(Nll, PicksTheTarget) {
  Noise noise;
  for (DType dtype : kFloats) {
    Array x = random({3, 5}, dtype, Layout::kTransposed, noise, -5, 0), t = of({4, -100, 1}, int64);
    const DType wide = dtype == float64 ? float64 : float32;
    Array loss = make({3}, wide), g = of({1, 2, 3}, wide), dx = make({3, 5}, dtype, Layout::kTransposed);
    nll(x, t, {}, loss);
    EXPECT_EQ(get(loss, {0}), -get(x, {0, 4}));
    EXPECT_EQ(get(loss, {1}), 0);
    nll_backward(t, {}, g, dx);
    each(dx.shape, [&](const Dims& i) {
      EXPECT_EQ(get(dx, i), i[0] == 0 && i[1] == 4 ? -1 : i[0] == 2 && i[1] == 1 ? -3 : 0);
    });
  }
}

}  // namespace
}  // namespace holon::kernels::testing
