#include "cases.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace holon::testing {
namespace {

using Fill = Input::Fill;

Input x(Dims shape, double low = -2, double high = 2, DType dtype = float32) { return {shape, Fill::kGrid, low, high, dtype}; }
Input distinct(Dims shape) { return {shape, Fill::kDistinct, 0, 0, float32}; }
Input ints(Dims shape, double low, double high, DType dtype = int64) { return {shape, Fill::kInts, low, high, dtype}; }
Input mask(Dims shape) { return {shape, Fill::kBools, 0, 1, boolean}; }
Input none() { return {{}, Fill::kAbsent, 0, 0, float32}; }

std::vector<Case> make() {
  std::vector<Case> v;
  auto add = [&](std::string op, std::vector<Input> in, std::vector<std::pair<std::string, Value>> attrs = {}, bool differences = true) {
    v.push_back({std::move(op), std::move(in), std::move(attrs), differences});
  };

  // Functions of one tensor.
  for (const char* op : {"relu", "tanh", "sigmoid", "silu", "gelu", "neg", "abs", "sign", "square", "exp", "expm1", "sin", "cos", "erf", "floor",
                         "ceil", "round", "trunc"}) {
    add(op, {x({5, 3})});
    add(op, {x({2, 1, 7})});
  }
  add("relu", {x({0, 3})});
  add("gelu", {x({5, 3})}, {{"approximate", "tanh"}});
  for (const char* op : {"sqrt", "rsqrt", "reciprocal", "log", "log2", "log1p"}) {
    add(op, {x({5, 3}, 0.5, 3)});
    add(op, {x({3}, 0.5, 3)});
  }
  for (const char* op : {"isnan", "isinf", "isfinite", "logical_not"}) add(op, {x({5, 3})});
  add("logical_not", {mask({5, 3})});
  add("sqrt", {ints({5}, 1, 9)});
  add("abs", {ints({5, 3}, -4, 4)});

  // Two tensors, and a tensor with a number.
  for (const char* op : {"add", "sub", "mul", "div", "maximum", "minimum", "fmod", "remainder", "floor_divide", "eq", "ne", "lt", "le", "gt",
                         "ge", "logical_and", "logical_or", "logical_xor"}) {
    bool divides = std::string(op) == "fmod" || std::string(op) == "remainder" || std::string(op) == "floor_divide" || std::string(op) == "div";
    double low = divides ? 0.6 : -2;
    add(op, {x({5, 3}), x({5, 3}, low, 2)}, {}, !divides || std::string(op) == "div");
    add(op, {x({5, 3}), x({3}, low, 2)}, {}, !divides || std::string(op) == "div");
    add(op, {x({1, 7}), x({4, 1}, low, 2)}, {}, !divides || std::string(op) == "div");
    add(op, {ints({5, 3}, -4, 4), ints({3}, 1, 4)});
    add(std::string(op) + "_scalar", {x({5, 3})}, {{"value", 0.7}});
    add(std::string(op) + "_scalar", {ints({5, 3}, -4, 4)}, {{"value", 2}});
    if (std::string(op) == "sub" || std::string(op) == "div")
      add(std::string(op) + "_scalar", {x({5, 3}, 0.5, 3)}, {{"value", 0.7}, {"reverse", true}});
  }
  add("add", {x({}), x({5})});
  add("add", {x({0, 3}), x({3})});
  add("mul", {x({}), x({})});
  add("mul", {x({5, 3}), ints({3}, -3, 3)}, {}, false);
  add("mul", {x({1, 3}), x({2, 5, 1})});
  add("eq", {ints({5, 3}, 0, 2), ints({5, 3}, 0, 2)});
  add("maximum", {ints({5, 3}, 0, 2, int32), ints({5, 3}, 0, 2, int32)});
  add("pow", {x({5, 3}, 0.5, 2), x({3}, -1, 2)});
  add("pow", {x({5, 3}, 0.5, 2), x({5, 3}, -1, 2)});
  add("pow_scalar", {x({5, 3}, 0.5, 2)}, {{"value", 2.5}});
  add("pow_scalar", {x({5, 3}, 0.5, 2)}, {{"value", 2}});
  add("pow_scalar", {x({5, 3}, 0.5, 2)}, {{"value", 1.5}, {"reverse", true}});
  for (const char* op : {"relu_backward", "gelu_backward", "gelu_tanh_backward", "silu_backward", "tanh_backward", "sigmoid_backward"})
    add(op, {x({5, 3}), x({5, 3})});
  add("sum_to_size", {x({5, 3})}, {{"size", Dims{1, 3}}});
  add("sum_to_size", {x({2, 5, 3})}, {{"size", Dims{3}}});
  add("sum_to_size", {x({5, 3})}, {{"size", Dims{5, 3}}});
  add("mse_loss", {x({5, 3}), x({5, 3})});
  add("mse_loss", {x({5, 3}), x({5, 3})}, {{"reduction", "sum"}});
  add("mse_loss", {x({5, 3}), x({5, 3})}, {{"reduction", "none"}});

  // Dtypes and masks.
  add("cast", {x({5, 3})}, {{"dtype", float64}});
  add("cast", {x({5, 3})}, {{"dtype", int64}});
  add("cast", {ints({5, 3}, -4, 4)}, {{"dtype", float32}});
  add("cast", {x({5, 3})}, {{"dtype", boolean}});
  add("where", {mask({5, 3}), x({5, 3}), x({5, 3})});
  add("where", {mask({5, 1}), x({3}), x({5, 3})});
  add("masked_fill", {x({5, 3}), mask({5, 3})}, {{"value", 0.5}});
  add("masked_fill", {x({5, 3}), mask({3})}, {{"value", 0.0}});
  add("to_device", {x({5, 3})}, {{"device", Device{}}});
  add("clamp", {x({5, 3})}, {{"min", -0.5}, {"max", 1.0}});
  add("clamp", {x({5, 3})}, {{"max", 0.7}});

  // Creation.
  for (const char* op : {"zeros", "ones"}) add(op, {}, {{"size", Dims{5, 3}}});
  add("full", {}, {{"size", Dims{5, 3}}, {"value", 0.5}});
  add("full", {}, {{"size", Dims{2, 0}}, {"value", 3}});
  add("arange", {}, {{"start", 7}});
  add("arange", {}, {{"start", 1.0}, {"end", 3.0}, {"step", 0.25}});
  add("arange_steps", {}, {{"start", 7}, {"end", -3}, {"step", -2}});
  add("eye", {}, {{"n", 5}});
  add("eye", {}, {{"n", 3}, {"m", 7}});
  for (const char* op : {"zeros_like", "ones_like", "zero"}) add(op, {x({5, 3})});
  add("full_like", {x({5, 3})}, {{"value", 2.0}});
  add("fill", {x({5, 3})}, {{"value", 2.0}});
  for (const char* op : {"tril", "triu"}) {
    add(op, {x({5, 5})});
    add(op, {x({2, 5, 3})}, {{"diagonal", -1}});
    add(op, {x({3, 7})}, {{"diagonal", 2}});
  }

  // Reductions.
  for (const char* op : {"sum", "mean", "prod", "amax", "amin", "any", "all", "var", "std"}) {
    bool extremum = std::string(op) == "amax" || std::string(op) == "amin";
    auto in = [&](Dims s) { return extremum ? distinct(s) : std::string(op) == "any" || std::string(op) == "all" ? mask(s) : x(s); };
    add(op, {in({5, 3})});
    add(op, {in({5, 3})}, {{"dim", Dims{0}}});
    add(op, {in({5, 3, 2})}, {{"dim", Dims{-1, 0}}, {"keepdim", true}});
    add(op, {in({4, 1, 3})}, {{"dim", Dims{1, 2}}});
  }
  add("sum", {x({0, 3})}, {{"dim", Dims{0}}});
  add("sum", {x({})});
  add("sum", {ints({5, 3}, -4, 4)}, {{"dim", Dims{1}}});
  add("sum", {mask({5, 3})});
  add("amax", {ints({5, 3}, 0, 2)}, {{"dim", Dims{0}}});
  add("var", {x({5, 3})}, {{"dim", Dims{0}}, {"unbiased", false}});
  for (const char* op : {"argmax", "argmin"}) {
    add(op, {distinct({5, 3})});
    add(op, {distinct({5, 3})}, {{"dim", 0}});
    add(op, {ints({5, 7}, 0, 2)}, {{"dim", -1}, {"keepdim", true}});
  }
  add("equal", {ints({5}, 0, 2), ints({5}, 0, 2)});
  add("equal", {ints({5}, 0, 2), ints({4}, 0, 2)});

  // Shapes.
  for (const char* op : {"reshape", "view"}) {
    add(op, {x({4, 3})}, {{"shape", Dims{12}}});
    add(op, {x({12})}, {{"shape", Dims{4, -1}}});
    add(op, {x({5, 3})}, {{"shape", Dims{3, 5}}});
    add(op, {x({4, 6})}, {{"shape", Dims{2, 2, 6}}});
    add(op, {x({5, 1, 3})}, {{"shape", Dims{5, 3}}});
    add(op, {x({0, 3})}, {{"shape", Dims{3, 0}}});
  }
  add("flatten", {x({5, 2, 3})}, {{"start_dim", 1}});
  add("permute", {x({5, 2, 3})}, {{"dims", Dims{2, 0, 1}}});
  add("transpose", {x({5, 2, 3})}, {{"dim0", 0}, {"dim1", -1}});
  add("t", {x({5, 3})});
  add("unsqueeze", {x({5, 3})}, {{"dim", 1}});
  add("squeeze", {x({5, 1, 3, 1})});
  add("squeeze", {x({5, 1, 3, 1})}, {{"dim", Dims{1}}});
  add("expand", {x({5, 1})}, {{"size", Dims{5, 3}}});
  add("expand", {x({3})}, {{"size", Dims{5, -1}}});
  add("expand", {x({1, 3})}, {{"size", Dims{2, 5, 3}}});
  add("slice", {x({5, 3})}, {{"dim", 0}, {"start", 1}, {"end", 4}});
  add("slice", {x({5, 7})}, {{"dim", 1}, {"start", 1}, {"step", 3}});
  add("slice", {x({5, 3})}, {{"dim", 0}});
  add("slice", {x({5, 3})}, {{"dim", 0}, {"start", 4}, {"end", 2}});
  add("slice_backward", {x({3, 3})}, {{"shape", Dims{5, 3}}, {"dim", 0}, {"start", 1}, {"end", 4}});
  add("select", {x({5, 3})}, {{"dim", 0}, {"index", -2}});
  add("narrow", {x({5, 3})}, {{"dim", 0}, {"start", 1}, {"length", 3}});
  add("split", {x({5, 3})}, {{"split_sizes", Dims{2}}});
  add("split", {x({5, 3})}, {{"split_sizes", Dims{1, 2}}, {"dim", 1}});
  add("chunk", {x({5, 3})}, {{"chunks", 3}});
  add("cat", {x({5, 3}), x({2, 3}), x({1, 3})});
  add("cat", {x({5, 3}), x({5, 4})}, {{"dim", -1}});
  add("stack", {x({5, 3}), x({5, 3})}, {{"dim", 1}});
  add("clone", {x({5, 3})});
  add("contiguous", {x({5, 3})});
  add("copy", {x({5, 3}), x({3})}, {}, false);

  // Indices.
  add("embedding", {x({7, 3}), ints({5}, 0, 6)});
  add("embedding", {x({7, 3}), ints({2, 5}, 0, 6, int32)});
  add("embedding_backward", {x({5, 3}), ints({5}, 0, 6)}, {{"rows", 7}});
  for (int dim : {0, 1}) add("index_select", {x({5, 3}), ints({4}, 0, 2)}, {{"dim", dim}});
  add("index_add_zeros", {x({4, 3}), ints({4}, 0, 4)}, {{"dim", 0}, {"size", 5}});
  add("gather", {x({5, 3}), ints({4, 3}, 0, 4)}, {{"dim", 0}});
  add("gather", {x({5, 3}), ints({5, 7}, 0, 2)}, {{"dim", 1}});
  add("gather", {x({5, 3}), ints({3, 2}, 0, 2)}, {{"dim", 1}});
  add("scatter_add_zeros", {x({4, 3}), ints({4, 3}, 0, 4)}, {{"dim", 0}, {"shape", Dims{5, 3}}});
  add("one_hot", {ints({5, 2}, 0, 3)}, {{"num_classes", 4}});

  // Products, convolutions, pools.
  add("matmul", {x({4, 5}), x({5, 8})});
  add("matmul", {x({5}), x({5, 3})});
  add("matmul", {x({4, 5}), x({5})});
  add("matmul", {x({2, 4, 5}), x({5, 3})});
  add("matmul_nd", {x({4, 5}), x({5, 3})});
  add("matmul_nd", {x({3, 4, 5}), x({3, 5, 2})});
  add("matmul_nd", {x({3, 1, 4, 5}), x({2, 5, 2})});
  add("matmul_nd", {x({4, 0}), x({0, 3})});
  add("linear", {x({4, 5}), x({3, 5}), x({3})});
  add("linear", {x({2, 4, 5}), x({3, 5}), none()});
  add("linear", {x({5}), x({3, 5}), x({3})});
  add("linear_weight_grad", {x({4, 3}), x({4, 5})});
  add("linear_weight_grad", {x({2, 4, 3}), x({2, 4, 5})});
  Dims one{1, 1}, two{2, 2};
  add("conv2d", {x({3, 2, 5, 5}), x({4, 2, 3, 3}), x({4})}, {{"padding", one}});
  add("conv2d", {x({2, 3, 5, 4}), x({5, 3, 2, 2}), none()}, {{"stride", two}});
  add("conv2d", {x({2, 4, 5, 5}), x({4, 2, 3, 3}), x({4})}, {{"groups", 2}});
  add("conv2d_input_grad", {x({2, 4, 3, 3}), x({4, 2, 3, 3})}, {{"shape", Dims{2, 2, 5, 5}}});
  add("conv2d_weight_grad", {x({2, 4, 3, 3}), x({2, 2, 5, 5})}, {{"shape", Dims{4, 2, 3, 3}}});
  add("max_pool2d", {distinct({2, 3, 5, 5})}, {{"kernel_size", two}});
  add("max_pool2d", {distinct({2, 3, 5, 5})}, {{"kernel_size", Dims{3, 3}}, {"stride", two}, {"padding", one}, {"ceil_mode", true}});
  add("max_pool2d_index", {distinct({2, 3, 5, 5})}, {{"kernel_size", two}, {"stride", two}, {"padding", Dims{0, 0}}, {"ceil_mode", false}});
  add("max_pool2d_backward", {x({2, 3, 2, 2}), ints({2, 3, 2, 2}, 0, 3, uint8)},
      {{"kernel_size", two}, {"stride", two}, {"padding", Dims{0, 0}}, {"shape", Dims{2, 3, 5, 5}}});
  add("avg_pool2d", {x({2, 3, 5, 5})}, {{"kernel_size", two}});
  add("avg_pool2d", {x({2, 3, 5, 5})}, {{"kernel_size", Dims{3, 3}}, {"stride", two}, {"padding", one}});
  add("avg_pool2d_backward", {x({2, 3, 2, 2})}, {{"kernel_size", two}, {"stride", two}, {"padding", Dims{0, 0}}, {"shape", Dims{2, 3, 5, 5}}});

  // Norms and losses.
  for (const char* op : {"softmax", "log_softmax"}) {
    add(op, {x({5, 3})});
    add(op, {x({2, 5, 3})}, {{"dim", 1}});
    add(std::string(op) + "_backward", {x({5, 3}), x({5, 3}, 0.1, 0.9)}, {{"dim", -1}});
  }
  add("layer_norm", {x({5, 3}), x({3}), x({3})}, {{"normalized_shape", Dims{3}}});
  add("layer_norm", {x({5, 2, 3}), x({2, 3}), none()}, {{"normalized_shape", Dims{2, 3}}});
  add("layer_norm", {x({5, 7}), none(), none()}, {{"normalized_shape", Dims{7}}});
  add("layer_norm_stats", {x({5, 3}), x({3}), x({3})}, {{"axes", 1}, {"eps", 1e-5}}, false);
  add("layer_norm_backward", {x({5, 3}), x({5, 3}), x({5}), x({5}, 0.5, 2), x({3})}, {{"axes", 1}});
  add("cross_entropy", {x({5, 3}), ints({5}, 0, 2)});
  add("cross_entropy", {x({5, 3}), ints({5}, 0, 2)}, {{"reduction", "sum"}, {"label_smoothing", 0.1}});
  add("cross_entropy", {x({5, 3}), ints({5}, 0, 2)}, {{"reduction", "none"}});
  add("cross_entropy", {x({5, 3}), ints({5}, 0, 2)}, {{"ignore_index", 1}});
  add("cross_entropy", {x({2, 3, 5}), ints({2, 5}, 0, 2)});
  add("cross_entropy", {x({2, 3, 2, 5}), ints({2, 2, 5}, 0, 2)}, {{"ignore_index", 1}, {"label_smoothing", 0.1}});
  add("cross_entropy", {x({3}), ints({}, 0, 2)});
  add("cross_entropy_rows", {x({4, 5, 3}), ints({4, 5}, 0, 2)}, {{"ignore_index", -100}, {"label_smoothing", 0.0}}, false);
  add("cross_entropy_rows", {x({5, 3}), ints({5}, 0, 2)}, {{"ignore_index", -100}, {"label_smoothing", 0.0}}, false);
  add("cross_entropy_backward", {x({5}), x({5, 3}), ints({5}, 0, 2), x({5}, 1, 2)}, {{"ignore_index", -100}, {"label_smoothing", 0.0}});
  return v;
}

std::string text_of(const Value& v) {
  if (auto* b = std::get_if<bool>(&v)) return *b ? "true" : "false";
  if (auto* i = std::get_if<int>(&v)) return std::to_string(*i);
  if (auto* d = std::get_if<double>(&v)) return fmt::format("{}", *d);
  if (auto* s = std::get_if<const char*>(&v)) return *s;
  if (auto* t = std::get_if<DType>(&v)) return holon::name(*t);
  if (std::get_if<Device>(&v)) return "device";
  return std::get<Dims>(v).str();
}

Scalar scalar_of(const Value& v) {
  if (auto* b = std::get_if<bool>(&v)) return *b;
  if (auto* i = std::get_if<int>(&v)) return *i;
  return std::get<double>(v);
}

void push_default(Attrs& to, const ArgDef& a, const Attrs& defaults) {
  if (!defaults.has(a.attr)) {
    HOLON_CHECK(a.optional || a.has_default, "a case lacks {}", a.name);
    return to.push_none();
  }
  switch (a.type) {
    case ArgType::kInt: return to.push_int(defaults.as_int(a.attr));
    case ArgType::kFloat: return to.push_float(defaults.as_float(a.attr));
    case ArgType::kBool: return to.push_bool(defaults.as_bool(a.attr));
    case ArgType::kScalar: return to.push_scalar(defaults.as_scalar(a.attr));
    case ArgType::kText: return to.push_text(defaults.as_text(a.attr));
    case ArgType::kDType: return to.push_dtype(defaults.as_dtype(a.attr));
    case ArgType::kInts: return to.push_ints(defaults.as_ints(a.attr));
    default: return to.push_none();
  }
}

void push_value(Attrs& to, const ArgDef& a, const Value& v) {
  switch (a.type) {
    case ArgType::kInt: return to.push_int(std::get<int>(v));
    case ArgType::kFloat: return to.push_float(std::get<double>(v));
    case ArgType::kBool: return to.push_bool(std::get<bool>(v));
    case ArgType::kScalar: return to.push_scalar(scalar_of(v));
    case ArgType::kText: return to.push_text(std::get<const char*>(v));
    case ArgType::kDType: return to.push_dtype(std::get<DType>(v));
    case ArgType::kInts: return to.push_ints(std::get<Dims>(v));
    case ArgType::kDevice: return to.push_device(std::get<Device>(v));
    default: HOLON_CHECK(false, "a case cannot give {}", a.name);
  }
}

}  // namespace

