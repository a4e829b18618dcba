// Exports as a front end sees them, without Python: classes and functions of this program.
#include <gtest/gtest.h>

#include <ranges>

#include "holon/base/error.h"
#include "holon/dispatch/dispatch.h"
#include "holon/exports/python.h"
#include "holon/nn/layers.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/linalg.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "tests/cpp/error_of.h"

namespace holon::exports {
namespace {

struct Net : nn::Layer<Net> {
  nn::Linear layer;
  nn::Shared<int> calls;
  explicit Net(int64_t width) : layer(register_module("layer", nn::Linear(2, width))) {}
  Tensor forward(const Tensor& x, double factor) const { return ++*calls, layer(x) * Scalar(factor); }
};
// Of any tensors, as with an operator() of its own.
struct Sum : nn::Module {
  Tensor operator()(const Tensor& a, const Tensor& b) const { return a + b; }
};

int64_t widths(const Net& net, std::string_view prefix, const char* more) {
  return net.layer.weight.shape()[0] + static_cast<int64_t>(prefix.size() + std::string(more).size());
}
nn::Parameter weight_of(Net net) { return net.layer.weight; }
void set_up(Net& net) { net.layer = nn::Linear(2, 7); }

TEST(Exports, AModuleIsMadeAndCalled) {
  static int variable;
  export_module<Net, int64_t>("test::Net", &variable)
      .arguments({{"width", 3}})
      .forward_arguments({"x", {"factor", 1.0}});
  const ModuleExport& e = *find_export(typeid(Net));
  EXPECT_EQ(e.name, "Net");
  EXPECT_EQ(e.n_arguments, 1u);
  EXPECT_EQ(e.forward.n_arguments, 2u);
  EXPECT_EQ(std::get<int64_t>(e.arguments[0].value.data), 3);
  const Value width[] = {4};
  auto object = e.make(e, width);
  auto& net = dynamic_cast<Net&>(object->module());
  const Tensor x = ones({1, 2});
  const Value values[] = {x, 2};
  const Value y = e.call(object->module(), e.forward, values);
  EXPECT_TRUE(equal(std::get<Tensor>(y.data), net.layer(x) * Scalar(2.0)).item().as_int());
  EXPECT_EQ(*net.calls, 1);
  const Value wrong[] = {"text", 2};
  EXPECT_EQ(error_of([&] { e.call(object->module(), e.forward, wrong); }), "Net: x must be a Tensor, got str.");

  static int another;
  export_module<Sum>("Sum", &another);
  const ModuleExport& sum = *find_export(typeid(Sum));
  const Value both[] = {x, x};
  Sum module;
  const Tensor twice = std::get<Tensor>(sum.call(module, sum.forward, both).data);
  EXPECT_EQ(twice.data<float>()[0], 2.0f);
}

template <class R, class... P>
Value call(R (*f)(P...), const std::vector<Value>& values) {
  Callable callable;
  callable.name = "f";
  return detail::value_of_call<P...>(callable, values, f);
}

TEST(Exports, ModulesPassByReference) {
  auto object = std::make_shared<ModuleHolder<Net>>(Net(5));
  const Value net = std::shared_ptr<ModuleObject>(object);
  EXPECT_EQ(std::get<int64_t>(call(widths, {net, "abc", "de"}).data), 10);
  EXPECT_TRUE(std::get<Tensor>(call(weight_of, {net}).data).is_same(object->object.layer.weight));
  EXPECT_TRUE(call(set_up, {net}).is_none());
  EXPECT_EQ(object->object.layer.weight.shape()[0], 7);
  const Value other = std::shared_ptr<ModuleObject>(std::make_shared<ModuleHolder<Sum>>(Sum()));
  EXPECT_NE(error_of([&] { call(set_up, {other}); }).find("::Net, got module"), std::string::npos);
  const Value result = Conversion<Net>::to(object->object);
  EXPECT_EQ(std::get<std::shared_ptr<ModuleObject>>(result.data)->module().identity(), object->object.identity());
}

TEST(Exports, EveryTypeGoesThereAndBack) {
  const ArgumentName name{"f", "a"};
  auto same = [&]<class T>(const T& x) { EXPECT_EQ(Conversion<T>::from(Conversion<T>::to(x), name), x); };
  const Tensor t = ones({2});
  EXPECT_TRUE(Conversion<Tensor>::from(Conversion<Tensor>::to(t), name).is_same(t));
  same(true), same(3), same(int64_t{-1}), same(2.5), same(std::string("text")), same(float64), same(Device());
  same(Placement("cpu", {0})), same(NdSbp(sbp::split(1))), same(Dims{2, 3});
  same(std::optional<int>(3)), same(std::optional<int>()), same(std::vector<std::vector<int>>{{1}, {}, {2, 3}});
  same(std::pair(1, std::string("a"))), same(std::tuple(true, 2.5)), same(std::array<int, 3>{1, 2, 3});
  const NdSbp both{sbp::split(0), sbp::broadcast()};
  EXPECT_EQ(Conversion<NdSbp>::from(std::vector<Value>{Conversion<NdSbp>::to(sbp::split(0)),
                                                       Conversion<NdSbp>::to(sbp::broadcast())},
                                    name),
            both);
  EXPECT_EQ(Conversion<double>::from(2, name), 2.0);
  EXPECT_FALSE(Conversion<Tensor>::from(nullptr, name).defined());
  EXPECT_EQ(error_of([&] { Conversion<int8_t>::from(1000, name); }),
            "f: a must be an int that fits its C++ type, got int.");
  EXPECT_EQ(error_of([&] { Conversion<uint32_t>::from(-1, name); }),
            "f: a must be an int that fits its C++ type, got int.");
  EXPECT_EQ(error_of([&] { Conversion<int>::from(2.5, name); }), "f: a must be an int, got float.");
  EXPECT_EQ(error_of([&] { Conversion<bool>::from(1, name); }), "f: a must be a bool, got int.");
  EXPECT_EQ(error_of([&] { Conversion<std::pair<int, int>>::from(std::vector<Value>{1}, name); }),
            "f: a must be a tuple, got list.");
}

TEST(Exports, DeclarationsAreChecked) {
  static int a, b;
  auto builder = export_function("holon::widths", &widths, &a);
  EXPECT_NE(error_of([&] { builder.arguments({"net"}); }).find("has 1 names for 3 parameters"), std::string::npos);
  EXPECT_NE(error_of([&] { builder.arguments({"net", "a", "a"}); }).find("has the name 'a' twice"), std::string::npos);
  EXPECT_NE(error_of([&] {
              builder.arguments({"net", {"a", 1}, "b"});
            }).find("b has no value and comes after"),
            std::string::npos);
  EXPECT_NE(error_of([&] { export_function("widths", &widths, &b); }).find("exports widths twice"), std::string::npos);
  EXPECT_NE(error_of([&] { export_function("other", &widths, &b, 0); }).find("compiled against version 0"),
            std::string::npos);
}

}  // namespace
}  // namespace holon::exports
