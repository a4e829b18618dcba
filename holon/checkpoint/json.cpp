#include "holon/checkpoint/json.h"

#include <nlohmann/json.hpp>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/printable.h"

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

nlohmann::json parse_json(std::string_view text, int most_levels, std::string_view name, std::string_view what) {
  auto refuse = [&](std::string_view why) {
    fail_runtime("{}: {}: {}. The file is damaged, or was written by something else.", name, what, why);
  };
  if (deeper_than(most_levels, text)) refuse(fmt::format("it is nested more than {} levels deep", most_levels));
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& e) {
    refuse(printable(e.what()));
  }
  return {};
}

}  // namespace holon::checkpoint
