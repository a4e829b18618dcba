// What hands expect of C++: operators, indexing, numbers of every type, streams, and what does not compile.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <sstream>
#include <utility>

#include "holon/base/error.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops.h"
#include "holon/ops/indexing.h"
#include "holon/ops/operators.h"
#include "holon/ops/values.h"
#include "holon/optim/update.h"

namespace holon {
namespace {

template <class T>
std::string text(const T& value) {
  std::ostringstream s;
  s << value;
  return s.str();
}

std::vector<float> values(const Tensor& t) { return to_vector<float>(t); }

TEST(Operators, IndexAsInPython) {
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}});
  const auto ints = [](const Tensor& t) { return to_vector<int64_t>(t); };
  EXPECT_EQ(ints(x[1]), (std::vector<int64_t>{4, 5, 6}));
  EXPECT_EQ(ints(x[-2]), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(x[0][2].item<int>(), 3);
  EXPECT_EQ(x[size_t{1}].shape(), Dims{3});
  EXPECT_EQ((ints(x[{0, Slice(1, 3)}])), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ((ints(x[{Slice(), 1}])), (std::vector<int64_t>{2, 5}));
  EXPECT_EQ((ints(x[{Ellipsis, Slice(None, None, 2)}])), (std::vector<int64_t>{1, 3, 4, 6}));
  EXPECT_EQ((x[{None, Ellipsis}].shape()), (Dims{1, 2, 3}));
  EXPECT_EQ(x[None].shape(), (Dims{1, 2, 3}));
  EXPECT_EQ(ints(x[Slice(1, 2)]), (std::vector<int64_t>{4, 5, 6}));
  EXPECT_EQ(ints(x[x > 4]), (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(ints(x[tensor({1, 0, 1})]), (std::vector<int64_t>{4, 5, 6, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(ints(x[{0}]), ints(x[0]));
  EXPECT_THROW(x[2], Error);
  EXPECT_THROW(x[0][0][0], Error);

  const Tensor y = ones({2, 3});
  index_put_(y, {0, Slice(1, 3)}, 7);
  index_put_(y, {1}, tensor({0.5, 1.5, 2.5}), true);
  EXPECT_EQ(values(y), (std::vector<float>{1, 7, 7, 1.5, 2.5, 3.5}));
}

TEST(Operators, CompareElementByElement) {
  const Tensor x = tensor({1.0, 2.0, 3.0}), y = tensor({3.0, 2.0, 1.0});
  const auto truth = [](const Tensor& t) {
    EXPECT_EQ(t.dtype(), boolean);
    const auto v = to_vector<int64_t>(t);
    return v[0] * 100 + v[1] * 10 + v[2];
  };
  EXPECT_EQ(truth(x < y), 100);
  EXPECT_EQ(truth(x <= y), 110);
  EXPECT_EQ(truth(x > y), 1);
  EXPECT_EQ(truth(x >= y), 11);
  EXPECT_EQ(truth(x == y), 10);
  EXPECT_EQ(truth(x != y), 101);
  EXPECT_EQ(truth(x < 2), 100);
  EXPECT_EQ(truth(x <= 2), 110);
  EXPECT_EQ(truth(x > 2), 1);
  EXPECT_EQ(truth(x >= 2), 11);
  EXPECT_EQ(truth(x == 2), 10);
  EXPECT_EQ(truth(x != 2), 101);
  EXPECT_EQ(truth(2 < x), 1);
  EXPECT_EQ(truth(2 <= x), 11);
  EXPECT_EQ(truth(2 > x), 100);
  EXPECT_EQ(truth(2 >= x), 110);
  EXPECT_EQ(truth(2 == x), 10);
  EXPECT_EQ(truth(2 != x), 101);
  const Tensor alias = x;
  EXPECT_TRUE(alias.is_same(x));
  EXPECT_FALSE(y.is_same(x));
}

TEST(Operators, InPlaceChangesTheTensorOfAllHandles) {
  Tensor x = tensor({1.0, 2.0});
  const Tensor alias = x;
  x += 1;
  x *= tensor({2.0, 3.0});
  x -= 0.5;
  x /= 2;
  EXPECT_EQ(values(alias), (std::vector<float>{1.75, 4.25}));
  x += x;
  EXPECT_EQ(values(alias), (std::vector<float>{3.5, 8.5}));
  x -= alias;
  EXPECT_EQ(values(x), (std::vector<float>{0, 0}));
  Tensor w = ones({2}).set_requires_grad();
  EXPECT_THROW(w += 1, Error);  // a leaf that requires grad
  {
    NoGradGuard no_grad;
    w += 1;
  }
  Tensor y = w * 2;
  y += 1;
  y *= w;
  y.sum().backward();  // of 2 w^2 + w
  EXPECT_EQ(values(w.grad()), (std::vector<float>{9, 9}));
  Tensor none;
  EXPECT_THROW(none += 1, Error);
  EXPECT_THROW(x += ones({3}), Error);
}

template <class T>
void check_number(T n) {
  const Tensor x = tensor({10.0, 20.0});
  const auto f = static_cast<float>(n);
  EXPECT_EQ(values(x + n), (std::vector<float>{10 + f, 20 + f}));
  EXPECT_EQ(values(n * x), (std::vector<float>{10 * f, 20 * f}));
  EXPECT_EQ(values(x - n), (std::vector<float>{10 - f, 20 - f}));
  EXPECT_EQ(values(n / x), (std::vector<float>{f / 10, f / 20}));
  EXPECT_EQ(Scalar(n).template to<T>(), n);
  EXPECT_EQ(full({}, n).template item<T>(), n);
}

TEST(Operators, NumbersOfEveryType) {
  check_number<signed char>(3);
  check_number<unsigned char>(3);
  check_number<short>(3);
  check_number<unsigned short>(3);
  check_number<int>(3);
  check_number<unsigned>(3);
  check_number<long>(3);
  check_number<unsigned long>(3);
  check_number<long long>(3);
  check_number<unsigned long long>(3);
  check_number<float>(3);
  check_number<double>(3);
  EXPECT_EQ((ones({2}, {.dtype = int64}) + size_t{1}).dtype(), int64);
  EXPECT_EQ((ones({2}, {.dtype = int64}) + 1.0f).dtype(), float32);
  EXPECT_THROW(Scalar{std::numeric_limits<uint64_t>::max()}, Error);
  EXPECT_EQ(Scalar(INT64_MIN).to<int64_t>(), INT64_MIN);
}

// Neither pointers nor characters are numbers.
template <class T>
concept Adds = requires(const Tensor& x, T n) {
  x + n;
};
static_assert(Adds<int> && Adds<size_t> && Adds<bool> && Adds<float> && Adds<Tensor>);
static_assert(!Adds<const char*> && !Adds<char> && !Adds<std::nullptr_t> && !Adds<Tensor*> && !Adds<std::string>);

// The memory of a temporary tensor is gone with it, and what is const stays as it is.
template <class T>
concept HasData = requires(T x) {
  std::forward<T>(x).template data<float>();
};
static_assert(HasData<Tensor&> && HasData<const Tensor&> && !HasData<Tensor> && !HasData<const Tensor>);
static_assert(std::same_as<decltype(std::declval<const Tensor&>().data<float>()), std::span<const float>>);
static_assert(std::same_as<decltype(std::declval<Tensor&>().data<float>()), std::span<float>>);

// x[0] = y would change a handle that nobody keeps.
static_assert(std::is_assignable_v<Tensor&, Tensor> && !std::is_assignable_v<Tensor, Tensor>);

template <class Norm>
concept Clips = requires(std::vector<Tensor> p, Norm norm) {
  optim::clip_grad_norm(p, 1.0, norm);
};
static_assert(Clips<int> && Clips<double> && Clips<float> && !Clips<bool>);

TEST(Operators, ItemsAsNumbersThatHoldThem) {
  EXPECT_EQ(tensor(2.75).item<float>(), 2.75f);
  EXPECT_EQ(tensor(2.75).item<int>(), 2);
  EXPECT_EQ(tensor(-2.75).item<int>(), -2);
  EXPECT_EQ(tensor(300).item<int16_t>(), 300);
  EXPECT_TRUE(tensor(0.5).item<bool>());
  EXPECT_EQ(tensor(true).item<double>(), 1);
  EXPECT_THROW(tensor(300).item<uint8_t>(), Error);
  EXPECT_THROW(tensor(-1).item<uint64_t>(), Error);
  EXPECT_THROW(tensor(1e30).item<int64_t>(), Error);
  EXPECT_THROW(tensor(NAN).item<int>(), Error);
  EXPECT_THROW(tensor({1, 2}).item<int>(), Error);
  comm::run_ranks(2, [](int rank) {
    const Tensor x = full({4}, rank + 1).to_global(Placement::all("cpu"), sbp::split(0));
    EXPECT_EQ(x.sum().item<int>(), 12);
  });
}

TEST(Operators, AxesAsNumbersAndLists) {
  const Tensor x = ones({2, 3, 4});
  EXPECT_EQ(sum(x).shape(), Dims());
  EXPECT_EQ(sum(x, 1).shape(), (Dims{2, 4}));
  EXPECT_EQ(sum(x, -1, true).shape(), (Dims{2, 3, 1}));
  EXPECT_EQ(sum(x, {1}).shape(), (Dims{2, 4}));
  EXPECT_EQ(sum(x, {0, 2}).shape(), Dims{3});
  EXPECT_EQ(sum(x, {}).shape(), Dims());
  EXPECT_EQ(sum(x, x.ndim() - 1).shape(), (Dims{2, 3}));
  const std::vector<int64_t> axes{0, 1};
  EXPECT_EQ(mean(x, axes).shape(), Dims{4});
  const Tensor image = ones({1, 1, 8, 8});
  EXPECT_EQ(max_pool2d(image, 2).shape(), (Dims{1, 1, 4, 4}));
  EXPECT_EQ(max_pool2d(image, {2}).shape(), (Dims{1, 1, 4, 4}));
  EXPECT_EQ(max_pool2d(image, {2, 4}, 2).shape(), (Dims{1, 1, 4, 3}));
  EXPECT_EQ(avg_pool2d(image, 3, 1, 1).shape(), (Dims{1, 1, 8, 8}));
  EXPECT_EQ(conv2d(image, ones({2, 1, 3, 3}), {}, 2, 1).shape(), (Dims{1, 2, 4, 4}));
  EXPECT_THROW(max_pool2d(image, {2, 2, 2}), Error);
}

TEST(Operators, ListsOfTensors) {
  const Tensor x = ones({2}), y = zeros({1});
  const std::vector<Tensor> vector{x, y};
  const TensorVec small{x, y};
  const Tensor array[] = {x, y};
  for (const Tensor& joined : {cat({x, y}), cat(vector), cat(small), cat(array)})
    EXPECT_EQ(values(joined), (std::vector<float>{1, 1, 0}));
  EXPECT_THROW(cat({}), Error);
}

TEST(Operators, OpsTakeNumbers) {
  const Tensor x = tensor({-1.0, 4.0});
  EXPECT_EQ(values(maximum(x, 0)), (std::vector<float>{0, 4}));
  EXPECT_EQ(values(pow(x, 2)), (std::vector<float>{1, 16}));
  EXPECT_EQ(values(sub(x, 1, {.reverse = true})), (std::vector<float>{2, -3}));
  EXPECT_EQ(to_vector<int64_t>(ge(x, 4)), (std::vector<int64_t>{0, 1}));
}

TEST(Operators, EverythingGoesIntoStreams) {
  EXPECT_EQ(text(tensor({1.0, 2.5})), "tensor([1.0000, 2.5000], dtype=holon.float32)");
  EXPECT_EQ(text(Tensor()), "tensor(undefined)");
  EXPECT_EQ(text(ones({2, 3}).shape()), "[2, 3]");
  EXPECT_EQ(text(bfloat16), "bfloat16");
  EXPECT_EQ(text(Device()), "cpu");
  EXPECT_EQ(text(sbp::split(1)), "S(1)");
  EXPECT_EQ(text(NdSbp{sbp::split(0), sbp::broadcast()}), "(S(0), B)");
  EXPECT_EQ(text(Placement::all("cpu")), "placement(type=\"cpu\", ranks=[0])");
  EXPECT_EQ(text(Scalar(3)), "3");
}

}  // namespace
}  // namespace holon
