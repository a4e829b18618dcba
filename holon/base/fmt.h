// fmt for Holon's own sources, with values that have a str(). Not installed: no public header includes it.
#pragma once

#include <fmt/format.h>

#include <string>

#include "holon/base/format.h"

// fmt/ranges.h would make some of them ambiguous: it is not used.
template <holon::Printable T>
struct fmt::formatter<T> : fmt::formatter<std::string> {
  template <class C>
  auto format(const T& value, C& context) const {
    return fmt::formatter<std::string>::format(value.str(), context);
  }
};
