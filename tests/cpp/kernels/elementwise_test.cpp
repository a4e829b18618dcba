#include "holon/kernels/elementwise.h"

#include <algorithm>
#include <functional>
#include <map>

#include "holon/base/parallel.h"
#include "tests/cpp/kernels/util.h"

namespace holon::kernels::testing {
namespace {

using Reference1 = double (*)(double);
using Reference2 = double (*)(double, double);

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return x > 30 ? x : std::log1p(std::exp(x)); }
double cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double gelu_tanh(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

struct UnaryCase {
  UnaryOp op;
  Reference1 reference;
  double low, high;
  double absolute = 0;  // error that is fine besides the relative one
};

const std::vector<UnaryCase> kUnary = {
    {UnaryOp::Neg, [](double x) { return -x; }, -9, 9},
    {UnaryOp::Abs, [](double x) { return std::abs(x); }, -9, 9},
    {UnaryOp::Sign, [](double x) { return double((x > 0) - (x < 0)); }, -2, 2},
    {UnaryOp::Square, [](double x) { return x * x; }, -9, 9},
    {UnaryOp::Cube, [](double x) { return x * x * x; }, -4, 4},
    {UnaryOp::Reciprocal, [](double x) { return 1 / x; }, 0.1, 9},
    {UnaryOp::Sqrt, [](double x) { return std::sqrt(x); }, 0, 90},
    {UnaryOp::Rsqrt, [](double x) { return 1 / std::sqrt(x); }, 0.01, 90},
    {UnaryOp::Exp, [](double x) { return std::exp(x); }, -80, 80},
    {UnaryOp::Exp2, [](double x) { return std::exp2(x); }, -120, 120},
    {UnaryOp::Expm1, [](double x) { return std::expm1(x); }, -20, 20},
    {UnaryOp::Log, [](double x) { return std::log(x); }, 1e-6, 50},
    {UnaryOp::Log2, [](double x) { return std::log2(x); }, 1e-6, 50},
    {UnaryOp::Log10, [](double x) { return std::log10(x); }, 1e-6, 50},
    {UnaryOp::Log1p, [](double x) { return std::log1p(x); }, -0.99, 50},
    {UnaryOp::Sin, [](double x) { return std::sin(x); }, -100, 100, 1e-7},
    {UnaryOp::Cos, [](double x) { return std::cos(x); }, -100, 100, 1e-7},
    {UnaryOp::Tan, [](double x) { return std::tan(x); }, -1.4, 1.4},
    {UnaryOp::Asin, [](double x) { return std::asin(x); }, -1, 1},
    {UnaryOp::Acos, [](double x) { return std::acos(x); }, -1, 1},
    {UnaryOp::Atan, [](double x) { return std::atan(x); }, -9, 9},
    {UnaryOp::Sinh, [](double x) { return std::sinh(x); }, -9, 9},
    {UnaryOp::Cosh, [](double x) { return std::cosh(x); }, -9, 9},
    {UnaryOp::Tanh, [](double x) { return std::tanh(x); }, -12, 12},
    {UnaryOp::Asinh, [](double x) { return std::asinh(x); }, -9, 9},
    {UnaryOp::Acosh, [](double x) { return std::acosh(x); }, 1, 9},
    {UnaryOp::Atanh, [](double x) { return std::atanh(x); }, -0.99, 0.99},
    {UnaryOp::Erf, [](double x) { return std::erf(x); }, -5, 5},
    {UnaryOp::Erfc, [](double x) { return std::erfc(x); }, -3, 3},
    {UnaryOp::Floor, [](double x) { return std::floor(x); }, -9, 9},
    {UnaryOp::Ceil, [](double x) { return std::ceil(x); }, -9, 9},
    {UnaryOp::Round, [](double x) { return std::nearbyint(x); }, -9, 9},
    {UnaryOp::Trunc, [](double x) { return std::trunc(x); }, -9, 9},
    {UnaryOp::Frac, [](double x) { return x - std::trunc(x); }, -9, 9},
    {UnaryOp::Sigmoid, sigmoid, -30, 30},
    {UnaryOp::LogSigmoid, [](double x) { return -softplus(-x); }, -30, 30},
    {UnaryOp::Relu, [](double x) { return x < 0 ? 0 : x; }, -9, 9},
    {UnaryOp::Gelu, [](double x) { return x * cdf(x); }, -8, 8, 2e-8},
    {UnaryOp::GeluTanh, gelu_tanh, -8, 8, 2e-8},
    {UnaryOp::QuickGelu, [](double x) { return x * sigmoid(1.702 * x); }, -9, 9, 1e-8},
    {UnaryOp::Silu, [](double x) { return x * sigmoid(x); }, -20, 20},
    {UnaryOp::Mish, [](double x) { return x * std::tanh(softplus(x)); }, -20, 20},
    {UnaryOp::Softsign, [](double x) { return x / (1 + std::abs(x)); }, -9, 9},
    {UnaryOp::HardSigmoid, [](double x) { return std::clamp(x / 6 + 0.5, 0.0, 1.0); }, -5, 5, 1e-7},
    {UnaryOp::HardSwish, [](double x) { return x * std::clamp(x + 3, 0.0, 6.0) / 6; }, -5, 5, 2e-7},
    {UnaryOp::Selu, [](double x) { return 1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * std::expm1(x)); }, -9,
     9},
    {UnaryOp::IsNan, [](double x) { return double(std::isnan(x)); }, -9, 9},
    {UnaryOp::IsInf, [](double x) { return double(std::isinf(x)); }, -9, 9},
    {UnaryOp::IsFinite, [](double x) { return double(std::isfinite(x)); }, -9, 9},
    {UnaryOp::LogicalNot, [](double x) { return double(x == 0); }, -2, 2},
};

// Values that are exact in the dtype, so that the reference sees what the kernel sees.
double tolerance(DType dtype) { return dtype == float32 ? 1e-6 : dtype == float64 ? 1e-13 : 1.01 * epsilon(dtype); }

TEST(Unary, MatchesTheReferenceInFloats) {
  on_every_isa([] {
    Noise noise;
    for (const UnaryCase& c : kUnary)
      for (DType dtype : {float32, float64, bfloat16, float16})
        for (int64_t n : {1, 15, 1000}) {
          double limit =
              dtype == float16 && (c.op == UnaryOp::Exp || c.op == UnaryOp::Exp2 || c.op == UnaryOp::Expm1) ? 9 : 1e9;
          Array a = random({n}, dtype, Layout::kContiguous, noise, std::max(c.low, -limit), std::min(c.high, limit));
          Array out = make({n}, gives_bool(c.op) ? boolean : dtype);
          unary(c.op, a, out);
          for (int64_t i = 0; i < n; ++i) {
            double x = get(a, {i});
            expect_near(get(out, {i}), c.reference(x), tolerance(dtype), c.absolute + smallest(dtype),
                        std::string(name(c.op)) + "(" + std::to_string(x) + ") in " + holon::name(dtype));
          }
        }
  });
}

TEST(Unary, LimitsInFloat32) {
  on_every_isa([] {
    const std::vector<double> x = {0,     -0.0, INFINITY, -INFINITY, NAN,  1e-38, -1e-38, 1e-42, 3e38,
                                   -3e38, 88.5, 88.8,     -87.5,     -104, 1e-7,  -1,     1,     700};
    const std::map<UnaryOp, Reference1> ops = {
        {UnaryOp::Exp, [](double v) { return double(std::exp(float(v))); }},
        {UnaryOp::Expm1, [](double v) { return double(std::expm1(float(v))); }},
        {UnaryOp::Exp2, [](double v) { return double(std::exp2(float(v))); }},
        {UnaryOp::Log, [](double v) { return double(std::log(float(v))); }},
        {UnaryOp::Log2, [](double v) { return double(std::log2(float(v))); }},
        {UnaryOp::Log10, [](double v) { return double(std::log10(float(v))); }},
        {UnaryOp::Log1p, [](double v) { return double(std::log1p(float(v))); }},
        {UnaryOp::Tanh, [](double v) { return double(std::tanh(float(v))); }},
        {UnaryOp::Erf, [](double v) { return double(std::erf(float(v))); }},
        {UnaryOp::Sin, [](double v) { return double(std::sin(float(v))); }},
        {UnaryOp::Cos, [](double v) { return double(std::cos(float(v))); }},
        {UnaryOp::Sigmoid, [](double v) { return sigmoid(v); }},
        {UnaryOp::LogSigmoid, [](double v) { return -softplus(-v); }},
        {UnaryOp::Relu, [](double v) { return v < 0 ? 0 : v; }},
        {UnaryOp::Sign, [](double v) { return std::isnan(v) ? v : double((v > 0) - (v < 0)); }},
        {UnaryOp::IsNan, [](double v) { return double(std::isnan(v)); }},
        {UnaryOp::IsInf, [](double v) { return double(std::isinf(v)); }},
        {UnaryOp::IsFinite, [](double v) { return double(std::isfinite(v)); }},
    };
    // Once alone and once among others: the vector loop and its tail.
    for (auto [op, reference] : ops)
      for (size_t repeat : {1, 37}) {
        std::vector<double> many;
        for (size_t r = 0; r < repeat; ++r) many.insert(many.end(), x.begin(), x.end());
        Array a = of(many, float32), out = make(a.shape, gives_bool(op) ? boolean : float32);
        unary(op, a, out);
        for (size_t i = 0; i < many.size(); ++i)
          expect_near(get(out, {int64_t(i)}), reference(many[i]), 1e-6, 2e-38,
                      std::string(name(op)) + "(" + std::to_string(many[i]) + ")");
      }
    Array a = of({-40, 40, -1e10, 1e10, NAN}, float32), out = make(a.shape, float32);
    unary(UnaryOp::Gelu, a, out);
    EXPECT_NEAR(get(out, {0}), 0, 1e-30);
    EXPECT_EQ(get(out, {1}), 40);
    EXPECT_NEAR(get(out, {2}), 0, 1e-30);
    EXPECT_EQ(get(out, {3}), 1e10f);
    EXPECT_TRUE(std::isnan(get(out, {4})));
  });
}

TEST(Unary, ErfinvUndoesErf) {
  on_every_isa([] {
    std::vector<double> x;
    for (int i = -4000; i <= 4000; ++i) x.push_back(i / 1000.0);
    for (double tiny : {1e-300, 1e-20, 1e-9}) x.push_back(tiny);
    std::vector<double> y;
    for (double v : x) y.push_back(std::erf(v));
    Array a = of(y, float64), out = make(a.shape, float64);
    unary(UnaryOp::Erfinv, a, out);
    // Near 1 a rounding of erf is much in x.
    for (size_t i = 0; i < x.size(); ++i)
      expect_near(get(out, {int64_t(i)}), x[i], 8e-16 + 1.5e-16 * std::exp(x[i] * x[i]) / std::max(std::abs(x[i]), 1.0),
                  0, "erfinv");
    Array ends = of({1, -1, 1.5, 0}, float32), limits = make({4}, float32);
    unary(UnaryOp::Erfinv, ends, limits);
    EXPECT_EQ(get(limits, {0}), INFINITY);
    EXPECT_EQ(get(limits, {1}), -INFINITY);
    EXPECT_TRUE(std::isnan(get(limits, {2})));
    EXPECT_EQ(get(limits, {3}), 0);
  });
}

TEST(Binary, Shifts) {
  on_every_isa([] {
    Array x = of({1, 5, -5, 1, 1}, int32), by = of({31, 2, 1, 32, -1}, int32), out = make({5}, int32);
    binary(BinaryOp::LeftShift, x, by, out);
    for (auto [i, want] : std::vector<std::pair<int64_t, double>>{{0, INT32_MIN}, {1, 20}, {2, -10}, {3, 0}, {4, 0}})
      EXPECT_EQ(get(out, {i}), want);
    binary(BinaryOp::RightShift, x, by, out);
    for (auto [i, want] : std::vector<std::pair<int64_t, double>>{{0, 0}, {1, 1}, {2, -3}, {3, 0}, {4, 0}})
      EXPECT_EQ(get(out, {i}), want);
  });
}

TEST(Unary, EveryLayoutAndType) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : kAllTypes)
      for (const Dims& shape : {Dims{}, Dims{0, 4}, Dims{40, 50}, Dims{70, 3, 5}, Dims{3, 600}})
        for (Layout from : kAllLayouts)
          for (Layout to : {Layout::kContiguous, Layout::kTransposed, Layout::kSliced}) {
            Array a = random(shape, dtype, from, noise, dtype == uint8 || dtype == boolean ? 0 : -9, 9);
            Array out = make(shape, dtype, to);
            unary(UnaryOp::Square, a, out);
            each(shape, [&](const Dims& i) {
              double x = get(a, i);
              ASSERT_NEAR(get(out, i), x * x, x * x * epsilon(dtype) + smallest(dtype))
                  << holon::name(dtype) << " at " << i.str();
            });
          }
  });
}

