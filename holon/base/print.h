// Values with a str(): they go into streams, std::cout << x.shape(), and into messages.
#pragma once

#include <concepts>
#include <iosfwd>
#include <string>
#include <string_view>

namespace holon {

// What has its text as str().
template <class T>
concept Printable = requires(const T& t) {
  { t.str() } -> std::same_as<std::string>;
};

namespace detail {
std::ostream& write(std::ostream& to, std::string_view text);
}

template <Printable T>
std::ostream& operator<<(std::ostream& to, const T& value) {
  return detail::write(to, value.str());
}

}  // namespace holon
