#include "holon/kernels/index.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/build_choice.h"
#include "holon/kernels/cpu/sort_loops.h"
#include "holon/kernels/elementwise.h"
#include "tests/cpp/kernels/util.h"

namespace holon::kernels::testing {
namespace {

TEST(Embedding, LooksUpLocalRowsAndAddsGradients) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : {float32, float64, bfloat16, float16})
      for (DType index : {int32, int64})
        for (Layout layout : {Layout::kContiguous, Layout::kTransposed, Layout::kSliced})
          for (int64_t offset : {0, 4}) {
            Array w = random({6, 40}, dtype, layout, noise, -1, 1);
            Array i = of({4, 0, 9, 4, 5, 3}, index, {2, 3}), y = make({2, 3, 40}, dtype, layout);
            embedding(w, i, offset, 10, y);
            each(y.shape, [&](const Dims& at) {
              int64_t r = static_cast<int64_t>(get(i, {at[0], at[1]})) - offset;
              ASSERT_EQ(get(y, at), r >= 0 && r < 6 ? get(w, {r, at[2]}) : 0);
            });
            Array dy = random({2, 3, 40}, dtype, layout, noise, -1, 1), dw = make({6, 40}, dtype, layout);
            fill(dw, 7);
            embedding_backward(dy, i, offset, 10, dw);
            std::map<int64_t, std::vector<double>> want;
            each({2, 3}, [&](const Dims& at) {
              auto& row = want[static_cast<int64_t>(get(i, at)) - offset];
              row.resize(40);
              for (int64_t j = 0; j < 40; ++j) row[size_t(j)] += get(dy, {at[0], at[1], j});
            });
            for (int64_t r = 0; r < 6; ++r)
              for (int64_t j = 0; j < 40; ++j)
                expect_near(get(dw, {r, j}), want.count(r) ? want[r][size_t(j)] : 0, 2 * epsilon(dtype),
                            2 * epsilon(dtype), "dweight");
          }
  });
}

TEST(Embedding, IndicesOutOfRangeAreNamed) {
  Array w = make({4, 2}, float32), y = make({3, 2}, float32), i = of({0, 1, 4}, int64);
  fill(w, 1);
  std::string message = message_of(ErrorKind::kIndex, [&] { embedding(w, i, 0, 4, y); });
  EXPECT_NE(message.find("index 4 at position 2 of indices [3] is outside [0, 4)"), std::string::npos) << message;
  Array negative = of({0, -1, 1}, int32);
  message_of(ErrorKind::kIndex, [&] { embedding_backward(y, negative, 0, 4, w); });
  Array wrong = of({0, 1, 1}, float32);
  message_of(ErrorKind::kType, [&] { embedding(w, wrong, 0, 4, y); });
}

TEST(IndexSelect, EveryAxisTypeAndLayout) {
  Noise noise;
  for (DType dtype : kAllTypes)
    for (Layout layout : kAllLayouts)
      for (int axis : {0, 1, 2}) {
        Array x = random({5, 6, 7}, dtype, layout, noise, 0, 99), i = of({4, 0, 3, 4}, int64);
        Dims shape = x.shape;
        shape[axis] = 4;
        Array out = make(shape, dtype);
        index_select(x, axis, i, out);
        each(shape, [&](Dims at) {
          double got = get(out, at);
          at[axis] = static_cast<int64_t>(get(i, {at[axis]}));
          ASSERT_EQ(got, get(x, at));
        });
      }
  Array x = make({3}, float32), out = make({1}, float32), bad = of({3}, int64);
  message_of(ErrorKind::kIndex, [&] { index_select(x, 0, bad, out); });
  Array negative = of({-1}, int64), part = of({5, 6}, float32), three = make({3}, float32),
        places = of({3, 2, 4}, int64);
  message_of(ErrorKind::kIndex, [&] { index_select(x, 0, negative, out); });
  index_select(part, 0, places, three, {2, 5});  // elements 2 and 3 of 5
  for (int i = 0; i < 3; ++i) EXPECT_EQ(get(three, {i}), (std::vector<double>{6, 5, 0})[static_cast<size_t>(i)]);
  Array sum = of({1, 1, 1}, float32), add = of({10, 20, 30, 40}, float32), where = of({0, 2, 2, 0}, int32);
  index_add(sum, 0, where, add);
  EXPECT_EQ(get(sum, {0}), 51);
  EXPECT_EQ(get(sum, {2}), 51);
}