TEST(Unary, IntegersWrapAroundAndBoolsStayBools) {
  on_every_isa([] {
    Array a = of({-128, 127, 5}, int8), out = make({3}, int8);
    unary(UnaryOp::Neg, a, out);
    EXPECT_EQ(get(out, {0}), -128);
    unary(UnaryOp::Abs, a, out);
    EXPECT_EQ(get(out, {0}), -128);
    EXPECT_EQ(get(out, {1}), 127);
    unary(UnaryOp::BitNot, a, out);
    EXPECT_EQ(get(out, {2}), -6);
    Array u = of({1, 255}, uint8), un = make({2}, uint8);
    unary(UnaryOp::Neg, u, un);
    EXPECT_EQ(get(un, {0}), 255);
    EXPECT_EQ(get(un, {1}), 1);
    Array b = of({0, 1}, boolean), bn = make({2}, boolean);
    unary(UnaryOp::BitNot, b, bn);
    EXPECT_EQ(get(bn, {0}), 1);
    EXPECT_EQ(get(bn, {1}), 0);
    Array l = make({1}, int64), m = make({1}, int64);
    *l.data<int64_t>() = INT64_MIN;
    unary(UnaryOp::Neg, l, m);
    EXPECT_EQ(*m.data<int64_t>(), INT64_MIN);
  });
}

