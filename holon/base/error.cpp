#include "holon/base/error.h"

#include "holon/base/index.h"

namespace holon::detail {

void throw_error(ErrorKind kind, std::string_view format, std::initializer_list<FormatArg> args) {
  throw Error(kind, format_args(format, args));
}

void throw_internal(const char* file, int line, const char* condition, std::string_view format,
                    std::initializer_list<FormatArg> args) {
  throw Error(ErrorKind::kInternal,
              formatted("internal error: {} ({}:{}: {}). Please report it with the program.", format_args(format, args),
                        file, line, condition));
}

void fail_index(int64_t index, size_t size) {
  fail(ErrorKind::kInternal, "internal error: index {} of {} elements. Please report it with the program.", index,
       size);
}

void fail_size(int64_t size) {
  fail(ErrorKind::kInternal, "internal error: a size of {}. Please report it with the program.", size);
}

}  // namespace holon::detail