const std::vector<Case>& cases() {
  static const std::vector<Case> all = make();
  return all;
}

const std::vector<Exempt>& exempt_ops() {
  static const std::vector<Exempt> list{
      {"empty", "its values are unset"},
      {"empty_like", "its values are unset"},
      {"to_global", "moves between layouts: autograd_test, boxing_test"},
      {"to_local", "moves between layouts: autograd_test"},
      {"rand", "random_test"},
      {"randn", "random_test"},
      {"randint", "random_test"},
      {"randperm", "random_test"},
      {"normal", "random_test"},
      {"uniform", "random_test"},
      {"trunc_normal", "random_test"},
      {"bernoulli", "random_test"},
      {"rand_like", "random_test"},
      {"randn_like", "random_test"},
      {"dropout", "random_test"},
      {"dropout_mask", "random_test"},
  };
  return list;
}

std::string Case::name() const {
  std::string s = op;
  for (auto& i : in) s += i.fill == Fill::kAbsent ? " none" : fmt::format(" {}{}", i.dtype == float32 ? "" : holon::name(i.dtype), i.shape);
  for (auto& [key, value] : attrs) s += fmt::format("; {}={}", key, text_of(value));
  return s;
}

Attrs make_attrs(const Case& c, Placement placement, NdSbp sbp) {
  const Schema& schema = find_op(c.op).schema;
  for (auto& [key, value] : c.attrs) HOLON_CHECK(schema.find(key), "{} has no attribute {}", c.op, key);
  Attrs attrs;
  for (auto& a : schema.args) {
    if (a.attr < 0) continue;
    auto given = std::find_if(c.attrs.begin(), c.attrs.end(), [&](auto& p) { return p.first == a.name; });
    if (given != c.attrs.end()) push_value(attrs, a, given->second);
    else if (a.type == ArgType::kPlacement && placement) attrs.push_placement(placement);
    else if (a.type == ArgType::kSbp && a.name == "sbp" && sbp) attrs.push_nd_sbp(sbp);
    else push_default(attrs, a, schema.defaults);
  }
  return attrs;
}