TEST(Unary, ParametersReachTheOperation) {
  on_every_isa([] {
    Noise noise;
    Array a = random({300}, float32, Layout::kContiguous, noise, -4, 4), out = make({300}, float32);
    auto check = [&](UnaryOp op, const Params& p, const std::function<double(double)>& reference) {
      unary(op, a, out, p);
      for (int64_t i = 0; i < 300; ++i) expect_near(get(out, {i}), reference(get(a, {i})), 1e-6, 1e-6, name(op));
    };
    check(UnaryOp::LeakyRelu, {0.1}, [](double x) { return x > 0 ? x : 0.1 * x; });
    check(UnaryOp::Elu, {1.5}, [](double x) { return x > 0 ? x : 1.5 * std::expm1(x); });
    check(UnaryOp::Celu, {1.5}, [](double x) { return x > 0 ? x : 1.5 * std::expm1(x / 1.5); });
    check(UnaryOp::Softplus, {2.0, 5.0}, [](double x) { return 2 * x > 5 ? x : std::log1p(std::exp(2 * x)) / 2; });
    check(UnaryOp::Threshold, {1.0, -3.0}, [](double x) { return x > 1 ? x : -3; });
    check(UnaryOp::SoftShrink, {0.5}, [](double x) { return x > 0.5 ? x - 0.5 : x < -0.5 ? x + 0.5 : 0; });
    check(UnaryOp::HardShrink, {0.5}, [](double x) { return std::abs(x) <= 0.5 ? 0 : x; });
    check(UnaryOp::NanToNum, {7, 8, 9}, [](double x) { return x; });
    Array odd = of({NAN, INFINITY, -INFINITY}, float32), fixed = make({3}, float32);
    unary(UnaryOp::NanToNum, odd, fixed, {7, 8, 9});
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(get(fixed, {i}), 7 + i);
  });
}

