#include "cases.h"

#include "samples/sample.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <variant>

#include "holon/base/fmt.h"
#include "holon/kernels/copy.h"

namespace holon::testing {
namespace {

std::string text_of(const Value& v) {
  if (auto* b = std::get_if<bool>(&v)) return *b ? "true" : "false";
  if (auto* i = std::get_if<int64_t>(&v)) return std::to_string(*i);
  if (auto* d = std::get_if<double>(&v)) return fmt::format("{}", *d);
  if (auto* s = std::get_if<std::string>(&v)) return *s;
  if (auto* t = std::get_if<DType>(&v)) return holon::name(*t);
  if (auto* d = std::get_if<Dims>(&v)) return d->str();
  return "...";
}

}  // namespace

Samples::Samples(void (*declare)(const Add&)) {
  declare({[](std::string op, std::vector<Input> in, Attributes attrs, bool differences) {
    all().push_back({std::move(op), std::move(in), std::move(attrs), differences});
  }});
}

std::vector<Case>& Samples::all() {
  static std::vector<Case> list;
  return list;
}

const std::vector<Case>& cases() { return Samples::all(); }

const std::vector<Exempt>& exempt_ops() {
  static const std::vector<Exempt> list{
      {"empty", "its values are unset"},
      {"empty_like", "its values are unset"},
      {"pin_memory", "needs a device: tests/cuda/test_pinned.py"},
      {"same_on_device", "the half of to_device that moves nothing, which has cases"},
      {"to_global", "moves between layouts: autograd_test, boxing_test"},
      {"to_local", "moves between layouts: autograd_test"},
      {"rand", "random_test"},
      {"randn", "random_test"},
      {"randint", "random_test"},
      {"randperm", "random_test"},
      {"normal", "random_test"},
      {"normal_of_size", "test_random.py"},
      {"randint_below", "test_random.py"},
      {"normal_fill", "random_test"},
      {"uniform_fill", "random_test"},
      {"trunc_normal_fill", "random_test"},
      {"bernoulli_fill", "random_test"},
      {"random_fill", "random_test"},
      {"bernoulli", "random_test"},
      {"bernoulli_of", "random_test"},
      {"multinomial", "random_test"},
      {"randint_like", "random_test"},
      {"dropout1d", "random_test"},
      {"dropout2d", "random_test"},
      {"dropout3d", "random_test"},
      {"alpha_dropout", "random_test"},
      {"feature_alpha_dropout", "random_test"},
      {"rand_like", "random_test"},
      {"randn_like", "random_test"},
      {"dropout", "random_test"},
      {"dropout_mask", "random_test"},
      {"round_float8_delayed", "which element of amax a rank raises depends on the layout: test_delayed_scaling.py"},
      {"quantize_float8_delayed", "as round_float8_delayed: tests/cuda/test_float8.py"},
  };
  return list;
}

std::string Case::name() const {
  std::string s = op;
  for (auto& i : in)
    s += i.fill == Fill::kAbsent ? " none"
                                 : fmt::format(" {}{}", i.dtype == float32 ? "" : holon::name(i.dtype), i.shape);
  for (auto& [key, value] : attrs) s += fmt::format("; {}={}", key, text_of(value));
  return s;
}

bool is_composed(const Case& c) {
  TensorVec inputs;
  for (auto& in : c.in)
    inputs.push_back(in.fill == Input::Fill::kAbsent ? Tensor()
                                                     : Tensor::without_data(in.shape, in.dtype, nullptr, Device{}));
  return find_op(c.op).is_composed(inputs);
}

Attrs make_attrs(const Case& c, Placement placement, NdSbp sbp) {
  const Schema& schema = find_op(c.op).schema;
  std::vector<NamedAttr> given = c.attrs;
  for (auto& a : schema.args) {
    if (a.type == ArgType::kPlacement && placement) given.emplace_back(a.name, placement);
    if (a.type == ArgType::kSbp && a.name == "sbp" && sbp) given.emplace_back(a.name, sbp);
  }
  return holon::make_attrs(schema, given);
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
    if (in.fill == Fill::kInts)
      v[e] = in.low + below(e, static_cast<int64_t>(in.high - in.low) + 1);
    else if (in.fill == Fill::kBools)
      v[e] = variant == 0 ? below(e, 2) : (below(e, 8) == 0) == (variant % 2 == 0);  // few or many
    else
      v[e] =
          (2 * std::ceil(in.low * 32) + 1 + 2 * below(e, static_cast<int64_t>((in.high - in.low) * 32))) / 64 + shift;
  }
  if (in.fill == Fill::kBools && n > 1 && std::count(v.begin(), v.end(), v[0]) == static_cast<int64_t>(n))
    v[n / 2] = 1 - v[0];
  return v;
}

std::vector<double> values_of(const Array& given) {
  Array a = given.device.is_host() ? given : on_device(given, {});
  if (is_float8(a.dtype)) a = kernels::converted(a, float32);
  std::vector<double> v(static_cast<size_t>(a.numel()));
  visit_dtype(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Dims at = Dims::filled(a.ndim(), 0);
    for (auto& e : v) {
      int64_t where = 0;
      for (int d = 0; d < a.ndim(); ++d) where += at[d] * a.strides[d];
      T x = a.data<T>()[where];
      if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
        e = static_cast<float>(x);
      else
        e = static_cast<double>(x);
      for (int d = a.ndim() - 1; d >= 0 && ++at[d] == a.shape[d]; --d) at[d] = 0;
    }
  });
  return v;
}

Array array_of(const std::vector<double>& values, const Dims& shape, DType dtype) {
  if (is_float8(dtype)) return kernels::converted(array_of(values, shape, float32), dtype);
  Array a = Array::empty(shape, dtype);
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (size_t e = 0; e < values.size(); ++e) {
      if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
        a.data<T>()[e] = T(static_cast<float>(values[e]));
      else
        a.data<T>()[e] = static_cast<T>(values[e]);
    }
  });
  return a;
}

Array on_device(const Array& a, Device device) {
  Array there = Array::empty(a.shape, a.dtype, device);
  kernels::copy(a, there);
  return there;
}

const char* test_device() {
  const char* name = std::getenv("HOLON_TEST_DEVICE");
  return name && *name ? name : "cpu";
}

Array part_of(const std::vector<double>& values, const Dims& shape, DType dtype, const Placement& placement,
              const NdSbp& sbp, int index) {
  Dims coordinate = placement.coordinate(index);
  uint64_t addend = 0, n_addends = 1;
  for (int a = 0; a < sbp.size(); ++a)
    if (sbp[a].is_partial()) {
      addend = addend * static_cast<uint64_t>(placement.hierarchy()[a]) + static_cast<uint64_t>(coordinate[a]);
      n_addends *= static_cast<uint64_t>(placement.hierarchy()[a]);
    }
  auto noise = [&](uint64_t k, size_t e) {
    return (static_cast<double>(mix(e, k, 5) % 129) - 64) / (is_floating(dtype) ? 64 : 1);
  };
  Region s = region_of(shape, placement, sbp, index);
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
  return on_device(array_of(part, s.shape, dtype), placement.device());
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

double tolerance(DType dtype) {
  return !is_floating(dtype) ? 0 : dtype == float64 ? 1e-12 : dtype == float32 ? 1e-5 : 1e-2;
}

}  // namespace holon::testing