uint64_t mix(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t z = a * 0x9e3779b97f4a7c15ull + b * 0xbf58476d1ce4e5b9ull + c * 0x94d049bb133111ebull + 1;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

std::vector<double> input_values(const Case& c, size_t i, uint64_t variant) {
  const Input& in = c.in[i];
  if (in.fill == Fill::kAbsent) return {};
  auto n = static_cast<size_t>(in.shape.numel());
  std::vector<double> v(n);
  uint64_t seed = mix(std::hash<std::string>()(c.name()), i, variant);
  double shift = static_cast<double>(i) / 256;
  auto below = [&](size_t e, int64_t k) { return static_cast<double>(mix(seed, e) % static_cast<uint64_t>(k)); };
  if (in.fill == Fill::kDistinct) {
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return mix(seed, a) < mix(seed, b); });
    for (size_t e = 0; e < n; ++e) v[order[e]] = (2 * static_cast<double>(e) + 1 - static_cast<double>(n)) / 64 + shift;
    return v;
  }
  for (size_t e = 0; e < n; ++e) {
    if (in.fill == Fill::kInts) v[e] = in.low + below(e, static_cast<int64_t>(in.high - in.low) + 1);
    else if (in.fill == Fill::kBools) v[e] = variant == 0 ? below(e, 2) : (below(e, 8) == 0) == (variant % 2 == 0);  // few or many
    else v[e] = (2 * std::ceil(in.low * 32) + 1 + 2 * below(e, static_cast<int64_t>((in.high - in.low) * 32))) / 64 + shift;
  }
  if (in.fill == Fill::kBools && n > 1 && std::count(v.begin(), v.end(), v[0]) == static_cast<int64_t>(n)) v[n / 2] = 1 - v[0];
  return v;
}