const std::map<BinaryOp, Reference2> kBinary = {
    {BinaryOp::Add, [](double x, double y) { return x + y; }},
    {BinaryOp::Sub, [](double x, double y) { return x - y; }},
    {BinaryOp::Mul, [](double x, double y) { return x * y; }},
    {BinaryOp::Maximum, [](double x, double y) { return std::max(x, y); }},
    {BinaryOp::Minimum, [](double x, double y) { return std::min(x, y); }},
    {BinaryOp::Eq, [](double x, double y) { return double(x == y); }},
    {BinaryOp::Ne, [](double x, double y) { return double(x != y); }},
    {BinaryOp::Lt, [](double x, double y) { return double(x < y); }},
    {BinaryOp::Le, [](double x, double y) { return double(x <= y); }},
    {BinaryOp::Gt, [](double x, double y) { return double(x > y); }},
    {BinaryOp::Ge, [](double x, double y) { return double(x >= y); }},
    {BinaryOp::LogicalAnd, [](double x, double y) { return double(x != 0 && y != 0); }},
    {BinaryOp::LogicalOr, [](double x, double y) { return double(x != 0 || y != 0); }},
    {BinaryOp::LogicalXor, [](double x, double y) { return double((x != 0) != (y != 0)); }},
};

double wrap(double v, DType dtype) {
  if (dtype == boolean) return v != 0;
  if (dtype == uint8) return static_cast<uint8_t>(static_cast<int64_t>(v));
  if (dtype == int8) return static_cast<int8_t>(static_cast<int64_t>(v));
  return v;
}

