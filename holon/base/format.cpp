#include "holon/base/format.h"

#include <fmt/args.h>
#include <fmt/format.h>

namespace holon::detail {

std::string format_args(std::string_view format, std::initializer_list<FormatArg> args) {
  fmt::dynamic_format_arg_store<fmt::format_context> store;
  for (const FormatArg& a : args) a.visit([&](const auto& value) { store.push_back(value); });
  return fmt::vformat(format, store);
}

}  // namespace holon::detail