TEST(GatherScatter, EveryAxisTypeAndLayout) {
  Noise noise;
  for (DType dtype : kAllTypes)
    for (Layout layout : {Layout::kContiguous, Layout::kTransposed, Layout::kSliced})
      for (int axis : {0, 1}) {
        Array x = random({5, 6}, dtype, layout, noise, 0, 9);
        Dims shape{5, 6};
        shape[axis] = 3;
        Array i = random(shape, int64, layout, noise, 0, 5), out = make(shape, dtype);
        gather(x, axis, i, out);
        auto point = [&](Dims at) {
          at[axis] = static_cast<int64_t>(get(i, at));
          return at;
        };
        each(shape, [&](const Dims& at) { ASSERT_EQ(get(out, at), get(x, point(at))); });
        for (ScatterOp op : {ScatterOp::kSet, ScatterOp::kAdd, ScatterOp::kMultiply}) {
          Array y = make(x.shape, dtype), want = make(x.shape, float64);
          copy(x, y);
          copy(x, want);
          Array src = random(shape, dtype, layout, noise, 0, 3);
          scatter(op, y, axis, i, src);
          each(shape, [&](const Dims& at) {
            double before = get(want, point(at)), v = get(src, at);
            double after = op == ScatterOp::kSet ? v : op == ScatterOp::kAdd ? before + v : before * v;
            if (dtype == boolean) after = after != 0;
            if (dtype == uint8) after = static_cast<uint8_t>(static_cast<int64_t>(after));
            if (dtype == int8) after = static_cast<int8_t>(static_cast<int64_t>(after));
            put(want, point(at), after);
          });
          each(x.shape, [&](const Dims& at) {
            ASSERT_NEAR(get(y, at), get(want, at), 8 * epsilon(dtype) * (1 + std::abs(get(want, at)))) << name(dtype);
          });
        }
      }
  Array x = make({4}, float32), i = of({0, 4}, int32), out = make({2}, float32);
  fill(x, 0);
  EXPECT_NE(message_of(ErrorKind::kIndex, [&] { gather(x, 0, i, out); }).find("index 4 at position 1"),
            std::string::npos);
  // The first bad index is named, whichever block of rows it is in.
  Array many = make({300, 8}, int64), table_of = make({300, 5}, float32), found = make({300, 8}, float32);
  fill(many, 4);
  fill(table_of, 1);
  put(many, {299, 7}, -1);
  put(many, {200, 3}, 5);
  EXPECT_NE(message_of(ErrorKind::kIndex, [&] { gather(table_of, 1, many, found); }).find("index 5 at position 1603"),
            std::string::npos);
  EXPECT_NE(message_of(ErrorKind::kIndex, [&] { scatter(ScatterOp::kAdd, table_of, 1, many, found); })
                .find("index 5 at position 1603"),
            std::string::npos);
  // Elements 2 and 3 of an axis of 5.
  Array part = of({5, 6}, float32), of_whole = of({3, 4, 2, 0}, int64), four = make({4}, float32);
  gather(part, 0, of_whole, four, {2, 5});
  for (int j = 0; j < 4; ++j) EXPECT_EQ(get(four, {j}), (std::vector<double>{6, 0, 5, 0})[static_cast<size_t>(j)]);
  scatter(ScatterOp::kAdd, part, 0, of_whole, of({1, 2, 3, 4}, float32), {2, 5});
  EXPECT_EQ(get(part, {0}), 8);
  EXPECT_EQ(get(part, {1}), 7);
  Array ok = of({1, 3}, int64);
  scatter_scalar(ScatterOp::kAdd, x, 0, ok, 2.5);
  EXPECT_EQ(get(x, {3}), 2.5);
  EXPECT_EQ(get(x, {2}), 0);
  message_of(ErrorKind::kIndex, [&] { scatter_scalar(ScatterOp::kSet, x, 0, i, 1); });
}