TEST(Binary, EveryTypeLayoutAndBroadcast) {
  on_every_isa([] {
    Noise noise;
    struct Shapes {
      Dims a, b, out;
    };
    const std::vector<Shapes> shapes = {{{40, 50}, {40, 50}, {40, 50}}, {{40, 50}, {50}, {40, 50}},
                                        {{40, 1}, {40, 50}, {40, 50}},  {{}, {40, 50}, {40, 50}},
                                        {{5, 1, 7}, {6, 1}, {5, 6, 7}}, {{}, {}, {}},
                                        {{3, 0}, {1}, {3, 0}},          {{2, 3, 1, 5}, {3, 40, 1}, {2, 3, 40, 5}}};
    for (auto [op, reference] : kBinary)
      for (DType dtype : kAllTypes)
        for (const Shapes& s : shapes)
          for (Layout layout : {Layout::kContiguous, Layout::kTransposed, Layout::kSliced}) {
            const double low = dtype == uint8 || dtype == boolean ? 0 : -4, high = dtype == boolean ? 2 : 5;
            Array a = random(s.a, dtype, layout, noise, low, high),
                  b = random(s.b, dtype, Layout::kContiguous, noise, low, high);
            Array out = make(s.out, gives_bool(op) ? boolean : dtype,
                             layout == Layout::kSliced ? Layout::kTransposed : Layout::kContiguous);
            binary(op, a, b, out);
            each(s.out, [&](const Dims& i) {
              double want = wrap(reference(get(a, aligned(a, i)), get(b, aligned(b, i))), out.dtype);
              ASSERT_NEAR(get(out, i), want, std::abs(want) * epsilon(out.dtype) + smallest(out.dtype))
                  << name(op) << " in " << holon::name(dtype) << " at " << i.str();
            });
          }
  });
}

TEST(Binary, InPlace) {
  on_every_isa([] {
    Noise noise;
    for (Layout layout : {Layout::kContiguous, Layout::kTransposed, Layout::kSliced})
      for (DType dtype : {float32, bfloat16, int64}) {
        Array a = random({60, 70}, dtype, layout, noise, -9, 9),
              b = random({70}, dtype, Layout::kContiguous, noise, -9, 9);
        Array want = make(a.shape, dtype);
        binary(BinaryOp::Sub, a, b, want);
        binary(BinaryOp::Sub, a, b, a);
        each(a.shape, [&](const Dims& i) { ASSERT_EQ(get(a, i), get(want, i)); });
      }
  });
}

TEST(Binary, DivisionFamily) {
  on_every_isa([] {
    const std::vector<double> x = {7, -7, 7, -7, 6, -6, 0, 5}, y = {2, 2, -2, -2, 3, 3, -4, 10};
    for (DType dtype : {int8, int32, int64, float32, float64, bfloat16}) {
      Array a = of(x, dtype), b = of(y, dtype), out = make(a.shape, dtype);
      auto check = [&](BinaryOp op, const std::function<double(double, double)>& reference) {
        binary(op, a, b, out);
        for (size_t i = 0; i < x.size(); ++i)
          EXPECT_EQ(get(out, {int64_t(i)}), reference(x[i], y[i]))
              << name(op) << " " << x[i] << " " << y[i] << " " << holon::name(dtype);
      };
      check(BinaryOp::FloorDivide, [](double p, double q) { return std::floor(p / q); });
      check(BinaryOp::Remainder, [](double p, double q) { return p - std::floor(p / q) * q; });
      check(BinaryOp::Fmod, [](double p, double q) { return std::fmod(p, q); });
      if (!is_floating(dtype)) check(BinaryOp::Div, [](double p, double q) { return std::trunc(p / q); });
    }
    Array a = of({1, 2}, int32), zero = of({1, 0}, int32), out = make({2}, int32);
    for (BinaryOp op : {BinaryOp::Div, BinaryOp::FloorDivide, BinaryOp::Remainder, BinaryOp::Fmod}) {
      EXPECT_NE(message_of(ErrorKind::kValue, [&] { binary(op, a, zero, out); }).find("zero"), std::string::npos);
      message_of(ErrorKind::kValue, [&] { binary_scalar(op, a, 0, out); });
    }
    Array low = make({1}, int64), minus = of({-1}, int64), o = make({1}, int64);
    *low.data<int64_t>() = INT64_MIN;
    binary(BinaryOp::FloorDivide, low, minus, o);
    EXPECT_EQ(*o.data<int64_t>(), INT64_MIN);
    binary(BinaryOp::Remainder, low, minus, o);
    EXPECT_EQ(*o.data<int64_t>(), 0);
    Array f = of({1, -1, 0}, float32), fz = of({0, 0, 0}, float32), fo = make({3}, float32);
    binary(BinaryOp::Div, f, fz, fo);
    EXPECT_EQ(get(fo, {0}), INFINITY);
    EXPECT_EQ(get(fo, {1}), -INFINITY);
    EXPECT_TRUE(std::isnan(get(fo, {2})));
  });
}

