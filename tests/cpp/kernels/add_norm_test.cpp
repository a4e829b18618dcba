// Residual and norm in one pass against the kernels one after the other.
#include <algorithm>
#include <functional>

#include "holon/base/fmt.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/norm.h"
#include "tests/cpp/kernels/util.h"

namespace holon::kernels::testing {
namespace {

Array as(const Array& a, DType dtype) {
  Array b = Array::empty(a.shape, dtype);
  copy(a, b);
  return b;
}

double largest_difference(const Array& a, const Array& b) {
  EXPECT_TRUE(a.shape == b.shape);
  double most = 0;
  each(a.shape, [&](const Dims& i) { most = std::max(most, std::abs(get(a, i) - get(b, i))); });
  return most;
}

// What is added, and what sum and norm are given as.
struct Types {
  DType x, other, sum, y;
};
const Types kTypes[] = {{float32, float32, float32, float32},     {float64, float64, float64, float64},
                        {bfloat16, float32, float32, bfloat16},   {float32, float16, float32, float16},
                        {bfloat16, bfloat16, bfloat16, bfloat16}, {float16, float32, float32, float32},
                        {float32, float64, float64, float32}};

struct Shape {
  Dims x;
  int axes;
};
const Shape kShapes[] = {{{7, 33}, 1}, {{3, 5, 64}, 1}, {{4, 3, 21}, 2}, {{130, 16}, 1}, {{40}, 1}};

struct Values {
  Array x, other, w, b, dy;
  Values(const Shape& s, const Types& t, Layout layout, int weights) {
    Noise noise;
    x = random(s.x, t.x, layout, noise, -2, 2);
    other = random(s.x, t.other, layout == Layout::kTransposed ? Layout::kSliced : Layout::kContiguous, noise, -2, 2);
    dy = random(s.x, t.x, layout, noise, -1, 1);
    Dims row;
    for (int i = s.x.size() - s.axes; i < s.x.size(); ++i) row.push_back(s.x[i]);
    if (weights > 0) w = random(row, t.sum, Layout::kContiguous, noise, 0.5, 2);
    if (weights > 1) b = random(row, t.sum, Layout::kContiguous, noise, -1, 1);
    row_shape = row;
    rows = 1;
    for (int i = 0; i < s.x.size() - s.axes; ++i) rows *= s.x[i];
  }
  Dims row_shape;
  int64_t rows;
};

void each_case(const std::function<void(const Shape&, const Types&, Layout, int)>& f) {
  for (int threads : {1, 2}) {
    set_num_threads(threads);
    for (const Types& t : kTypes)
      for (const Shape& s : kShapes)
        for (Layout layout : kAllLayouts)
          for (int weights : {0, 1, 2}) {
            SCOPED_TRACE(fmt::format("{} + {} as {} {}, {} axes, layout {}, {} weights", name(t.x), name(t.other),
                                     name(t.y), s.x, s.axes, static_cast<int>(layout), weights));
            f(s, t, layout, weights);
          }
  }
  set_num_threads(1);
}

TEST(AddNorm, EqualsTheKernelsOneByOne) {
  on_every_isa([] {
    each_case([](const Shape& s, const Types& t, Layout layout, int weights) {
      Values v(s, t, layout, weights);
      const DType statistic = t.sum == float64 ? float64 : float32;
      for (bool centered : {true, false}) {
        auto statistics = [&] { return make({v.rows}, statistic); };
        Array sum = make(s.x, t.sum), y = make(s.x, t.sum), m = statistics(), r = statistics();
        binary(BinaryOp::Add, as(v.x, t.sum), as(v.other, t.sum), sum);
        Array got_sum = make(s.x, t.sum, layout == Layout::kBroadcast ? Layout::kContiguous : layout);
        Array got = make(s.x, t.y), got_m = statistics(), got_r = statistics();
        if (centered) {
          layer_norm(sum, s.axes, v.w, v.b, 1e-5, y, m, r);
          add_layer_norm(v.x, v.other, s.axes, v.w, v.b, 1e-5, got_sum, got, got_m, got_r);
          EXPECT_EQ(largest_difference(got_m, m), 0);
        } else {
          rms_norm(sum, s.axes, v.w, 1e-5, y, r);
          add_rms_norm(v.x, v.other, s.axes, v.w, 1e-5, got_sum, got, got_r);
        }
        EXPECT_EQ(largest_difference(got_sum, sum), 0);
        EXPECT_EQ(largest_difference(got, as(y, t.y)), 0);
        EXPECT_EQ(largest_difference(got_r, r), 0);
      }
    });
  });
}

TEST(AddNorm, GradientsEqualTheKernelsOneByOne) {
  on_every_isa([] {
    each_case([](const Shape& s, const Types& t, Layout layout, int weights) {
      Values v(s, t, layout, weights);
      const DType statistic = t.sum == float64 ? float64 : float32;
      Noise noise;
      Array m = random({v.rows}, statistic, Layout::kContiguous, noise, -0.1, 0.1);
      Array r = random({v.rows}, statistic, Layout::kContiguous, noise, 0.5, 1.5);
      Array x = random(s.x, t.sum, Layout::kContiguous, noise, -2, 2);
      // Of two bytes, the gradient is not rounded before other is added.
      const double tolerance = t.sum == float64 ? 1e-14 : t.sum == float32 ? 2e-6 : 6e-2;
      for (bool centered : {true, false}) {
        auto row = [&] { return make(v.row_shape, t.sum); };
        Array dx = make(s.x, t.sum), dw = row(), db = row(), got = make(s.x, t.sum), got_w = row(), got_b = row();
        if (centered) {
          layer_norm_backward(as(v.dy, t.sum), x, s.axes, v.w, m, r, dx, &dw, &db);
          layer_norm_backward_add(v.dy, x, s.axes, v.w, m, r, v.other, got, &got_w, &got_b);
          EXPECT_EQ(largest_difference(got_b, db), 0);
        } else {
          rms_norm_backward(as(v.dy, t.sum), x, s.axes, v.w, r, dx, &dw);
          rms_norm_backward_add(v.dy, x, s.axes, v.w, r, v.other, got, &got_w);
        }
        EXPECT_EQ(largest_difference(got_w, dw), 0);
        binary(BinaryOp::Add, dx, as(v.other, t.sum), dx);
        EXPECT_LE(largest_difference(got, dx), tolerance);
      }
    });
  });
}

TEST(AddNorm, MayWriteOverWhatIsAdded) {
  on_every_isa([] {
    for (DType t : {float32, bfloat16}) {
      // Compiled without vectors (ThreadSanitizer), variants of a loop are contracted in other ways. A row that is
      // overwritten before it is read would be wrong by far more.
      const double tolerance = t == float32 ? 2e-6 : 6e-2;
      const Shape s{{6, 50}, 1};
      Values v(s, {t, t, t, t}, Layout::kContiguous, 2);
      Array sum = make(s.x, t), y = make(s.x, t), m = make({6}, float32), r = make({6}, float32);
      add_layer_norm(v.x, v.other, 1, v.w, v.b, 1e-5, sum, y, m, r);
      Array dx = make(s.x, t), dw = make({50}, t), db = make({50}, t), again = make({50}, t);
      layer_norm_backward_add(v.dy, sum, 1, v.w, m, r, v.other, dx, &dw, &db);
      for (bool first : {true, false}) {
        Array x = as(v.x, t), other = as(v.other, t);
        Array &over = first ? x : other, &over_y = first ? other : x;
        add_layer_norm(x, other, 1, v.w, v.b, 1e-5, over, over_y, m, r);
        EXPECT_EQ(largest_difference(over, sum), 0);
        EXPECT_LE(largest_difference(over_y, y), tolerance);
        for (bool wants_weight : {true, false}) {
          Array dy = as(v.dy, t), plus = as(v.other, t);
          Array& over_d = first ? dy : plus;
          layer_norm_backward_add(dy, sum, 1, v.w, m, r, plus, over_d, wants_weight ? &dw : nullptr, &again);
          EXPECT_LE(largest_difference(over_d, dx), tolerance);
          EXPECT_LE(largest_difference(again, db), tolerance);
        }
      }
    }
  });
}

TEST(AddNorm, OfNothing) {
  Array none = make({0, 8}, float32), statistic = make({0}, float32), dw = make({8}, float32), db = make({8}, float32);
  Array sum = make({0, 8}, float32), y = make({0, 8}, float32);
  add_layer_norm(none, none, 1, Array(), Array(), 1e-5, sum, y, statistic, statistic);
  layer_norm_backward_add(none, none, 1, Array(), statistic, statistic, none, y, &dw, &db);
  for (int64_t j = 0; j < 8; ++j) EXPECT_EQ(get(dw, {j}), 0);
}

}  // namespace
}  // namespace holon::kernels::testing