TEST(Mask, FillSelectAndNonzero) {
  Noise noise;
  for (DType dtype : kAllTypes)
    for (Layout layout : kAllLayouts) {
      Array x = random({6, 9}, dtype, layout, noise, 0, 3), m = random({6, 9}, boolean, layout, noise, 0, 2),
            out = make({6, 9}, dtype);
      masked_fill(x, m, 1, out);
      std::vector<double> chosen;
      std::vector<Dims> where;
      each(x.shape, [&](const Dims& i) {
        ASSERT_EQ(get(out, i), get(m, i) != 0 ? 1 : get(x, i));
        if (get(m, i) != 0) chosen.push_back(get(x, i));
        if (get(x, i) != 0) where.push_back(i);
      });
      ASSERT_EQ(count_nonzero(m), int64_t(chosen.size()));
      Array picked = make({int64_t(chosen.size())}, dtype);
      masked_select(x, m, picked);
      for (size_t k = 0; k < chosen.size(); ++k) ASSERT_EQ(get(picked, {int64_t(k)}), chosen[k]);
      ASSERT_EQ(count_nonzero(x), int64_t(where.size()));
      Array at = make({int64_t(where.size()), 2}, int64, Layout::kTransposed);
      nonzero(x, at);
      for (size_t k = 0; k < where.size(); ++k)
        for (int a = 0; a < 2; ++a) ASSERT_EQ(get(at, {int64_t(k), a}), double(where[k][a]));
      Array small = make({0}, dtype);
      if (!chosen.empty()) message_of(ErrorKind::kInternal, [&] { masked_select(x, m, small); });
    }
}

TEST(OneHot, WholeAndPart) {
  Array i = of({0, 3, 2, 3}, int64, {2, 2}), all = make({2, 2, 4}, float32), part = make({2, 2, 2}, int64);
  one_hot(i, 4, 0, all);
  one_hot(i, 4, 2, part);
  each(all.shape, [&](const Dims& at) { EXPECT_EQ(get(all, at), get(i, {at[0], at[1]}) == double(at[2])); });
  each(part.shape, [&](const Dims& at) { EXPECT_EQ(get(part, at), get(i, {at[0], at[1]}) == double(at[2] + 2)); });
  message_of(ErrorKind::kIndex, [&] { one_hot(i, 3, 0, all); });
}

TEST(Triangle, PartsAreSlicesOfTheWhole) {
  Noise noise;
  for (DType dtype : kAllTypes)
    for (Layout layout : {Layout::kContiguous, Layout::kTransposed, Layout::kSliced})
      for (int64_t diagonal : {-9, -2, 0, 1, 9})
        for (auto [row, col] : {std::pair<int64_t, int64_t>{0, 0}, {3, 0}, {0, 5}, {4, 2}}) {
          Array x = random({2, 5, 7}, dtype, layout, noise, 1, 9), low = make(x.shape, dtype),
                high = make(x.shape, dtype);
          tril(x, diagonal, row, col, low);
          triu(x, diagonal, row, col, high);
          each(x.shape, [&](const Dims& i) {
            int64_t d = (i[2] + col) - (i[1] + row);
            ASSERT_EQ(get(low, i), d <= diagonal ? get(x, i) : 0);
            ASSERT_EQ(get(high, i), d >= diagonal ? get(x, i) : 0);
          });
          tril(x, diagonal, row, col, x);
          each(x.shape, [&](const Dims& i) { ASSERT_EQ(get(x, i), get(low, i)); });
        }
}

