// Every HOLON_* environment variable, in one table: name, default, meaning. The reference page is made from it.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace holon::settings {

struct Setting {
  const char* name;
  const char* fallback;
  const char* doc;
};

std::span<const Setting> all();

// The value of a setting of the table, from the environment or its default. Errors: a name that is not in the table;
// for number(), text that is not a number.
std::string text(std::string_view name);
double number(std::string_view name);
bool flag(std::string_view name);  // "", "0", "false", "off" are false

}  // namespace holon::settings
