#include "holon/base/error.h"

#include "holon/base/index.h"

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

void fail_index(int64_t index, size_t size) {
  fail(ErrorKind::kInternal, "internal error: index {} of {} elements. Please report it with the program.", index,
       size);
}

void fail_size(int64_t size) {
  fail(ErrorKind::kInternal, "internal error: a size of {}. Please report it with the program.", size);
}

}  // namespace holon::detail
