#include "holon/checkpoint/core/tree.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/core/json.h"

namespace holon::checkpoint {

using nlohmann::json;

namespace {

// A level of a Value takes three of JSON: {"dict": [[key, value]]}.
constexpr int kMostLevels = 3 * (kMaxDepth + 2);

// JSON has no such numbers: {"float": "inf"}.
const char* not_finite(double x) { return std::isnan(x) ? "nan" : x > 0 ? "inf" : "-inf"; }

class Flattener {
 public:
  explicit Flattener(const char* op) : op_(op) {}

  Flat run(const Value& value) {
    json tree = encode(value, "", "", 0);
    flat_.tree = tree.dump();
    return std::move(flat_);
  }

 private:
  static json number(double x) { return std::isfinite(x) ? json(x) : json{{"float", not_finite(x)}}; }

  json text(const std::string& s, const std::string& path) {
    try {
      json(s).dump();
    } catch (const json::exception&) {
      fail_value("{}: the text at the top{} is not UTF-8. Put such bytes into a uint8 tensor.", op_, path);
    }
    return s;
  }

  json key(const Value& k, const std::string& path) {
    if (k.is_null()) return nullptr;
    if (auto* b = k.get_if<bool>()) return *b;
    if (auto* n = k.get_if<int64_t>()) return *n;
    if (auto* x = k.get_if<double>()) return number(*x);
    if (auto* s = k.get_if<std::string>()) return text(*s, path);
    fail_type("{}: a key at the top{} is a {}. Keys are text, numbers, bools or null.", op_, path, k.kind());
  }

  // A key as part of a path: ['model'], [3].
  static std::string step(const json& key) {
    return key.is_string() ? "['" + key.get<std::string>() + "']" : "[" + key.dump() + "]";
  }
  static std::string part(const json& key) { return key.is_string() ? key.get<std::string>() : key.dump(); }

  json list(const Value::List& items, const std::string& path, const std::string& name, int depth) {
    json out = json::array();
    for (size_t i = 0; i < items.size(); ++i)
      out.push_back(encode(items[i], fmt::format("{}[{}]", path, i),
                           fmt::format("{}{}{}", name, name.empty() ? "" : ".", i), depth));
    return out;
  }

  json tensor(const Tensor& t, const std::string& path, const std::string& name) {
    if (!t.defined()) fail_runtime("{}: the tensor at the top{} is undefined.", op_, path);
    t.require_memory(op_);
    // "a.b" may be one name or a path; both may be there.
    std::string base = name.empty() ? "value" : name == "__metadata__" ? "metadata" : name, unique = base;
    for (int i = 2; !names_.insert(unique).second; ++i) unique = fmt::format("{}#{}", base, i);
    flat_.tensors.emplace_back(unique, t);
    return {{"tensor", unique}};
  }

  json encode(const Value& v, const std::string& path, const std::string& name, int depth) {
    if (depth > kMaxDepth)
      fail_value("{}: the object has more than {} levels, at the top{}. Does a list or dict contain itself?", op_,
                 kMaxDepth, path);
    if (auto* t = v.get_if<Tensor>()) return tensor(*t, path, name);
    if (auto* items = v.get_if<Value::List>()) return list(*items, path, name, depth + 1);
    if (auto* tuple = v.get_if<Value::Tuple>()) return {{"tuple", list(tuple->items, path, name, depth + 1)}};
    if (!v.get_if<Value::Dict>()) return key(v, path);
    json out = json::array();
    for (auto& entry : v.dict()) {
      json k = key(entry.key, path);
      std::string below = name + (name.empty() ? "" : ".") + part(k);
      out.push_back(json::array({k, encode(entry.value, path + step(k), below, depth + 1)}));
    }
    return {{"dict", std::move(out)}};
  }

  const char* op_;
  Flat flat_;
  std::unordered_set<std::string> names_;
};

class Restorer {
 public:
  Restorer(std::string_view name, const std::function<Tensor(const std::string&)>& find) : name_(name), find_(find) {}

  Value run(std::string_view tree) {
    return decode(parse_json(tree, kMostLevels, name_, "the structure of what was saved cannot be read"), 0);
  }

 private:
  [[noreturn]] void damaged(std::string_view what) {
    fail_runtime("{}: the structure of what was saved cannot be read: {}. The file is damaged.", name_, what);
  }

  Value::List list(const json& items, int depth) {
    Value::List out;
    out.reserve(items.size());
    for (auto& item : items) out.push_back(decode(item, depth));
    return out;
  }

  double special(const json& word) {
    if (word == "nan") return std::nan("");
    if (word == "inf") return INFINITY;
    if (word == "-inf") return -INFINITY;
    damaged("an invalid number");
  }

  Value decode(const json& j, int depth) {
    if (depth > 2 * kMaxDepth) damaged("too many levels");
    if (j.is_null()) return {};
    if (j.is_boolean()) return j.get<bool>();
    if (j.is_number_float()) return j.get<double>();
    if (j.is_number_unsigned() && j.get<uint64_t>() > INT64_MAX) damaged("an integer that does not fit in 64 bits");
    if (j.is_number()) return j.get<int64_t>();
    if (j.is_string()) return j.get<std::string>();
    if (j.is_array()) return list(j, depth + 1);
    if (j.size() != 1) damaged("an object of an unknown structure");
    const std::string& tag = j.begin().key();
    const json& content = j.begin().value();
    if (tag == "float") return special(content);
    if (tag == "tensor" && content.is_string()) return find_(content.get<std::string>());
    if (tag == "tuple" && content.is_array()) return Value::Tuple{list(content, depth + 1)};
    if (tag != "dict" || !content.is_array()) damaged(fmt::format("an object '{}'", tag));
    Value::Dict out;
    out.reserve(content.size());
    for (auto& pair : content) {
      if (!pair.is_array() || pair.size() != 2) damaged("an entry of a dict that is not a pair");
      Value key = decode(pair[0], depth + 1);
      if (key.get_if<Tensor>() || key.get_if<Value::List>() || key.get_if<Value::Tuple>() || key.get_if<Value::Dict>())
        damaged("an invalid key");
      out.push_back({std::move(key), decode(pair[1], depth + 1)});
    }
    return out;
  }

  std::string_view name_;
  const std::function<Tensor(const std::string&)>& find_;
};

}  // namespace

Flat flatten(const Value& value, const char* op) { return Flattener(op).run(value); }

Value restore(std::string_view tree, std::string_view name, const std::function<Tensor(const std::string&)>& find) {
  return Restorer(name, find).run(tree);
}

}  // namespace holon::checkpoint