TEST(Binary, PowFollowsTheCLibrary) {
  on_every_isa([] {
    std::vector<double> edge = {0,    -0.0,  1,    -1,    2,        -2,        0.5, 3,      -3,    2.5,
                                -2.5, 1e-40, 1e20, -1e20, INFINITY, -INFINITY, NAN, 0.9999, 1.0001};
    std::vector<double> x, y;
    for (double p : edge)
      for (double q : edge) x.push_back(p), y.push_back(q);
    Noise noise;
    for (int i = 0; i < 2000; ++i) x.push_back(noise.next(0, 20)), y.push_back(noise.next(-20, 20));
    Array a = of(x, float32), b = of(y, float32), out = make(a.shape, float32);
    binary(BinaryOp::Pow, a, b, out);
    for (int64_t i = 0; i < a.shape[0]; ++i) {
      float p = a.data<float>()[i], q = b.data<float>()[i];
      expect_near(get(out, {i}), std::pow(p, q), 1e-6, 2e-38,
                  "pow(" + std::to_string(p) + ", " + std::to_string(q) + ")");
    }
    Array n = of({-3, 2, 7, 0, -1, 1}, int32), e = of({3, 30, 0, 0, -3, -2}, int32), r = make({6}, int32);
    binary(BinaryOp::Pow, n, e, r);
    const double want[] = {-27, 1 << 30, 1, 1, -1, 1};
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(get(r, {i}), want[i]);
  });
}

TEST(Binary, ScalarsOnBothSides) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : kAllTypes)
      for (Layout layout : {Layout::kContiguous, Layout::kTransposed, Layout::kSliced})
        for (bool left : {false, true}) {
          Array a = random({13, 40}, dtype, layout, noise, dtype == boolean || dtype == uint8 ? 0 : -9, 9),
                out = make({13, 40}, dtype);
          binary_scalar(BinaryOp::Sub, a, 3, out, left);
          Array less = make({13, 40}, boolean);
          binary_scalar(BinaryOp::Lt, a, 3, less, left);
          each(a.shape, [&](const Dims& i) {
            double x = get(a, i), three = 3;
            double want = wrap(left ? three - x : x - three, dtype);
            ASSERT_NEAR(get(out, i), want, std::abs(want) * epsilon(dtype) + smallest(dtype)) << holon::name(dtype);
            ASSERT_EQ(get(less, i), left ? three < x : x < three) << holon::name(dtype);
          });
        }
    Array big = make({1}, int64), out = make({1}, int64);
    *big.data<int64_t>() = 1;
    binary_scalar(BinaryOp::Add, big, (int64_t{1} << 60) + 1, out);
    EXPECT_EQ(*out.data<int64_t>(), (int64_t{1} << 60) + 2);
    Array f = of({3, -2, 4}, float32), fo = make({3}, float32);
    for (double e : {-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 2.5}) {
      binary_scalar(BinaryOp::Pow, f, e, fo);
      for (int64_t i = 0; i < 3; ++i) expect_near(get(fo, {i}), std::pow(get(f, {i}), e), 1e-6, 0, "pow by a constant");
    }
  });
}

