#include "holon/checkpoint/core/json.h"

#include <nlohmann/json.hpp>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/core/printable.h"

namespace holon::checkpoint {

bool deeper_than(int most_levels, std::string_view json) {
  int level = 0;
  bool quoted = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++level > most_levels) return true;
    } else if (c == ']' || c == '}') {
      --level;
    }
  }
  return false;
}

nlohmann::json parse_json(std::string_view text, int most_levels, std::string_view name, std::string_view what,
                          std::string_view advice) {
  auto refuse = [&](std::string_view why) { fail_runtime("{}: {}: {}. {}", name, what, why, advice); };
  if (deeper_than(most_levels, text)) refuse(fmt::format("it is nested more than {} levels deep", most_levels));
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& e) {
    refuse(printable(e.what()));
  }
  return {};
}

using nlohmann::json;

void JsonReader::damaged(std::string_view what) const { fail_runtime("{}: {}. {}", name_, what, advice_); }

const json& JsonReader::member(const json& object, const char* key) const {
  if (!object.is_object() || !object.contains(key)) damaged(fmt::format("there is no '{}'", key));
  return object[key];
}

std::string JsonReader::text(const json& object, const char* key) const {
  const json& j = member(object, key);
  if (!j.is_string()) damaged(fmt::format("'{}' is not text", key));
  return j.get<std::string>();
}

const json& JsonReader::array(const json& object, const char* key) const {
  const json& j = member(object, key);
  if (!j.is_array()) damaged(fmt::format("'{}' is not a list", key));
  return j;
}

std::vector<int64_t> JsonReader::counts(const json& object, const char* key) const {
  std::vector<int64_t> out;
  for (auto& n : array(object, key)) {
    if (!n.is_number_unsigned() || n.get<uint64_t>() > INT64_MAX)
      damaged(fmt::format("'{}' is not a list of sizes", key));
    out.push_back(n.get<int64_t>());
  }
  return out;
}

Dims JsonReader::dims(const json& object, const char* key) const {
  auto sizes = counts(object, key);
  if (sizes.size() > kMaxAxes) damaged(fmt::format("'{}' has {} axes", key, sizes.size()));
  return sizes;
}

Sbp JsonReader::sbp(const json& j) const {
  if (j == "B") return sbp::broadcast();
  if (j.is_number_unsigned() && j.get<uint64_t>() < kMaxAxes) return sbp::split(j.get<int>());
  damaged("an sbp is neither \"B\" nor an axis");
}

std::vector<int64_t> json_list(const Dims& dims) { return {dims.begin(), dims.end()}; }

json layout_json(const SavedLayout& layout) {
  json sbps = json::array();
  for (auto& s : layout.nd_sbp) sbps.push_back(s.is_split() ? json(static_cast<unsigned>(s.axis)) : json("B"));
  return {{"type", layout.device_type}, {"hierarchy", layout.hierarchy}, {"ranks", layout.ranks}, {"sbp", sbps}};
}

SavedLayout JsonReader::layout(const json& j) const {
  SavedLayout out{text(j, "type"), counts(j, "hierarchy"), counts(j, "ranks"), {}};
  for (auto& s : array(j, "sbp")) out.nd_sbp.push_back(sbp(s));
  if (out.nd_sbp.empty() || out.nd_sbp.size() != out.hierarchy.size() || out.nd_sbp.size() > kMaxAxes)
    damaged("a layout does not have one sbp for each axis of its hierarchy");
  return out;
}

}  // namespace holon::checkpoint
