#include "holon/kernels/reduce.h"

#include <algorithm>

#include "holon/base/parallel.h"
#include "tests/cpp/kernels/util.h"

namespace holon::kernels::testing {
namespace {

// The reference: collects the elements that fall on each output, in order.
void check_reduce(ReduceOp op, const Array& a, uint32_t axes, const Array& out, double relative) {
  Dims kept;
  for (int i = 0; i < a.ndim(); ++i)
    if (!(axes >> i & 1u)) kept.push_back(a.shape[i]);
  std::vector<std::vector<double>> parts(static_cast<size_t>(kept.numel()));
  each(a.shape, [&](const Dims& index) {
    int64_t at = 0;
    for (int i = 0; i < a.ndim(); ++i)
      if (!(axes >> i & 1u)) at = at * a.shape[i] + index[i];
    parts[static_cast<size_t>(at)].push_back(get(a, index));
  });
  size_t k = 0;
  each(kept, [&](const Dims& index) {
    const std::vector<double>& v = parts[k++];
    double sum = 0, size = 0, product = 1, squares = 0, most = -INFINITY, least = INFINITY;
    bool any = false, all = true;
    for (double x : v) {
      sum += x, size += std::abs(x), product *= x, squares += x * x;
      most = std::max(most, x), least = std::min(least, x);
      any |= x != 0, all &= x != 0;
    }
    double want = 0, scale = 0;
    switch (op) {
      case ReduceOp::Sum: want = sum, scale = size; break;
      case ReduceOp::Mean: want = sum / double(v.size()), scale = size / double(v.size()); break;
      case ReduceOp::Prod: want = product, scale = std::abs(product) * 4; break;
      case ReduceOp::SumSquares: want = scale = squares; break;
      case ReduceOp::SumAbs: want = scale = size; break;
      case ReduceOp::Max: want = most; break;
      case ReduceOp::Min: want = least; break;
      case ReduceOp::AbsMax: want = std::max(std::abs(most), std::abs(least)); break;
      case ReduceOp::Any: want = any; break;
      case ReduceOp::All: want = all; break;
      default: FAIL();
    }
    expect_near(get(out, index), want, relative, relative * scale + smallest(out.dtype),
                "reduction " + std::to_string(int(op)) + " of " + a.shape.str() + " mask " + std::to_string(axes) +
                    " at " + index.str());
  });
}

TEST(Reduce, EveryOperationTypeLayoutAndAxes) {
  on_every_isa([] {
    Noise noise;
    const ReduceOp ops[] = {ReduceOp::Sum,    ReduceOp::Prod,   ReduceOp::Max,  ReduceOp::Min, ReduceOp::SumSquares,
                            ReduceOp::AbsMax, ReduceOp::SumAbs, ReduceOp::Mean, ReduceOp::Any, ReduceOp::All};
    for (ReduceOp op : ops)
      for (DType dtype : kAllTypes)
        for (const Dims& shape : {Dims{}, Dims{37}, Dims{5, 70}, Dims{6, 7, 8}})
          for (Layout layout : kAllLayouts)
            for (uint32_t axes = 0; axes < 1u << shape.size(); ++axes) {
              const double low = dtype == boolean || dtype == uint8 ? 0
                  : op == ReduceOp::Prod                            ? (is_floating(dtype) ? 0.8 : -2)
                                                                    : -9;
              const double high = op == ReduceOp::Prod ? (is_floating(dtype) ? 1.2 : 2) : dtype == boolean ? 2 : 9;
              Array a = random(shape, dtype, layout, noise, low, high);
              Dims kept;
              for (int i = 0; i < shape.size(); ++i)
                if (!(axes >> i & 1u)) kept.push_back(shape[i]);
              const bool truth = op == ReduceOp::Any || op == ReduceOp::All;
              DType to = truth                                  ? boolean
                  : op == ReduceOp::Mean && !is_floating(dtype) ? float32
                  : is_floating(dtype)                          ? dtype
                                                                : int64;
              Array out = make(kept, to, layout == Layout::kSliced ? Layout::kSliced : Layout::kContiguous);
              reduce(op, a, axes, out);
              // The reference itself rounds in float64; products round at each step.
              check_reduce(op, a, axes, out, (to == float64 || op == ReduceOp::Prod ? 64 : 2) * epsilon(to));
            }
  });
}

TEST(Reduce, KeptAxesOfSizeOne) {
  Noise noise;
  Array a = random({4, 5, 6}, float32, Layout::kContiguous, noise, -1, 1), wide = make({4, 1, 6}, float32),
        thin = make({4, 6}, float32);
  reduce(ReduceOp::Sum, a, 2, wide);
  reduce(ReduceOp::Sum, a, 2, thin);
  for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(wide.data<float>()[i], thin.data<float>()[i]);
}

TEST(Reduce, LargeSumsAreAccurateOnAnyNumberOfThreads) {
  on_every_isa([] {
    const int before = num_threads();
    Noise noise;
    Array a = random({700, 1500}, float32, Layout::kContiguous, noise, 0, 1);
    double want = 0;
    for (int64_t i = 0; i < a.numel(); ++i) want += a.data<float>()[i];
    float first = 0;
    for (int threads : {1, 2, 5}) {
      set_num_threads(threads);
      Array all = make({}, float32);
      reduce(ReduceOp::Sum, a, 3, all);
      EXPECT_NEAR(get(all, {}), want, want * 1.2e-7);
      if (threads == 1) first = *all.data<float>();
      EXPECT_EQ(*all.data<float>(), first);
      Array rows = make({700}, float32), cols = make({1500}, float32);
      reduce(ReduceOp::Sum, a, 2, rows);
      check_reduce(ReduceOp::Sum, a, 2, rows, 1.2e-7);
      reduce(ReduceOp::Sum, a, 1, cols);
      check_reduce(ReduceOp::Sum, a, 1, cols, 1.2e-7);
    }
    set_num_threads(before);
  });
}

TEST(Reduce, IntegersBeyondTheirOwnRange) {
  on_every_isa([] {
    Array a = make({5000}, int32), out = make({}, int64);
    for (int64_t i = 0; i < 5000; ++i) a.data<int32_t>()[i] = INT32_MAX;
    reduce(ReduceOp::Sum, a, 1, out);
    EXPECT_EQ(*out.data<int64_t>(), int64_t{INT32_MAX} * 5000);
    Array b = make({40, 3}, boolean), cols = make({3}, int64);
    for (int64_t i = 0; i < 120; ++i) b.data<uint8_t>()[i] = i % 3 == 1;
    reduce(ReduceOp::Sum, b, 1, cols);
    EXPECT_EQ(cols.data<int64_t>()[1], 40);
    EXPECT_EQ(cols.data<int64_t>()[2], 0);
    Array lows = make({3}, int64), low = make({}, int64);
    for (int64_t i = 0; i < 3; ++i) lows.data<int64_t>()[i] = INT64_MIN + i;
    reduce(ReduceOp::Max, lows, 1, low);
    EXPECT_EQ(*low.data<int64_t>(), INT64_MIN + 2);
  });
}

TEST(Reduce, EmptyAndNan) {
  on_every_isa([] {
    Array none = make({0, 4}, float32), cols = make({4}, float32), rows = make({0}, float32);
    reduce(ReduceOp::Sum, none, 1, cols);
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(get(cols, {i}), 0);
    reduce(ReduceOp::Prod, none, 1, cols);
    EXPECT_EQ(get(cols, {2}), 1);
    reduce(ReduceOp::Max, none, 2, rows);
    EXPECT_NE(message_of(ErrorKind::kValue, [&] { reduce(ReduceOp::Max, none, 1, cols); }).find("[0, 4]"),
              std::string::npos);
    Array truth = make({}, boolean);
    reduce(ReduceOp::All, none, 3, truth);
    EXPECT_EQ(get(truth, {}), 1);
    reduce(ReduceOp::Any, none, 3, truth);
    EXPECT_EQ(get(truth, {}), 0);
    for (int64_t n : {3, 100, 5000})
      for (int64_t at : {int64_t{0}, n / 2, n - 1}) {
        Array a = make({n}, float32), out = make({}, float32), where = make({}, int64);
        for (int64_t i = 0; i < n; ++i) a.data<float>()[i] = static_cast<float>(i);
        a.data<float>()[at] = NAN;
        for (ReduceOp op : {ReduceOp::Max, ReduceOp::Min, ReduceOp::Sum, ReduceOp::AbsMax}) {
          reduce(op, a, 1, out);
          EXPECT_TRUE(std::isnan(get(out, {}))) << n << " " << at;
        }
        argreduce(true, a, 0, where);
        EXPECT_EQ(get(where, {}), at);
        argreduce(false, a, 0, where);
        EXPECT_EQ(get(where, {}), at);
      }
  });
}

TEST(ArgReduce, FirstOneWinsInEveryTypeAndLayout) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : kAllTypes)
      for (Layout layout : kAllLayouts)
        for (int axis : {0, 1, 2})
          for (bool max : {true, false}) {
            Array a = random({5, 80, 3}, dtype, layout, noise, 0, 6);
            Dims kept = a.shape;
            kept.erase(axis);
            Array out = make(kept, int64);
            argreduce(max, a, axis, out);
            each(kept, [&](const Dims& index) {
              Dims at = index;
              at.insert(axis, 0);
              int64_t best = 0;
              double value = get(a, at);
              for (int64_t i = 1; i < a.shape[axis]; ++i) {
                at[axis] = i;
                double v = get(a, at);
                if (max ? v > value : v < value) value = v, best = i;
              }
              ASSERT_EQ(get(out, index), double(best)) << holon::name(dtype);
            });
          }
    Array empty = make({3, 0}, float32), out = make({3}, int64);
    message_of(ErrorKind::kValue, [&] { argreduce(true, empty, 1, out); });
  });
}

TEST(Scan, SumsAndProductsAlongEveryAxis) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : {float32, float64, bfloat16, int32, int64, uint8, boolean})
      for (Layout layout : kAllLayouts)
        for (int axis : {0, 1}) {
          Array a = random({4, 600}, dtype, layout, noise, 0.9, 1.1),
                out = make(a.shape, is_floating(dtype) ? dtype : int64);
          for (bool product : {false, true}) {
            product ? cumprod(a, axis, out) : cumsum(a, axis, out);
            for (int64_t line = 0; line < a.shape[1 - axis]; ++line) {
              double total = product ? 1 : 0;
              for (int64_t i = 0; i < a.shape[axis]; ++i) {
                Dims at{line, line};
                at[axis] = i;
                total = product ? total * get(a, at) : total + get(a, at);
                expect_near(get(out, at), total, epsilon(out.dtype), 0, "scan");
              }
            }
          }
        }
    Array zero = make({}, float32), out = make({}, float32);
    put(zero, {}, 5);
    cumsum(zero, 0, out);
    EXPECT_EQ(get(out, {}), 5);
  });
}

}  // namespace
}  // namespace holon::kernels::testing
