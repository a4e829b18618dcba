// The integers of C++, in constraints.
#pragma once

#include <concepts>

namespace holon {

// An integer, but neither a truth value nor a character.
template <class T>
concept Integer = std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char> && !std::same_as<T, wchar_t> &&
    !std::same_as<T, char8_t> && !std::same_as<T, char16_t> && !std::same_as<T, char32_t>;

}  // namespace holon
