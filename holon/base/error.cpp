#include "holon/base/error.h"

#include <fmt/format.h>

namespace holon::detail {

void throw_error(ErrorKind kind, fmt::string_view format, fmt::format_args args) {
  throw Error(kind, fmt::vformat(format, args));
}

void throw_internal(const char* file, int line, const char* condition, fmt::string_view format, fmt::format_args args) {
  throw Error(ErrorKind::kInternal,
              fmt::format("internal error: {} ({}:{}: {}). Please report it with the program.",
                          fmt::vformat(format, args), file, line, condition));
}

}  // namespace holon::detail
