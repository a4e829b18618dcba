# GCC 12 finds overlaps, bounds and uninitialised reads in correct code once it has inlined it: those are off.
add_library(holon_warnings INTERFACE)
target_compile_options(holon_warnings INTERFACE -Wall -Wextra -Wno-unused-parameter -Wno-restrict -Wno-array-bounds
                                                -Wno-uninitialized -Wno-maybe-uninitialized -Wno-stringop-overflow
                                                -Wno-stringop-overread -Werror=return-type)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # & and | of bools are meant in kernels: both sides are computed, without a branch.
  set(HOLON_WITHOUT_BRANCHES -Wno-bitwise-instead-of-logical -Wno-bitwise-conditional-parentheses)
  target_compile_options(holon_warnings INTERFACE -Wno-unknown-warning-option -Wno-missing-field-initializers ${HOLON_WITHOUT_BRANCHES})
endif()
option(HOLON_WERROR "Warnings are errors" OFF)
if(HOLON_WERROR)
  target_compile_options(holon_warnings INTERFACE -Werror)
endif()
