#include "holon/kernels/random.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>

#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "tests/cpp/kernels/util.h"

namespace holon::kernels::testing {
namespace {

using Draw = std::function<void(const RandomPart&, Array&)>;

struct Case {
  const char* name;
  Draw draw;
  std::vector<DType> types;
};

// Every drawing function; the last four read an operand of out's shape, which is made from the logical index.
const std::vector<DType> kFloats = {float32, float64, bfloat16, float16};
const std::vector<Case> kCases = {
    {"uniform", [](const RandomPart& p, Array& o) { uniform(p, -2, 3, o); }, kFloats},
    {"normal", [](const RandomPart& p, Array& o) { normal(p, 1, 2, o); }, kFloats},
    {"truncated_normal", [](const RandomPart& p, Array& o) { truncated_normal(p, 0, 1, -2, 2, o); }, kFloats},
    {"far truncated_normal", [](const RandomPart& p, Array& o) { truncated_normal(p, 0, 1, 5, 9, o); }, kFloats},
    {"randint", [](const RandomPart& p, Array& o) { randint(p, -3, 90, o); }, {int32, int64, int8, float32}},
    {"bernoulli", [](const RandomPart& p, Array& o) { bernoulli(p, 0.3, o); }, kAllTypes},
    {"bernoulli of an array",
     [](const RandomPart& p, Array& o) {
       Array half = make(o.shape, float32, Layout::kTransposed);
       fill(half, 0.5);
       bernoulli(p, half, o);
     },
     {float32, boolean}},
    {"dropout",
     [](const RandomPart& p, Array& o) {
       Array x = make(o.shape, o.dtype, Layout::kSliced);
       fill(x, 1);
       dropout(p, x, 0.4, o);
     },
     kFloats},
};

bool same_bits(const Array& a, const Dims& i, const Array& b, const Dims& j) {
  return !std::memcmp(address(a, i), address(b, j), size_bytes(a.dtype));
}

TEST(Philox, KnownAnswers) {
  on_every_isa([] {
    // The published vectors of Philox4x32-10; element 16 w of the first group is word w of the first block.
    uint32_t words[64];
    table().random_bits[0](0, 0, 0, 1, words);
    EXPECT_EQ(words[0], 0x6627e8d5u);
    EXPECT_EQ(words[16], 0xe169c58du);
    EXPECT_EQ(words[32], 0xbc57ac4cu);
    EXPECT_EQ(words[48], 0x9b00dbd8u);
  });
}

TEST(Random, PartsLayoutsThreadsAndInstructionSetsAgreeBitForBit) {
  const int before = num_threads();
  const std::string best = table().name;
  for (const Case& c : kCases)
    for (DType dtype : c.types)
      for (const Dims& shape : {Dims{7, 130}, Dims{3, 5, 9}, Dims{2000}}) {
        select_isa("base");
        set_num_threads(1);
        Array whole = make(shape, dtype);
        c.draw(RandomPart::whole(11, 5, shape), whole);
        for (int isa = 0; isa < isa_count(); ++isa)
          for (int threads : {1, 3}) {
            select_isa(isa_name(isa));
            set_num_threads(threads);
            Array again = make(shape, dtype, Layout::kTransposed);
            c.draw(RandomPart::whole(11, 5, shape), again);
            each(shape, [&](const Dims& i) {
              ASSERT_TRUE(same_bits(whole, i, again, i)) << c.name << " " << name(dtype) << " " << i.str();
            });
            for (int axis = 0; axis < shape.size(); ++axis)
              for (int part = 0; part < 3; ++part) {
                RandomPart p = RandomPart::whole(11, 5, shape);
                Dims local = shape;
                p.offset[axis] = shape[axis] * part / 3;
                local[axis] = shape[axis] * (part + 1) / 3 - p.offset[axis];
                Array piece = make(local, dtype, part == 1 ? Layout::kSliced : Layout::kContiguous);
                c.draw(p, piece);
                each(local, [&](const Dims& i) {
                  Dims at = i;
                  at[axis] += p.offset[axis];
                  ASSERT_TRUE(same_bits(whole, at, piece, i))
                      << c.name << " " << name(dtype) << " part " << part << " " << i.str();
                });
              }
          }
      }
  set_num_threads(before);
  select_isa(best.c_str());
}

TEST(Random, SeedsAndCallsDiffer) {
  Array a = make({1000}, float32), b = make({1000}, float32);
  normal(RandomPart::whole(1, 0, {1000}), 0, 1, a);
  for (auto [seed, counter] :
       {std::pair<uint64_t, uint64_t>{2, 0}, {1, 1}, {1, uint64_t{1} << 40}, {uint64_t{1} << 40, 0}}) {
    normal(RandomPart::whole(seed, counter, {1000}), 0, 1, b);
    int equal = 0;
    for (int64_t i = 0; i < 1000; ++i) equal += get(a, {i}) == get(b, {i});
    EXPECT_LT(equal, 5);
  }
}

TEST(Random, IndicesBeyond32Bits) {
  RandomPart p;
  p.logical_shape = {int64_t{1} << 40};
  p.offset = {(int64_t{1} << 37) + 5};
  Array a = make({10}, float32), b = make({1}, float32);
  uniform(p, 0, 1, a);
  p.offset[0] += 9;
  uniform(p, 0, 1, b);
  EXPECT_EQ(get(a, {9}), get(b, {0}));
}

// The largest distance between the drawn values' distribution and the given one.
double distance(Array& a, const std::function<double(double)>& distribution) {
  std::vector<double> v;
  each(a.shape, [&](const Dims& i) { v.push_back(get(a, i)); });
  std::sort(v.begin(), v.end());
  double worst = 0;
  for (size_t i = 0; i < v.size(); ++i)
    worst = std::max(worst, std::abs((double(i) + 0.5) / double(v.size()) - distribution(v[i])));
  return worst;
}

TEST(Random, DistributionsAreRight) {
  constexpr int64_t n = 200000;
  // With probability 0.999 the distance stays below 1.95 / sqrt(n); the draws are fixed, so this cannot fail by chance.
  const double limit = 1.95 / std::sqrt(double(n));
  const RandomPart part = RandomPart::whole(3, 1, {n});
  auto cdf = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  for (DType dtype : {float32, float64}) {
    Array a = make({n}, dtype);
    uniform(part, -1, 3, a);
    EXPECT_LT(distance(a, [](double x) { return (x + 1) / 4; }), limit);
    normal(part, 2, 0.5, a);
    EXPECT_LT(distance(a, [&](double x) { return cdf((x - 2) / 0.5); }), limit);
    truncated_normal(part, 1, 2, 0, 2, a);
    EXPECT_LT(distance(a, [&](double x) { return (cdf((x - 1) / 2) - cdf(-0.5)) / (cdf(0.5) - cdf(-0.5)); }), limit);
    truncated_normal(part, 0, 1, 4, 6, a);
    EXPECT_LT(distance(a, [&](double x) { return (cdf(-4) - cdf(-x)) / (cdf(-4) - cdf(-6)); }), limit);
    each(a.shape, [&](const Dims& i) { ASSERT_TRUE(get(a, i) >= 4 && get(a, i) <= 6); });
  }
  Array b = make({n}, boolean);
  for (double p : {0.0, 0.25, 1.0}) {
    bernoulli(part, p, b);
    double ones = 0;
    for (int64_t i = 0; i < n; ++i) ones += get(b, {i});
    EXPECT_NEAR(ones / n, p, p == 0.25 ? 0.004 : 0);
  }
  Array k = make({n}, int64);
  randint(part, -5, 5, k);
  int64_t counts[10] = {};
  for (int64_t i = 0; i < n; ++i) ++counts[k.data<int64_t>()[i] + 5];
  for (int64_t c : counts) EXPECT_NEAR(double(c), n / 10.0, 600);
}

TEST(Random, NormalQuantilesArePrecise) {
  // The map from bits to the normal distribution against the C library's error function.
  on_every_isa([] {
    Noise noise;
    uint32_t bits[512];
    for (uint32_t& b : bits) b = static_cast<uint32_t>(noise.next(0, 0x1p32));
    bits[0] = 0, bits[1] = 0x7fffffffu, bits[2] = 0x80000000u, bits[3] = 0xffffffffu, bits[4] = 1000,
    bits[5] = 0x7ffffff0u;
    float z[512];
    RandomNumbers p;
    p.b = 1;
    table().normal[0](bits, nullptr, z, 512, p);
    for (int i = 0; i < 512; ++i) {
      const double tail = ((bits[i] & 0x7fffffffu) + 0.5) * 0x1p-32;
      const double want = tail;
      const double got = 0.5 * std::erfc(std::abs(double(z[i])) / std::sqrt(2.0));
      EXPECT_NEAR(got / want, 1, 2e-5) << bits[i];
      EXPECT_EQ(std::signbit(z[i]), bits[i] >> 31 != 0) << bits[i];
    }
    uint64_t wide[512];
    for (uint64_t& b : wide) b = static_cast<uint64_t>(noise.next(0, 0x1p53)) * 2047;
    wide[0] = 0, wide[1] = 0x000fffffffffffffull, wide[2] = 12345;
    double y[512];
    table().normal[1](wide, nullptr, y, 512, p);
    for (int i = 0; i < 512; ++i) {
      const double tail = (double(wide[i] & 0x000fffffffffffffull) + 0.5) * 0x1p-53;
      EXPECT_NEAR(0.5 * std::erfc(std::abs(y[i]) / std::sqrt(2.0)) / tail, 1, 1e-10) << wide[i];
    }
  });
}

TEST(Dropout, SameMaskForTheGradient) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : kFloats) {
      const Dims shape{20, 33};
      Array x = random(shape, dtype, Layout::kContiguous, noise, 1, 2), y = make(shape, dtype),
            dy = random(shape, dtype, Layout::kTransposed, noise, 1, 2), dx = make(shape, dtype);
      RandomPart part = RandomPart::whole(9, 9, shape);
      dropout(part, x, 0.5, y);
      dropout(part, dy, 0.5, dx);
      int kept = 0;
      each(shape, [&](const Dims& i) {
        EXPECT_EQ(get(y, i) != 0, get(dx, i) != 0);
        if (get(y, i) == 0) return;
        ++kept;
        EXPECT_EQ(get(y, i), 2 * get(x, i));
        EXPECT_EQ(get(dx, i), 2 * get(dy, i));
      });
      EXPECT_NEAR(kept, 330, 50);
      dropout(part, x, 0, y);
      each(shape, [&](const Dims& i) { EXPECT_EQ(get(y, i), get(x, i)); });
      dropout(part, x, 1, x);
      each(shape, [&](const Dims& i) { EXPECT_EQ(get(x, i), 0); });
    }
  });
}

