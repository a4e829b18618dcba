// The element-wise operations as types: ops::Add::apply<float>(x, y, p0, p1) and so on, for the CPU's vector loops and
// for devices. Compiled for each instruction set, as functors.h.
#pragma once

#include "holon/kernels/elementwise_ops.h"
#include "holon/kernels/functors.h"

namespace holon::kernels::HOLON_ISA::ops {

constexpr int kFloats = 1, kInts = 2, kAll = 3, kDivides = 7;
struct kSame {
  template <class T>
  using type = T;
};
struct kBool {
  template <class T>
  using type = uint8_t;
};

#define HOLON_UNARY_FUNCTOR(name, kinds, result, value)                                                      \
  struct name {                                                                                              \
    static constexpr int types = kinds;                                                                      \
    template <class T>                                                                                       \
    using Out = result::type<T>;                                                                             \
    template <class T>                                                                                       \
    HOLON_FN static Out<T> apply(T x, [[maybe_unused]] T p0, [[maybe_unused]] T p1, [[maybe_unused]] T p2) { \
      return static_cast<Out<T>>(value);                                                                     \
    }                                                                                                        \
  };
HOLON_UNARY_OPS(HOLON_UNARY_FUNCTOR)
#undef HOLON_UNARY_FUNCTOR

#define HOLON_BINARY_FUNCTOR(name, kinds, result, value)                                   \
  struct name {                                                                            \
    static constexpr int types = kinds;                                                    \
    template <class T>                                                                     \
    using Out = result::type<T>;                                                           \
    template <class T>                                                                     \
    HOLON_FN static Out<T> apply(T x, T y, [[maybe_unused]] T p0, [[maybe_unused]] T p1) { \
      return static_cast<Out<T>>(value);                                                   \
    }                                                                                      \
  };
HOLON_BINARY_OPS(HOLON_BINARY_FUNCTOR)
#undef HOLON_BINARY_FUNCTOR

#define HOLON_TERNARY_FUNCTOR(name, kinds, result, value)           \
  struct name {                                                     \
    static constexpr int types = kinds;                             \
    template <class T>                                              \
    using Out = result::type<T>;                                    \
    template <class T>                                              \
    HOLON_FN static T apply(T x, T y, T z, [[maybe_unused]] T p0) { \
      return static_cast<T>(value);                                 \
    }                                                               \
  };
HOLON_TERNARY_OPS(HOLON_TERNARY_FUNCTOR)
#undef HOLON_TERNARY_FUNCTOR

}  // namespace holon::kernels::HOLON_ISA::ops