std::vector<double> values_of(const Array& a) {
  std::vector<double> v(static_cast<size_t>(a.numel()));
  visit_dtype(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Dims at = Dims::filled(a.ndim(), 0);
    for (auto& e : v) {
      int64_t where = 0;
      for (int d = 0; d < a.ndim(); ++d) where += at[d] * a.strides[d];
      T x = a.data<T>()[where];
      if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) e = static_cast<float>(x);
      else e = static_cast<double>(x);
      for (int d = a.ndim() - 1; d >= 0 && ++at[d] == a.shape[d]; --d) at[d] = 0;
    }
  });
  return v;
}

Array array_of(const std::vector<double>& values, const Dims& shape, DType dtype) {
  Array a = Array::empty(shape, dtype);
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (size_t e = 0; e < values.size(); ++e) {
      if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) a.data<T>()[e] = T(static_cast<float>(values[e]));
      else a.data<T>()[e] = static_cast<T>(values[e]);
    }
  });
  return a;
}

Array part_of(const std::vector<double>& values, const Dims& shape, DType dtype, const Placement& placement, const NdSbp& sbp,
              int index) {
  Dims coordinate = placement.coordinate(index);
  uint64_t addend = 0, n_addends = 1;
  for (int a = 0; a < sbp.size(); ++a)
    if (sbp[a].is_partial()) {
      addend = addend * static_cast<uint64_t>(placement.hierarchy()[a]) + static_cast<uint64_t>(coordinate[a]);
      n_addends *= static_cast<uint64_t>(placement.hierarchy()[a]);
    }
  auto noise = [&](uint64_t k, size_t e) { return (static_cast<double>(mix(e, k, 5) % 129) - 64) / (is_floating(dtype) ? 64 : 1); };
  Slice s = slice_of(shape, placement, sbp, index);
  Dims strides = contiguous_strides(shape), at = Dims::filled(shape.size(), 0);
  std::vector<double> part(static_cast<size_t>(s.shape.numel()));
  for (auto& v : part) {
    size_t e = 0;
    for (int d = 0; d < shape.size(); ++d) e += static_cast<size_t>((s.offset[d] + at[d]) * strides[d]);
    if (addend + 1 < n_addends) {
      v = noise(addend, e);
    } else {
      v = values[e];
      for (uint64_t k = 0; k + 1 < n_addends; ++k) v -= noise(k, e);
    }
    for (int d = shape.size() - 1; d >= 0 && ++at[d] == s.shape[d]; --d) at[d] = 0;
  }
  return array_of(part, s.shape, dtype);
}

std::string differs(const std::vector<double>& got, const std::vector<double>& want, double rtol) {
  if (got.size() != want.size()) return fmt::format("{} elements, not {}", got.size(), want.size());
  double largest = 1;
  for (double w : want)
    if (std::isfinite(w)) largest = std::max(largest, std::abs(w));
  for (size_t e = 0; e < want.size(); ++e) {
    if (got[e] == want[e] || (std::isnan(got[e]) && std::isnan(want[e]))) continue;
    // Terms that cancel leave an error of the size of the largest ones.
    if (!(std::abs(got[e] - want[e]) <= rtol * std::abs(want[e]) + 0.2 * rtol * largest))
      return fmt::format("element {} is {}, not {}", e, got[e], want[e]);
  }
  return {};
}

double tolerance(DType dtype) { return !is_floating(dtype) ? 0 : dtype == float64 ? 1e-12 : dtype == float32 ? 1e-5 : 1e-2; }

}  // namespace holon::testing