TEST(Randperm, IsAPermutationAndItsPartsFit) {
  for (int64_t n : {1, 2, 31, 1000}) {
    Array all = make({n}, int64), part = make({n - n / 2}, int32);
    randperm(RandomPart::whole(4, 2, {n}), all);
    std::set<int64_t> seen(all.data<int64_t>(), all.data<int64_t>() + n);
    EXPECT_EQ(int64_t(seen.size()), n);
    EXPECT_EQ(*seen.rbegin(), n - 1);
    RandomPart p = RandomPart::whole(4, 2, {n});
    p.offset[0] = n / 2;
    randperm(p, part);
    for (int64_t i = 0; i < n - n / 2; ++i) EXPECT_EQ(get(part, {i}), get(all, {i + n / 2}));
    EXPECT_EQ(std::is_sorted(all.data<int64_t>(), all.data<int64_t>() + n), n < 3 && get(all, {0}) == 0);
  }
}

TEST(Random, EmptyAndWrongArguments) {
  Array none = make({0, 3}, float32), a = make({2}, float32), k = make({2}, int64);
  RandomPart empty = RandomPart::whole(0, 0, {0, 3}), two = RandomPart::whole(0, 0, {2});
  uniform(empty, 0, 1, none);
  Array zero = make({}, float32);
  normal(RandomPart::whole(0, 0, {}), 0, 1, zero);
  EXPECT_TRUE(std::isfinite(get(zero, {})));
  message_of(ErrorKind::kValue, [&] { uniform(two, 1, 0, a); });
  message_of(ErrorKind::kValue, [&] { randint(two, 3, 3, k); });
  message_of(ErrorKind::kValue, [&] { bernoulli(two, 1.5, a); });
  message_of(ErrorKind::kValue, [&] { dropout(two, a, -0.1, a); });
  message_of(ErrorKind::kValue, [&] { truncated_normal(two, 0, 1, 2, 2, a); });
  message_of(ErrorKind::kType, [&] { normal(two, 0, 1, k); });
  RandomPart outside = RandomPart::whole(0, 0, {2});
  outside.offset[0] = 1;
  message_of(ErrorKind::kInternal, [&] { normal(outside, 0, 1, a); });
}

}  // namespace
}  // namespace holon::kernels::testing
