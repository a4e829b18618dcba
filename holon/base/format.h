// Text from a format string and its arguments, in fmt's syntax, without fmt's headers: format strings are checked when
// they are compiled, and one source file formats.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "holon/base/print.h"

namespace holon {

namespace detail {

// One argument: a number, a bool, a character, text, an address, or a value with a str(). Valid as long as the value.
class FormatArg {
 public:
  enum class Kind : uint8_t { kInt, kUnsigned, kFloat, kDouble, kBool, kChar, kText, kAddress, kPrintable };

  template <class T>
  static constexpr Kind kind_of() {
    if constexpr (std::same_as<T, bool>) {
      return Kind::kBool;
    } else if constexpr (std::same_as<T, char>) {
      return Kind::kChar;
    } else if constexpr (std::integral<T>) {
      return std::is_signed_v<T> ? Kind::kInt : Kind::kUnsigned;
    } else if constexpr (std::floating_point<T>) {
      return std::same_as<T, float> ? Kind::kFloat : Kind::kDouble;
    } else if constexpr (Printable<T>) {
      return Kind::kPrintable;
    } else if constexpr (std::convertible_to<const T&, std::string_view>) {
      return Kind::kText;
    } else {
      static_assert(std::same_as<T, void*> || std::same_as<T, const void*>,
                    "a message takes numbers, text, addresses (void*) and values with a str()");
      return Kind::kAddress;
    }
  }

  template <class T>
  explicit FormatArg(const T& value) : kind_(kind_of<T>()) {
    constexpr Kind kind = kind_of<T>();
    if constexpr (kind == Kind::kInt)
      int_ = value;
    else if constexpr (kind == Kind::kUnsigned)
      unsigned_ = value;
    else if constexpr (kind == Kind::kFloat || kind == Kind::kDouble)
      double_ = static_cast<double>(value);
    else if constexpr (kind == Kind::kBool || kind == Kind::kChar)
      char_ = static_cast<char>(value);
    else if constexpr (kind == Kind::kText)
      text_ = of(value);
    else if constexpr (kind == Kind::kAddress)
      address_ = value;
    else
      object_ = {&value, [](const void* object) { return static_cast<const T*>(object)->str(); }};
  }

  // Calls f with the value, of the type that its kind names.
  template <class F>
  void visit(F&& f) const {
    switch (kind_) {
      case Kind::kInt: return f(int_);
      case Kind::kUnsigned: return f(unsigned_);
      case Kind::kFloat: return f(static_cast<float>(double_));
      case Kind::kDouble: return f(double_);
      case Kind::kBool: return f(char_ != 0);
      case Kind::kChar: return f(char_);
      case Kind::kText: return f(std::string_view(text_.data, text_.size));
      case Kind::kAddress: return f(address_);
      case Kind::kPrintable: return f(object_.str(object_.value));
    }
  }

 private:
  struct Text {
    const char* data;
    size_t size;
  };
  struct Object {
    const void* value;
    std::string (*str)(const void*);
  };
  static Text of(std::string_view text) { return {text.data(), text.size()}; }