// Gradients against the slope of the forward operation, by differences in float64.
TEST(Binary, GradientsMatchTheSlopes) {
  on_every_isa([] {
    struct Case {
      BinaryOp backward;
      UnaryOp forward;
      bool of_result;
      double low, high;
      Params params = {};
    };
    const std::vector<Case> cases = {
        {BinaryOp::ReluBackward, UnaryOp::Relu, true, -4, 4},
        {BinaryOp::TanhBackward, UnaryOp::Tanh, true, -3, 3},
        {BinaryOp::SigmoidBackward, UnaryOp::Sigmoid, true, -4, 4},
        {BinaryOp::SqrtBackward, UnaryOp::Sqrt, true, 0.5, 4},
        {BinaryOp::RsqrtBackward, UnaryOp::Rsqrt, true, 0.5, 4},
        {BinaryOp::ReciprocalBackward, UnaryOp::Reciprocal, true, 0.5, 4},
        {BinaryOp::AbsBackward, UnaryOp::Abs, false, -4, 4},
        {BinaryOp::SinBackward, UnaryOp::Sin, false, -4, 4},
        {BinaryOp::CosBackward, UnaryOp::Cos, false, -4, 4},
        {BinaryOp::ErfBackward, UnaryOp::Erf, false, -3, 3},
        {BinaryOp::GeluBackward, UnaryOp::Gelu, false, -7, 7},
        {BinaryOp::GeluTanhBackward, UnaryOp::GeluTanh, false, -7, 7},
        {BinaryOp::QuickGeluBackward, UnaryOp::QuickGelu, false, -7, 7},
        {BinaryOp::SiluBackward, UnaryOp::Silu, false, -7, 7},
        {BinaryOp::MishBackward, UnaryOp::Mish, false, -7, 7},
        {BinaryOp::LogSigmoidBackward, UnaryOp::LogSigmoid, false, -7, 7},
        {BinaryOp::SoftplusBackward, UnaryOp::Softplus, false, -2, 2, {2.0, 20.0}},
        {BinaryOp::SoftsignBackward, UnaryOp::Softsign, false, -4, 4},
        {BinaryOp::HardSigmoidBackward, UnaryOp::HardSigmoid, false, -5, 5},
        {BinaryOp::HardSwishBackward, UnaryOp::HardSwish, false, -5, 5},
        {BinaryOp::SeluBackward, UnaryOp::Selu, false, -4, 4},
        {BinaryOp::LeakyReluBackward, UnaryOp::LeakyRelu, false, -4, 4, {0.2}},
        {BinaryOp::EluBackward, UnaryOp::Elu, false, -4, 4, {1.3}},
        {BinaryOp::CeluBackward, UnaryOp::Celu, false, -4, 4, {1.3}},
        {BinaryOp::ThresholdBackward, UnaryOp::Threshold, false, -4, 4, {1.0, 5.0}},
        {BinaryOp::ShrinkBackward, UnaryOp::SoftShrink, false, -4, 4, {0.7}},
        {BinaryOp::ShrinkBackward, UnaryOp::HardShrink, false, -4, 4, {0.7}},
        {BinaryOp::ClampMinBackward, UnaryOp::ClampMin, false, -4, 4, {0.7}},
        {BinaryOp::ClampMaxBackward, UnaryOp::ClampMax, false, -4, 4, {0.7}},
        {BinaryOp::ClampBackward, UnaryOp::Clamp, false, -4, 4, {-1.0, 2.0}},
    };
    constexpr double kStep = 1e-5;
    constexpr int64_t n = 401;
    for (const Case& c : cases) {
      Array x = make({n}, float64), up = make({n}, float64), down = make({n}, float64), y = make({n}, float64);
      // Off the corners, which lie at multiples of 0.1.
      for (int64_t i = 0; i < n; ++i) put(x, {i}, c.low + 0.00321 + (c.high - c.low - 0.01) * double(i) / n);
      Array shifted = make({n}, float64);
      binary_scalar(BinaryOp::Add, x, kStep, shifted);
      unary(c.forward, shifted, up, c.params);
      binary_scalar(BinaryOp::Sub, x, kStep, shifted);
      unary(c.forward, shifted, down, c.params);
      unary(c.forward, x, y, c.params);
      for (DType dtype : {float64, float32}) {
        Array g = make({n}, dtype), at = make({n}, dtype), dx = make({n}, dtype);
        for (int64_t i = 0; i < n; ++i) {
          put(g, {i}, 2 + double(i % 3));
          put(at, {i}, get(c.of_result ? y : x, {i}));
        }
        binary(c.backward, g, at, dx, c.params);
        for (int64_t i = 0; i < n; ++i) {
          if (std::abs(std::remainder(get(x, {i}), 0.1)) < 1e-4) continue;
          double want = (2 + double(i % 3)) * (get(up, {i}) - get(down, {i})) / (2 * kStep);
          expect_near(get(dx, {i}), want, dtype == float32 ? 3e-6 : 1e-7, dtype == float32 ? 1e-6 : 1e-8,
                      std::string(name(c.backward)) + " at " + std::to_string(get(x, {i})) + " in " +
                          holon::name(dtype));
        }
      }
    }
  });
}