TEST(Ranges, ArangeLinspaceEye) {
  for (DType dtype : {uint8, int32, int64, float32, float64, bfloat16}) {
    Array out = make({40}, dtype);
    arange(2, 3, 5, out);
    for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(get(out, {i}), double(2 + (5 + i) * 3));
  }
  Array long_out = make({1000}, float32);
  arange(0.5, 0.25, 7, long_out);
  for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(get(long_out, {i}), 0.5 + 0.25 * double(7 + i));
  Array exact = make({2}, int64);
  arange(int64_t{1} << 60, 1, 1, exact);
  EXPECT_EQ(exact.data<int64_t>()[1], (int64_t{1} << 60) + 2);
  Array whole = make({11}, float32), part = make({4}, float32), one = make({1}, float32);
  linspace(-1, 1, 11, 0, whole);
  linspace(-1, 1, 11, 7, part);
  EXPECT_EQ(get(whole, {0}), -1);
  EXPECT_EQ(get(whole, {10}), 1);
  for (int64_t i = 0; i < 11; ++i) EXPECT_NEAR(get(whole, {i}), -1 + 0.2 * double(i), 1e-7);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(get(part, {i}), get(whole, {7 + i}));
  linspace(3, 9, 1, 0, one);
  EXPECT_EQ(get(one, {0}), 3);
  for (DType dtype : kAllTypes) {
    Array e = make({3, 5}, dtype, Layout::kTransposed);
    eye(4, 2, e);
    each(e.shape, [&](const Dims& i) { EXPECT_EQ(get(e, i), i[0] + 4 == i[1] + 2); });
  }
}

TEST(Sort, StableInEveryTypeAndLayout) {
  Noise noise;
  for (DType dtype : kAllTypes)
    for (Layout layout : kAllLayouts)
      for (bool descending : {false, true}) {
        Array x = random({3, 50}, dtype, layout, noise, 0, 9), v = make({3, 50}, dtype),
              i = make({3, 50}, int64, Layout::kTransposed);
        sort(x, descending, &v, i);
        Array tv = make({3, 7}, dtype), ti = make({3, 7}, int64);
        topk(x, 7, descending, tv, ti);
        for (int64_t r = 0; r < 3; ++r) {
          std::vector<int64_t> want(50);
          for (int64_t j = 0; j < 50; ++j) want[size_t(j)] = j;
          std::stable_sort(want.begin(), want.end(), [&](int64_t a, int64_t b) {
            return descending ? get(x, {r, a}) > get(x, {r, b}) : get(x, {r, a}) < get(x, {r, b});
          });
          for (int64_t j = 0; j < 50; ++j) {
            ASSERT_EQ(get(i, {r, j}), double(want[size_t(j)]));
            ASSERT_EQ(get(v, {r, j}), get(x, {r, want[size_t(j)]}));
            if (j >= 7) continue;
            ASSERT_EQ(get(ti, {r, j}), double(want[size_t(j)]));
            ASSERT_EQ(get(tv, {r, j}), get(x, {r, want[size_t(j)]}));
          }
        }
      }
  Array x = of({1, NAN, 3, -INFINITY}, float32), v = make({4}, float32), i = make({4}, int64);
  sort(x, false, &v, i);
  EXPECT_EQ(get(i, {3}), 1);
  EXPECT_EQ(get(i, {0}), 3);
  sort(x, true, nullptr, i);
  EXPECT_EQ(get(i, {0}), 1);
  message_of(ErrorKind::kValue, [&] { topk(x, 5, true, v, i); });
  Array zero = make({}, int32), zv = make({}, int32), zi = make({}, int64);
  put(zero, {}, 8);
  sort(zero, false, &zv, zi);
  EXPECT_EQ(get(zv, {}), 8);
  EXPECT_EQ(get(zi, {}), 0);
  Array none = make({0, 3}, float32), ni = make({0, 3}, int64);
  sort(none, false, nullptr, ni);
}

