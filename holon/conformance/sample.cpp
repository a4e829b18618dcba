#include "holon/conformance/sample.h"

#include <charconv>
#include <optional>
#include <utility>
#include <variant>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/registry/attr_value.h"

namespace holon::conformance {

namespace {

std::string text_of(const AttrValue& v) {
  if (auto* b = std::get_if<bool>(&v)) return *b ? "true" : "false";
  if (auto* i = std::get_if<int64_t>(&v)) return std::to_string(*i);
  if (auto* d = std::get_if<double>(&v)) return fmt::format("{}", *d);
  if (auto* s = std::get_if<std::string>(&v)) return *s;
  if (auto* t = std::get_if<DType>(&v)) return holon::name(*t);
  if (auto* d = std::get_if<Dims>(&v)) return d->str();
  return "...";
}

}  // namespace

std::string Sample::name() const {
  std::string s = op;
  for (auto& i : in)
    s += i.fill == Input::Fill::kAbsent ? " none"
                                        : fmt::format(" {}{}", i.dtype == float32 ? "" : holon::name(i.dtype), i.shape);
  for (auto& [key, value] : attrs) s += fmt::format("; {}={}", key, text_of(value));
  return s;
}

bool is_composed(const Sample& c) {
  TensorVec inputs;
  for (auto& in : c.in)
    inputs.push_back(in.fill == Input::Fill::kAbsent ? Tensor()
                                                     : Tensor::without_data(in.shape, in.dtype, nullptr, Device{}));
  return find_op(c.op).is_composed(inputs);
}

Attrs make_attrs(const Sample& c, Placement placement, NdSbp sbp) {
  const Schema& schema = find_op(c.op).schema;
  std::vector<NamedAttr> given = c.attrs;
  for (auto& a : schema.args) {
    if (a.type == ArgType::kPlacement && placement) given.emplace_back(a.name, placement);
    if (a.type == ArgType::kSbp && a.name == "sbp" && sbp) given.emplace_back(a.name, sbp);
  }
  return holon::make_attrs(schema, given);
}

namespace {

std::optional<DType> dtype_by_name(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i)
    if (holon::name(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  return {};
}

// Reads a sample's text from its beginning.
class Reader {
 public:
  explicit Reader(std::string_view text) : all_(text), rest_(text) {}

  bool at_end() {
    skip_spaces();
    return rest_.empty();
  }
  bool take(std::string_view word) {
    skip_spaces();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  void expect(std::string_view word) {
    if (!take(word)) fail(fmt::format("\"{}\" is missing", word));
  }
  std::string_view until(std::string_view ends) {
    skip_spaces();
    std::string_view found = rest_.substr(0, rest_.find_first_of(ends));
    rest_.remove_prefix(found.size());
    while (found.ends_with(' ')) found.remove_suffix(1);
    return found;
  }
  template <class T>
  T number(std::string_view word) const {
    T n{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), n);
    if (error != std::errc() || end != word.data() + word.size() || word.empty())
      fail(fmt::format("\"{}\" does not read as a number{}", word, std::is_integral_v<T> ? " without a fraction" : ""));
    return n;
  }
  Dims list() {
    Dims d;
    expect("[");
    while (!take("]")) {
      d.push_back(number<int64_t>(until(",]")));
      take(",");
      if (at_end()) fail("\"]\" is missing");
    }
    return d;
  }
  [[noreturn]] void fail(std::string_view what) const {
    fail_value("sample \"{}\": {}. Write it as \"sum [5, 3]; dim=[0]\": the op, a shape for each input, as int64[5, 3] "
               "where it is not float32, or none; then attributes.",
               all_, what);
  }

 private:
  void skip_spaces() {
    while (rest_.starts_with(' ')) rest_.remove_prefix(1);
  }
  std::string_view all_, rest_;
};

Input read_input(Reader& r) {
  Input in;
  if (r.take("none")) {
    in.fill = Input::Fill::kAbsent;
    return in;
  }
  if (const std::string_view word = r.until(" [;"); !word.empty()) {
    const auto dtype = dtype_by_name(word);
    if (!dtype) r.fail(fmt::format("there is no dtype \"{}\"", word));
    in.dtype = *dtype;
  }
  if (!is_floating(in.dtype)) {
    in.fill = in.dtype == DType::kBool ? Input::Fill::kBools : Input::Fill::kInts;
    in.low = 0, in.high = 1;
  }
  in.shape = r.list();
  for (int64_t n : in.shape)
    if (n < 0) r.fail(fmt::format("a size of {}", n));
  if (r.take("(")) {
    in.low = r.number<double>(r.until(",)"));
    r.expect(",");
    in.high = r.number<double>(r.until(",)"));
    r.expect(")");
    if (!(in.low < in.high)) r.fail(fmt::format("the range ({}, {}) is empty", in.low, in.high));
  }
  return in;
}

AttrValue read_attribute(Reader& r, const ArgDef& arg) {
  if (arg.type == ArgType::kInts) return r.list();
  const std::string_view word = r.until(";");
  switch (arg.type) {
    case ArgType::kInt: return r.number<int64_t>(word);
    case ArgType::kFloat: return r.number<double>(word);
    case ArgType::kScalar:
      return word.find_first_of(".e") == word.npos ? AttrValue(r.number<int64_t>(word)) : r.number<double>(word);
    case ArgType::kText: return std::string(word);
    case ArgType::kBool:
      if (word != "true" && word != "false") r.fail(fmt::format("{}={}: it is true or false", arg.name, word));
      return word == "true";
    case ArgType::kDType: {
      const auto dtype = dtype_by_name(word);
      if (!dtype) r.fail(fmt::format("{}={}: there is no such dtype", arg.name, word));
      return *dtype;
    }
    default: r.fail(fmt::format("{} cannot be given as text", arg.name));
  }
}

}  // namespace

std::vector<Input> parse_inputs(std::string_view text) {
  Reader r(text);
  std::vector<Input> in;
  while (!r.at_end()) in.push_back(read_input(r));
  return in;
}

Sample parse_sample(std::string_view text) {
  Reader r(text);
  Sample s;
  s.op = r.until(" [;");
  const OpDef* op = try_find_op(s.op);
  if (!op) r.fail(fmt::format("there is no op \"{}\"", s.op));
  while (!r.at_end() && !r.take(";")) s.in.push_back(read_input(r));
  while (!r.at_end()) {
    const std::string_view name = r.until("=;");
    const ArgDef* arg = op->schema.find(name);
    if (!arg || arg->attr < 0) r.fail(fmt::format("{} has no attribute \"{}\"", s.op, name));
    r.expect("=");
    s.attrs.emplace_back(std::string(name), read_attribute(r, *arg));
    r.take(";");
  }
  if (!op->schema.input_list && static_cast<int>(s.in.size()) != op->schema.n_inputs)
    r.fail(fmt::format("{} takes {} tensors, {} are given", s.op, op->schema.n_inputs, s.in.size()));
  return s;
}

}  // namespace holon::conformance
