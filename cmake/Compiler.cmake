# The oldest compilers that take all of Holon's sources. GCC 11 and Clang 16 do not know vectors' shuffles, _Float16 or
# the names of x86-64's levels; Debian has no Clang between 16 and 19.
set(holon_oldest_GNU 12)
set(holon_oldest_Clang 19)
set(holon_oldest ${holon_oldest_${CMAKE_CXX_COMPILER_ID}})
set(holon_found "${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
if(NOT holon_oldest)
  message(WARNING "The compiler ${holon_found}, with which Holon is not tested: GCC from ${holon_oldest_GNU} on and "
                  "Clang from ${holon_oldest_Clang} on are. -DCMAKE_CXX_COMPILER=g++-12 names another")
elseif(CMAKE_CXX_COMPILER_VERSION VERSION_LESS holon_oldest)
  message(FATAL_ERROR "The compiler ${holon_found}, which is too old: Holon is written in C++20 and needs GCC "
                      "${holon_oldest_GNU} or newer, or Clang ${holon_oldest_Clang} or newer. Install one (Debian and "
                      "Ubuntu: apt install g++-12), remove the build folder ${CMAKE_BINARY_DIR}, and name it: "
                      "CXX=g++-12 ./dev build, or cmake -DCMAKE_CXX_COMPILER=g++-12 ...")
endif()
