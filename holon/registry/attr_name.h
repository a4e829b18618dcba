// An attribute's name in the functions of a declaration, c.i("dim"_attr): a number, given when the library that reads
// it is loaded, by which each op finds the attribute's place without a search. load_library() refuses a library that
// reads a name that no op has.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace holon {

class AttrName {
 public:
  int number() const { return number_; }
  const std::string& text() const;
  // The same for a text that is only known now.
  static AttrName of(std::string_view text);
  // As of(), and remembers that somebody reads it.
  static AttrName read(std::string_view text);
  // All that read() was called for.
  static std::vector<std::string> all_read();

 private:
  explicit AttrName(int number) : number_(number) {}
  int number_;
};

namespace detail {

template <size_t N>
struct FixedText {
  consteval FixedText(const char (&literal)[N]) {
    for (size_t i = 0; i < N; ++i) text[i] = literal[i];
  }
  constexpr std::string_view view() const { return {text, N - 1}; }
  char text[N];
};

template <FixedText kText>
inline const AttrName attr_name = AttrName::read(kText.view());

}  // namespace detail

template <detail::FixedText kText>
AttrName operator""_attr() {
  return detail::attr_name<kText>;
}

}  // namespace holon