  Kind kind_;
  union {
    int64_t int_;
    uint64_t unsigned_;
    double double_;
    char char_;
    Text text_;
    const void* address_;
    Object object_;
  };
};

// What a format string can have wrong. They are not constant expressions: where the compiler names one of them in an
// error, the string is wrong in that way.
void error_a_brace_of_the_format_string_is_not_closed();
void error_a_field_of_the_format_string_has_no_argument();
void error_an_argument_has_no_field_in_the_format_string();
void error_only_some_fields_of_the_format_string_are_numbered();
void error_the_argument_cannot_be_formatted_like_that();

// What follows the colon of a field: [[fill]align][sign][#][0][width][.precision][type].
consteval void check_format_spec(std::string_view spec, FormatArg::Kind kind) {
  using Kind = FormatArg::Kind;
  const bool floating = kind == Kind::kFloat || kind == Kind::kDouble;
  const bool integer = kind == Kind::kInt || kind == Kind::kUnsigned;
  auto starts_with_any = [&](std::string_view of) { return !spec.empty() && of.find(spec[0]) != of.npos; };
  auto skip_digits = [&] {
    while (starts_with_any("0123456789")) spec.remove_prefix(1);
  };
  if (spec.size() > 1 && (spec[1] == '<' || spec[1] == '>' || spec[1] == '^'))
    spec.remove_prefix(2);
  else if (starts_with_any("<>^"))
    spec.remove_prefix(1);
  while (starts_with_any("+- #0")) {
    if (!integer && !floating) error_the_argument_cannot_be_formatted_like_that();
    spec.remove_prefix(1);
  }
  skip_digits();
  if (starts_with_any(".")) {
    if (!floating && kind != Kind::kText && kind != Kind::kPrintable)
      error_the_argument_cannot_be_formatted_like_that();
    spec.remove_prefix(1);
    skip_digits();
  }
  const std::string_view types = floating ? "aAeEfFgG"
      : integer                           ? "bBcdoxX"
      : kind == Kind::kChar               ? "cd"
      : kind == Kind::kAddress            ? "p"
                                          : "s";
  if (starts_with_any(types)) spec.remove_prefix(1);
  if (!spec.empty()) error_the_argument_cannot_be_formatted_like_that();
}

// Each field has an argument that can be formatted in its way, and each argument a field. Either all fields are
// numbered or none is; no width is an argument.
consteval void check_format(std::string_view format, std::initializer_list<FormatArg::Kind> kinds) {
  uint64_t used = 0;
  size_t fields = 0;
  bool numbered = false;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '{' && format[i] != '}') continue;
    if (i + 1 < format.size() && format[i + 1] == format[i]) {
      ++i;
      continue;
    }
    const size_t end = format[i] == '{' ? format.find_first_of("{}", i + 1) : format.npos;
    if (end == format.npos || format[end] != '}') error_a_brace_of_the_format_string_is_not_closed();
    std::string_view field = format.substr(i + 1, end - i - 1);
    const bool number = !field.empty() && field[0] >= '0' && field[0] <= '9';
    if (fields > 0 && number != numbered) error_only_some_fields_of_the_format_string_are_numbered();
    numbered = number;
    size_t argument = number ? 0 : fields;
    for (; !field.empty() && field[0] >= '0' && field[0] <= '9'; field.remove_prefix(1))
      argument = argument * 10 + static_cast<size_t>(field[0] - '0');
    if (argument >= kinds.size()) error_a_field_of_the_format_string_has_no_argument();
    if (!field.empty() && field[0] != ':') error_the_argument_cannot_be_formatted_like_that();
    if (!field.empty()) check_format_spec(field.substr(1), kinds.begin()[argument]);
    used |= uint64_t{1} << argument;
    ++fields;
    i = end;
  }
  if (used != (uint64_t{1} << kinds.size()) - 1) error_an_argument_has_no_field_in_the_format_string();
}

std::string format_args(std::string_view format, std::initializer_list<FormatArg> args);

}  // namespace detail

// A literal that fits arguments of these types, or does not compile.
template <class... Args>
class FormatString {
 public:
  template <std::convertible_to<std::string_view> S>
  consteval FormatString(const S& text) : text_(text) {
    detail::check_format(text_, {detail::FormatArg::kind_of<Args>()...});
  }
  std::string_view text() const { return text_; }

 private:
  std::string_view text_;
};

// formatted("{} of {:.1f} s", 3, 2.25): "3 of 2.2 s".
template <class... Args>
std::string formatted(FormatString<std::type_identity_t<Args>...> format, const Args&... args) {
  return detail::format_args(format.text(), {detail::FormatArg(args)...});
}

}  // namespace holon
