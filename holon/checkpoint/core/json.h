// JSON out of files and from other programs, of which nothing is certain.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "holon/array/dims.h"
#include "holon/checkpoint/core/layout.h"
#include "holon/global/sbp.h"

namespace holon::checkpoint {

// Parses a text of at most so many levels of objects and arrays: deeper ones take memory for each of their characters,
// seventy times as much as they are long. Errors (RuntimeError): "NAME: what: WHY. ADVICE"
inline constexpr std::string_view kDamagedFile = "The file is damaged, or was written by something else.";
nlohmann::json parse_json(std::string_view text, int most_levels, std::string_view name, std::string_view what,
                          std::string_view advice = kDamagedFile);

// Takes members out of JSON objects. Errors (RuntimeError), "NAME: WHY. ADVICE": there is no such member, or it is
// something else. The texts live as long as the reader.
class JsonReader {
 public:
  explicit JsonReader(std::string_view name, std::string_view advice = kDamagedFile) : name_(name), advice_(advice) {}

  [[noreturn]] void damaged(std::string_view what) const;
  const nlohmann::json& member(const nlohmann::json& object, const char* key) const;
  std::string text(const nlohmann::json& object, const char* key) const;
  const nlohmann::json& array(const nlohmann::json& object, const char* key) const;
  std::vector<int64_t> counts(const nlohmann::json& object, const char* key) const;  // not negative
  Dims dims(const nlohmann::json& object, const char* key) const;
  Sbp sbp(const nlohmann::json& j) const;  // "B", or the axis that is split
  // Errors also: not one sbp for each axis of the hierarchy.
  SavedLayout layout(const nlohmann::json& j) const;

 private:
  std::string_view name_, advice_;
};

// As such a list of sizes, and such a layout.
std::vector<int64_t> json_list(const Dims& dims);
nlohmann::json layout_json(const SavedLayout& layout);

// Whether more brackets than that are open at once somewhere.
bool deeper_than(int most_levels, std::string_view json);

}  // namespace holon::checkpoint