TEST(Binary, NansPassThrough) {
  on_every_isa([] {
    Array a = of({NAN, 1, NAN}, float32), b = of({1, NAN, NAN}, float32), out = make({3}, float32);
    for (BinaryOp op : {BinaryOp::Maximum, BinaryOp::Minimum, BinaryOp::Add}) {
      binary(op, a, b, out);
      for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(get(out, {i}))) << name(op);
    }
    Array c = make({3}, float32);
    clamp(a, Scalar(0.0), Scalar(0.5), c);
    EXPECT_TRUE(std::isnan(get(c, {0})));
    EXPECT_EQ(get(c, {1}), 0.5);
  });
}

TEST(Ternary, AddCMulAddCDivAndOthers) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : {float32, float64, bfloat16, float16}) {
      Array a = random({6, 50}, dtype, Layout::kTransposed, noise, -3, 3),
            b = random({50}, dtype, Layout::kContiguous, noise, -3, 3),
            c = random({6, 1}, dtype, Layout::kContiguous, noise, 1, 3), out = make({6, 50}, dtype);
      auto check = [&](const char* what, const std::function<double(double, double, double)>& reference) {
        each(out.shape, [&](const Dims& i) {
          expect_near(get(out, i), reference(get(a, i), get(b, aligned(b, i)), get(c, aligned(c, i))),
                      4 * epsilon(dtype), 8 * epsilon(dtype), what);
        });
      };
      addcmul(a, b, c, 0.5, out);
      check("addcmul", [](double x, double y, double z) { return x + 0.5 * y * z; });
      addcdiv(a, b, c, 0.5, out);
      check("addcdiv", [](double x, double y, double z) { return x + 0.5 * y / z; });
      ternary(TernaryOp::LerpTensor, a, b, c, out);
      check("lerp", [](double x, double y, double z) { return x + z * (y - x); });
    }
    Array a = of({1, 2}, float32), b = of({10, 20}, float32), out = make({2}, float32);
    add_scaled(a, b, 2, out);
    EXPECT_EQ(get(out, {1}), 42);
  });
}

TEST(Where, BroadcastsAndTakesEveryType) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : kAllTypes)
      for (Layout layout : {Layout::kContiguous, Layout::kTransposed, Layout::kSliced}) {
        Array c = random({7, 40}, boolean, layout, noise, 0, 2),
              a = random({40}, dtype, Layout::kContiguous, noise, 0, 9),
              b = random({}, dtype, Layout::kContiguous, noise, 0, 9), out = make({7, 40}, dtype);
        where(c, a, b, out);
        each(out.shape, [&](const Dims& i) { ASSERT_EQ(get(out, i), get(c, i) != 0 ? get(a, {i[1]}) : get(b, {})); });
      }
  });
}

TEST(Elementwise, ManyElementsOnSeveralThreads) {
  const int before = num_threads();
  set_num_threads(3);
  Array a = make({1, 300000}, float32), b = make({300000}, bfloat16), out = make({1, 300000}, float32);
  for (int64_t i = 0; i < 300000; ++i) a.data<float>()[i] = static_cast<float>(i);
  unary(UnaryOp::Neg, a, out);
  for (int64_t i = 0; i < 300000; ++i) ASSERT_EQ(out.data<float>()[i], -static_cast<float>(i));
  Array grid = make({600, 500}, float32), row = make({500}, float32),
        sum = make({600, 500}, float32, Layout::kTransposed);
  for (int64_t i = 0; i < 300000; ++i) grid.data<float>()[i] = static_cast<float>(i);
  for (int64_t i = 0; i < 500; ++i) row.data<float>()[i] = static_cast<float>(-i);
  binary(BinaryOp::Add, grid, row, sum);
  each(sum.shape, [&](const Dims& i) { ASSERT_EQ(get(sum, i), double(i[0] * 500)); });
  set_num_threads(before);
}

TEST(Elementwise, UnknownTypesAreRefused) {
  Array a = of({1, 2}, int32), out = make({2}, int32);
  EXPECT_NE(message_of(ErrorKind::kType, [&] { unary(UnaryOp::Exp, a, out); }).find("Exp is not defined for int32"),
            std::string::npos);
  Array f = of({1, 2}, float32), fo = make({2}, float32);
  message_of(ErrorKind::kType, [&] { binary(BinaryOp::BitAnd, f, f, fo); });
  message_of(ErrorKind::kInternal, [&] { binary(BinaryOp::Eq, f, f, fo); });
  Array wide = of({1, 2, 3}, float32);
  message_of(ErrorKind::kInternal, [&] { binary(BinaryOp::Add, f, wide, fo); });
}

}  // namespace
}  // namespace holon::kernels::testing
