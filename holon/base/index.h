// Sizes and indices from integers of any type. Builds without NDEBUG or with HOLON_CHECK_INDICES, as those with
// sanitizers are, check them; in others they are casts.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#if !defined(NDEBUG) && !defined(HOLON_CHECK_INDICES)
#define HOLON_CHECK_INDICES
#endif

namespace holon {

namespace detail {

template <class T>
concept Index = std::integral<T> || std::is_enum_v<T>;

// The [] of maps makes elements.
template <class C>
concept Sequence = !requires {
  typename std::remove_cvref_t<C>::key_type;
};

[[noreturn]] void fail_index(int64_t index, size_t size);
[[noreturn]] void fail_size(int64_t size);

// Errors: an internal error for an index outside [0, size).
constexpr void check_index(Index auto i, size_t size) {
  if (static_cast<uint64_t>(i) >= size) fail_index(static_cast<int64_t>(i), size);
}
// Errors: an internal error for a size below 0.
constexpr void check_size(Index auto n) {
  if (static_cast<int64_t>(n) < 0 && std::is_signed_v<decltype(n)>) fail_size(static_cast<int64_t>(n));
}

}  // namespace detail

// Pre: n >= 0.
constexpr size_t to_size(detail::Index auto n) {
#ifdef HOLON_CHECK_INDICES
  detail::check_size(n);
#endif
  return static_cast<size_t>(n);
}

// c[i], i being an integer or an enumerator. Pre: 0 <= i < the size of c.
template <detail::Sequence C>
constexpr decltype(auto) at_index(C&& c, detail::Index auto i) {
#ifdef HOLON_CHECK_INDICES
  if constexpr (requires { c.size(); })
    detail::check_index(i, static_cast<size_t>(c.size()));
  else if constexpr (std::is_bounded_array_v<std::remove_cvref_t<C>>)
    detail::check_index(i, std::extent_v<std::remove_cvref_t<C>>);
#endif
  return c[static_cast<size_t>(i)];
}

}  // namespace holon
