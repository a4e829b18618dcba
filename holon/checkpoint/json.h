// JSON out of files, of which nothing is certain.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace holon::checkpoint {

// Parses a text of at most so many levels of objects and arrays: deeper ones take memory for each of their characters,
// seventy times as much as they are long. Errors (RuntimeError): "NAME: what, WHY. The file is damaged, or is
// something else."
nlohmann::json parse_json(std::string_view text, int most_levels, std::string_view name, std::string_view what);

// Whether more brackets than that are open at once somewhere.
bool deeper_than(int most_levels, std::string_view json);

}  // namespace holon::checkpoint
