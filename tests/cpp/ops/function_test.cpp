// apply_function() and call() from C++.
#include <memory>

#include <gtest/gtest.h>

#include "cases.h"
#include "holon/autograd/function.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::testing {
namespace {

// The sums of the squares of rows, on parts.
std::vector<Tensor> row_squares(const Tensor& x) {
  auto saved = std::make_shared<Tensor>();
  autograd::FunctionCall f;
  f.name = "row_squares";
  f.rule = "n k -> n";
  f.forward = [saved](TensorList in) {
    *saved = in[0];
    return std::vector<Tensor>{sum(square(in[0]), Dims{1})};
  };
  f.backward = [saved](TensorList dy) { return std::vector<Tensor>{mul(mul(*saved, 2.0), unsqueeze(dy[0], 1))}; };
  return autograd::apply_function(std::move(f), {x});
}

TEST(Function, RunsOnPartsByItsRule) {
  std::vector<double> values;
  for (int i = 0; i < 15; ++i) values.push_back(i - 7);
  for (Sbp sbp : {sbp::broadcast(), sbp::split(0), sbp::split(1), sbp::partial_sum()}) {
    comm::run_ranks(2, [&](int rank) {
      Placement placement("cpu", {0, 1});
      Tensor x = Tensor::global(part_of(values, {5, 3}, float64, placement, sbp, rank), {5, 3}, float64,
                                intern_spec(placement, sbp));
      x.set_requires_grad();
      Tensor y = row_squares(x)[0];
      EXPECT_EQ(y.shape(), Dims({5}));
      EXPECT_EQ(y.nd_sbp(),
                NdSbp(sbp == sbp::split(0)       ? sbp::split(0)
                          : sbp == sbp::split(1) ? sbp::partial_sum()
                                                 : y.nd_sbp()[0]));
      y.sum().backward();
      auto full = values_of(y.full().array());
      for (int i = 0; i < 5; ++i) {
        double want = 0;
        for (int k = 0; k < 3; ++k) want += values[i * 3 + k] * values[i * 3 + k];
        EXPECT_DOUBLE_EQ(full[i], want);
      }
      auto grad = values_of(x.grad().full().array());
      for (int i = 0; i < 15; ++i) EXPECT_DOUBLE_EQ(grad[i], 2 * values[i]);
      EXPECT_EQ(x.grad().spec(), x.spec());
    });
  }
}

TEST(Function, AGradientOfAnotherDtypeIsConverted) {
  comm::run_ranks(2, [](int rank) {
    Placement placement("cpu", {0, 1});
    const std::vector<double> values(6, 3);
    Tensor x = Tensor::global(part_of(values, {3, 2}, float64, placement, sbp::split(0), rank), {3, 2}, float64,
                              intern_spec(placement, sbp::split(0)));
    x.set_requires_grad();
    autograd::FunctionCall f;
    f.name = "twice";
    f.rule = "n k -> n k";
    f.forward = [](TensorList in) { return std::vector<Tensor>{mul(in[0], 2.0)}; };
    f.backward = [](TensorList dy) { return std::vector<Tensor>{cast(mul(dy[0], 2.0), float32)}; };
    autograd::apply_function(f, {x})[0].sum().backward();
    EXPECT_EQ(x.grad().dtype(), float64);
    for (double v : values_of(x.grad().full().array())) EXPECT_EQ(v, 2);
  });
}

TEST(Function, AGradientOfAnotherShapeIsAnError) {
  autograd::FunctionCall f;
  f.name = "wrong";
  f.forward = [](TensorList in) { return std::vector<Tensor>{neg(in[0])}; };
  f.backward = [](TensorList) { return std::vector<Tensor>{ones({7})}; };
  Tensor x = ones({2});
  x.set_requires_grad();
  Tensor y = autograd::apply_function(f, {x})[0];
  try {
    y.sum().backward();
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("backward of wrong: gradient 0 has shape [7], its input [2]"),
              std::string::npos)
        << e.what();
  }
}

TEST(Call, FindsAnOpAndItsAttributesByName) {
  Tensor x = ones({2, 3});
  EXPECT_EQ(call("sum", {x}, {{"dim", Dims{0}}, {"keepdim", true}})[0].shape(), Dims({1, 3}));
  EXPECT_EQ(call("sum", {call("add_scalar", {x}, {{"value", 2}})[0]})[0].item().as_double(), 18.0);
}

TEST(Call, WrongCallsSayWhatIsWrong) {
  auto text = [](auto f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  Tensor x = ones({2});
  EXPECT_NE(text([&] { call("no_such_op", {x}); }).find("no op named"), std::string::npos);
  EXPECT_NE(text([&] { call("sum", {x}, {{"axis", 0}}); }).find("there is no attribute axis"), std::string::npos);
  EXPECT_NE(text([&] {
              call("sum", {x}, {{"keepdim", 1.5}});
            }).find("cannot hold a value of type float"),
            std::string::npos);
  EXPECT_NE(text([&] { call("add", {x}); }).find("1 tensors were given, it takes 2"), std::string::npos);
  EXPECT_NE(text([&] { call("add_scalar", {x}); }).find("attribute value is missing"), std::string::npos);
}

}  // namespace
}  // namespace holon::testing
