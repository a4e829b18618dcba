// Errors that a user can act on. Every message says what was asked, what was found and what to do.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "holon/base/print.h"

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
[[noreturn]] void throw_error(ErrorKind kind, fmt::string_view format, fmt::format_args args);
[[noreturn]] void throw_internal(const char* file, int line, const char* condition, fmt::string_view format,
                                 fmt::format_args args);
}  // namespace detail

// Throws a user's error of the given kind; the message is a fmt format string with its arguments.
template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  detail::throw_error(kind, format, fmt::make_format_args(args...));
}

// An argument has a value that it must not have (ValueError in Python).
template <class... Args>
[[noreturn]] void fail_value(fmt::format_string<Args...> format, Args&&... args) {
  detail::throw_error(ErrorKind::kValue, format, fmt::make_format_args(args...));
}

// An argument is of a wrong type or dtype (TypeError).
template <class... Args>
[[noreturn]] void fail_type(fmt::format_string<Args...> format, Args&&... args) {
  detail::throw_error(ErrorKind::kType, format, fmt::make_format_args(args...));
}

// The call cannot be done as things are (RuntimeError).
template <class... Args>
[[noreturn]] void fail_runtime(fmt::format_string<Args...> format, Args&&... args) {
  detail::throw_error(ErrorKind::kRuntime, format, fmt::make_format_args(args...));
}

// A placement, sbp or device does not fit (ErrorKind::kLayout).
template <class... Args>
[[noreturn]] void fail_layout(fmt::format_string<Args...> format, Args&&... args) {
  detail::throw_error(ErrorKind::kLayout, format, fmt::make_format_args(args...));
}

// For HOLON_CHECK.
template <class... Args>
[[noreturn]] void internal_error(const char* file, int line, const char* condition, fmt::format_string<Args...> format,
                                 Args&&... args) {
  detail::throw_internal(file, line, condition, format, fmt::make_format_args(args...));
}

}  // namespace holon

// Values with a str() can be in messages as they are (fmt/ranges.h would make that ambiguous: it is not used).
template <holon::Printable T>
struct fmt::formatter<T> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  template <class C>
  auto format(const T& value, C& context) const {
    const std::string text = value.str();
    return std::copy(text.begin(), text.end(), context.out());
  }
};

// A promise inside Holon: when it is broken the fault is ours, and the message says so.
#define HOLON_CHECK(condition, ...)                                         \
  do {                                                                      \
    if (!(condition)) [[unlikely]]                                          \
      ::holon::internal_error(__FILE__, __LINE__, #condition, __VA_ARGS__); \
  } while (0)