// Lengths on both sides of where the way of sorting changes, with NaNs, zeros of both signs and many ties.
TEST(Sort, EveryLength) {
  Noise noise;
  for (DType dtype : {float32, float64, int32, int64, bfloat16})
    for (int64_t n : {1, 2, 15, 16, 17, 95, 96, 97, 128, 129, 191, 192, 193, 300, 1000})
      for (bool descending : {false, true}) {
        Array x = random({2, n}, dtype, Layout::kContiguous, noise, -n, n), v = make({2, n}, dtype),
              i = make({2, n}, int64);
        if (is_floating(dtype) && n > 2)
          for (int64_t j : {int64_t{0}, n / 2, n - 1}) {
            put(x, {0, j}, NAN);
            put(x, {1, j}, j == 0 ? 0.0 : -0.0);
          }
        sort(x, descending, &v, i);
        std::vector<std::vector<int64_t>> orders;
        for (int64_t r = 0; r < 2; ++r) {
          std::vector<int64_t> want(static_cast<size_t>(n));
          std::iota(want.begin(), want.end(), int64_t{0});
          auto less = [](double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; };
          std::stable_sort(want.begin(), want.end(), [&](int64_t a, int64_t b) {
            return descending ? less(get(x, {r, b}), get(x, {r, a})) : less(get(x, {r, a}), get(x, {r, b}));
          });
          for (int64_t j = 0; j < n; ++j) {
            ASSERT_EQ(get(i, {r, j}), double(want[size_t(j)])) << name(dtype) << " " << n;
            expect_near(get(v, {r, j}), get(x, {r, want[size_t(j)]}), 0, 0, "value");
          }
          orders.push_back(want);
        }
        for (int64_t k : {int64_t{0}, int64_t{1}, n / 9, n / 2, n}) {
          Array tv = make({2, k}, dtype), ti = make({2, k}, int64);
          topk(x, k, descending, tv, ti);
          each({2, k}, [&](const Dims& at) {
            ASSERT_EQ(get(ti, at), double(orders[size_t(at[0])][size_t(at[1])])) << name(dtype) << " " << n << " " << k;
          });
        }
      }
}

TEST(Sort, EveryBuildOrdersAlike) {
  std::vector<SortLoops> builds = {base::sort_loops()};
#ifdef HOLON_HAVE_X86_LEVELS
  if (instruction_level() >= 1) builds.push_back(avx2::sort_loops());
  if (instruction_level() >= 2) builds.push_back(avx512::sort_loops());
#endif
  Noise noise;
  for (const SortLoops& loops : builds)
    for (int64_t n = 1; n < 70; ++n) {
      std::vector<int32_t> keys(static_cast<size_t>(n + kSortPadding), INT32_MIN);
      for (int64_t i = 0; i < n; ++i) keys[size_t(i)] = static_cast<int32_t>(noise.next(-9, 9));
      if (n > 3) keys[3] = INT32_MAX;
      std::vector<int64_t> want(static_cast<size_t>(n)), got(want);
      std::iota(want.begin(), want.end(), int64_t{0});
      std::stable_sort(want.begin(), want.end(),
                       [&](int64_t a, int64_t b) { return keys[size_t(a)] < keys[size_t(b)]; });
      loops.order_by_counting(keys.data(), n, got.data());
      ASSERT_EQ(got, want);
      for (int64_t k = 0; k <= std::min(n, kListed); ++k) {
        std::vector<int64_t> listed(static_cast<size_t>(k));
        loops.list_smallest(keys.data(), n, k, listed.data());
        ASSERT_TRUE(std::equal(listed.begin(), listed.end(), want.begin())) << n << " " << k;
      }
    }
}

}  // namespace
}  // namespace holon::kernels::testing
