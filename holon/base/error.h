// Errors that a user can act on. Every message says what was asked, what was found and what to do.
#pragma once

#include <exception>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "holon/base/format.h"

namespace holon {

// Which Python exception an error becomes; in C++ they are all holon::Error.
// kLayout: a placement, sbp or device that is left out, given twice or does not fit the others.
enum class ErrorKind { kRuntime, kValue, kType, kIndex, kAttribute, kNotImplemented, kLayout, kInternal };

class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  // Which kind of mistake it reports.
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
  std::string message_;
};

namespace detail {
[[noreturn, gnu::cold]] void throw_error(ErrorKind kind, std::string_view format,
                                         std::initializer_list<FormatArg> args);
[[noreturn, gnu::cold]] void throw_internal(const char* file, int line, const char* condition, std::string_view format,
                                            std::initializer_list<FormatArg> args);
}  // namespace detail

// Throws a user's error of the given kind; the message is a format string (holon/base/format.h) with its arguments.
template <class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void fail(ErrorKind kind, FormatString<std::type_identity_t<Args>...> format,
                                                 const Args&... args) {
  detail::throw_error(kind, format.text(), {detail::FormatArg(args)...});
}

// An argument has a value that it must not have (ValueError in Python).
template <class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void fail_value(FormatString<std::type_identity_t<Args>...> format,
                                                       const Args&... args) {
  detail::throw_error(ErrorKind::kValue, format.text(), {detail::FormatArg(args)...});
}

// An argument is of a wrong type or dtype (TypeError).
template <class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void fail_type(FormatString<std::type_identity_t<Args>...> format,
                                                      const Args&... args) {
  detail::throw_error(ErrorKind::kType, format.text(), {detail::FormatArg(args)...});
}

// The call cannot be done as things are (RuntimeError).
template <class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void fail_runtime(FormatString<std::type_identity_t<Args>...> format,
                                                         const Args&... args) {
  detail::throw_error(ErrorKind::kRuntime, format.text(), {detail::FormatArg(args)...});
}

// A placement, sbp or device does not fit (ErrorKind::kLayout).
template <class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void fail_layout(FormatString<std::type_identity_t<Args>...> format,
                                                        const Args&... args) {
  detail::throw_error(ErrorKind::kLayout, format.text(), {detail::FormatArg(args)...});
}

// For HOLON_CHECK.
template <class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void internal_error(const char* file, int line, const char* condition,
                                                           FormatString<std::type_identity_t<Args>...> format,
                                                           const Args&... args) {
  detail::throw_internal(file, line, condition, format.text(), {detail::FormatArg(args)...});
}

}  // namespace holon

// A promise inside Holon: when it is broken the fault is ours, and the message says so.
#define HOLON_CHECK(condition, ...)                                         \
  do {                                                                      \
    if (!(condition)) [[unlikely]]                                          \
      ::holon::internal_error(__FILE__, __LINE__, #condition, __VA_ARGS__); \
  } while (0)
