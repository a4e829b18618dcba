#include "holon/models/config.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "holon/base/error.h"
#include "holon/checkpoint/core/json.h"

namespace holon::models {

using checkpoint::Value;

namespace {

using Json = nlohmann::ordered_json;  // members keep their order
constexpr int kMostLevels = 16;

Value value_of(const Json& j) {
  switch (j.type()) {
    case Json::value_t::boolean: return j.get<bool>();
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: return j.get<int64_t>();
    case Json::value_t::number_float: return j.get<double>();
    case Json::value_t::string: return j.get<std::string>();
    case Json::value_t::array: {
      Value::List list;
      for (auto& item : j) list.push_back(value_of(item));
      return list;
    }
    case Json::value_t::object: {
      Value::Dict dict;
      for (auto& [key, item] : j.items()) dict.push_back({Value(key), value_of(item)});
      return dict;
    }
    default: return nullptr;
  }
}

Json json_of(const Value& v) {
  if (auto* b = v.get_if<bool>()) return *b;
  if (auto* n = v.get_if<int64_t>()) return *n;
  if (auto* x = v.get_if<double>()) return *x;
  if (auto* text = v.get_if<std::string>()) return *text;
  if (v.get_if<Value::List>() || v.get_if<Value::Tuple>()) {
    Json list = Json::array();
    for (auto& item : v.list()) list.push_back(json_of(item));
    return list;
  }
  if (auto* dict = v.get_if<Value::Dict>()) {
    Json object = Json::object();
    for (auto& e : *dict) object[e.key.text()] = json_of(e.value);
    return object;
  }
  if (!v.is_null()) fail_type("models: a configuration holds numbers, text, lists and dicts; found a {}.", v.kind());
  return nullptr;
}

}  // namespace

Config::Config(std::string_view json, std::string source) : source_(std::move(source)) {
  Json parsed =
      checkpoint::deeper_than(kMostLevels, json) ? Json(Json::value_t::discarded) : Json::parse(json, nullptr, false);
  if (!parsed.is_object())
    fail_value("models: {} is not a JSON object of at most {} levels. Give the config.json of a checkpoint.", source_,
               kMostLevels);
  members_ = value_of(parsed).dict();
}

Config Config::read(const FilePath& folder, const char* name, bool may_be_missing) {
  const auto path = std::filesystem::path(folder.string()) / name;
  std::error_code ignored;
  if (may_be_missing && !std::filesystem::exists(path, ignored)) return {};
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.is_open() || file.bad())
    fail_runtime("models: {} cannot be read. Give a folder that save_pretrained() of transformers or of Holon wrote.",
                 path.string());
  return Config(text, path.string());
}

bool Config::has(std::string_view key) const {
  for (auto& e : members_)
    if (e.key.text() == key) return !e.value.is_null();
  return false;
}

bool Config::lists(std::string_view key) const {
  for (auto& e : members_)
    if (e.key.text() == key) return true;
  return false;
}

const Value* Config::find(std::string_view key) const {
  for (auto& e : members_)
    if (e.key.text() == key && !e.value.is_null()) return &e.value;
  return nullptr;
}

const Value& Config::member(std::string_view key) const {
  if (const Value* v = find(key)) return *v;
  fail_value("models: {} has no '{}', which a model of this type needs.", source_, key);
}

void Config::wrong(std::string_view key, const char* wanted) const {
  fail_value("models: {}: '{}' is of the type {}; it must be {}.", source_, key, member(key).kind(), wanted);
}

int64_t Config::integer(std::string_view key) const {
  if (auto* n = member(key).get_if<int64_t>()) return *n;
  wrong(key, "an integer");
}

double Config::number(std::string_view key) const {
  const Value& v = member(key);
  if (auto* x = v.get_if<double>()) return *x;
  if (auto* n = v.get_if<int64_t>()) return static_cast<double>(*n);
  wrong(key, "a number");
}

bool Config::flag(std::string_view key, bool otherwise) const {
  if (!has(key)) return otherwise;
  if (auto* b = member(key).get_if<bool>()) return *b;
  wrong(key, "true or false");
}

std::string Config::text(std::string_view key) const {
  if (auto* text = member(key).get_if<std::string>()) return *text;
  wrong(key, "text");
}

std::string Config::text(std::string_view key, std::string_view otherwise) const {
  return has(key) ? text(key) : std::string(otherwise);
}

std::vector<std::string> Config::texts(std::string_view key) const {
  auto* list = member(key).get_if<Value::List>();
  if (!list) wrong(key, "a list of texts");
  std::vector<std::string> out;
  for (auto& item : *list) {
    if (!item.get_if<std::string>()) wrong(key, "a list of texts");
    out.push_back(item.text());
  }
  return out;
}

std::vector<int64_t> Config::integers(std::string_view key) const {
  auto* list = member(key).get_if<Value::List>();
  if (!list) wrong(key, "a list of integers");
  std::vector<int64_t> out;
  for (auto& item : *list) {
    if (!item.get_if<int64_t>()) wrong(key, "a list of integers");
    out.push_back(item.integer());
  }
  return out;
}

bool Config::is_list(std::string_view key) const { return has(key) && member(key).get_if<Value::List>(); }

Config Config::object(std::string_view key) const {
  Config inner;
  inner.source_ = source_;
  if (!has(key)) return inner;
  if (!member(key).get_if<Value::Dict>()) wrong(key, "an object");
  inner.members_ = member(key).dict();
  inner.source_ += ": '" + std::string(key) + "'";
  return inner;
}

void Config::set(std::string_view key, Value value) {
  for (auto& e : members_)
    if (e.key.text() == key) {
      e.value = std::move(value);
      return;
    }
  members_.push_back({Value(key), std::move(value)});
}

std::string Config::json() const { return json_of(members_).dump(2) + "\n"; }

void Config::write(const char* op, const FilePath& folder, const char* file) const {
  const auto path = std::filesystem::path(folder.string()) / file;
  std::ofstream out(path, std::ios::binary);
  out << json();
  out.close();
  if (!out) fail_runtime("{}: {} cannot be written.", op, path.string());
}

void check_positive(const Config& c, std::initializer_list<std::pair<const char*, int64_t>> sizes) {
  for (auto& [name, n] : sizes)
    if (n < 1) fail_value("models: {}: {} is {}; it must be 1 or more.", c.source(), name, n);
}

int64_t label_count(const Config& c) {
  const std::string problem = c.text("problem_type", "single_label_classification");
  const int64_t n = c.has("id2label") ? c.object("id2label").size() : c.integer("num_labels", 2);
  if (n < 2 || problem != "single_label_classification")
    fail_value("models: {}: {} labels of problem_type '{}'; a loss of classes needs 2 or more and "
               "single_label_classification.",
               c.source(), n, problem);
  return n;
}

}  // namespace holon::models
