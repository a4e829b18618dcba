#include "holon/checkpoint/core/value.h"

#include "holon/base/error.h"
#include "holon/graph/nn_graph.h"

namespace holon::checkpoint {

namespace {

constexpr const char* kKinds[] = {"null", "bool", "integer", "number", "text", "Tensor", "list", "tuple", "dict"};

template <class T>
const T& expect(const T* found, const Value& value, const char* wanted) {
  if (!found) fail_type("a {} was requested; the value is a {}.", wanted, value.kind());
  return *found;
}

void collect(const Value& value, const std::string& name, nn::StateDict& out) {
  if (auto* tensor = value.get_if<Tensor>()) {
    out.emplace_back(name, *tensor);
    return;
  }
  if (!value.get_if<Value::Dict>())
    fail_type("state_dict: '{}' is a {}; a state dict may only contain tensors.", name, value.kind());
  for (auto& [key, item] : value.dict()) collect(item, name.empty() ? key.text() : name + "." + key.text(), out);
}

}  // namespace

Value::Value() = default;
Value::Value(std::nullptr_t) {}
Value::Value(bool b) : value_(b) {}
Value::Value(double x) : value_(x) {}
Value::Value(const char* text) : value_(std::string(text)) {}
Value::Value(std::string text) : value_(std::move(text)) {}
Value::Value(std::string_view text) : value_(std::string(text)) {}
Value::Value(Tensor tensor) : value_(std::move(tensor)) {}
Value::Value(List list) : value_(std::move(list)) {}
Value::Value(Tuple tuple) : value_(std::move(tuple)) {}
Value::Value(Dict dict) : value_(std::move(dict)) {}
Value::Value(const Value&) = default;
Value::Value(Value&&) noexcept = default;
Value& Value::operator=(const Value&) = default;
Value& Value::operator=(Value&&) noexcept = default;
Value::~Value() = default;

void Value::set(int64_t n) { value_ = n; }
bool Value::is_null() const { return std::holds_alternative<std::monostate>(value_); }

Value::Value(std::initializer_list<std::pair<std::string, Value>> dict) {
  Dict entries;
  for (auto& [key, value] : dict) entries.push_back({key, value});
  value_ = std::move(entries);
}

Value::Value(const nn::StateDict& state) {
  Dict entries;
  for (auto& [name, tensor] : state) entries.push_back({name, tensor});
  value_ = std::move(entries);
}

Value::Value(const optim::StateDict& state) {
  Dict numbers;
  for (auto& [name, number] : state.numbers) numbers.push_back({name, number});
  value_ = Dict{{"tensors", Value(nn::StateDict(state.tensors))}, {"numbers", Value(std::move(numbers))}};
}

Value::Value(const nn::GraphState& state) {
  List optimizers, steps;
  for (auto& optimizer : state.optimizers) optimizers.push_back(optimizer);
  for (int64_t n : state.steps) steps.push_back(n);
  value_ = Dict{{"modules", Value(state.modules)},
                {"optimizers", Value(std::move(optimizers))},
                {"steps", Value(std::move(steps))}};
}

const char* Value::kind() const { return kKinds[value_.index()]; }

const Tensor& Value::tensor() const { return expect(get_if<Tensor>(), *this, "Tensor"); }
bool Value::boolean() const { return expect(get_if<bool>(), *this, "bool"); }
int64_t Value::integer() const { return expect(get_if<int64_t>(), *this, "integer"); }
const std::string& Value::text() const { return expect(get_if<std::string>(), *this, "text"); }
const Value::Dict& Value::dict() const { return expect(get_if<Dict>(), *this, "dict"); }

double Value::number() const {
  if (auto* n = get_if<int64_t>()) return static_cast<double>(*n);
  return expect(get_if<double>(), *this, "number");
}

const Value::List& Value::list() const {
  if (auto* tuple = get_if<Tuple>()) return tuple->items;
  return expect(get_if<List>(), *this, "list");
}

size_t Value::size() const { return get_if<Dict>() ? dict().size() : list().size(); }

bool Value::contains(std::string_view key) const {
  for (auto& entry : dict())
    if (auto* text = entry.key.get_if<std::string>(); text && *text == key) return true;
  return false;
}

const Value& Value::operator[](std::string_view key) const {
  std::string known;
  for (auto& entry : dict())
    if (auto* text = entry.key.get_if<std::string>()) {
      if (*text == key) return entry.value;
      known += (known.empty() ? "" : ", ") + *text;
    }
  fail_value("there is no '{}' in this dict; it has {}.", key, known.empty() ? "nothing" : known);
}

const Value& Value::operator[](size_t index) const {
  if (index >= list().size()) fail(ErrorKind::kIndex, "element {} of {}.", index, list().size());
  return list()[index];
}

nn::StateDict Value::state_dict() const {
  nn::StateDict out;
  collect(*this, "", out);
  return out;
}

optim::StateDict Value::optimizer_state() const {
  optim::StateDict out;
  out.tensors = (*this)["tensors"].state_dict();
  for (auto& [key, value] : (*this)["numbers"].dict()) out.numbers.emplace_back(key.text(), value.number());
  return out;
}

nn::GraphState Value::graph_state() const {
  nn::GraphState out;
  out.modules = (*this)["modules"].state_dict();
  for (auto& optimizer : (*this)["optimizers"].list()) out.optimizers.push_back(optimizer.optimizer_state());
  for (auto& n : (*this)["steps"].list()) out.steps.push_back(n.integer());
  return out;
}

}  // namespace holon::checkpoint
