# -DHOLON_SANITIZE=address,undefined or thread. ThreadSanitizer knows what OpenMP's threads wait for only from LLVM's
# runtime, through archer: the compiler is clang then.
set(HOLON_SANITIZE "" CACHE STRING "Sanitizers to build with")
if(HOLON_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  get_filename_component(llvm_bin "${CMAKE_CXX_COMPILER}" REALPATH)
  get_filename_component(llvm_bin "${llvm_bin}" DIRECTORY)
  find_library(HOLON_ARCHER archer HINTS ${llvm_bin}/../lib DOC "What tells ThreadSanitizer of OpenMP's barriers")
  if(NOT HOLON_ARCHER)
    message(FATAL_ERROR "ThreadSanitizer needs libarcher.so of the compiler's OpenMP (Debian: libomp-19-dev)")
  endif()
endif()
if(HOLON_SANITIZE)
  add_compile_options(-fsanitize=${HOLON_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${HOLON_SANITIZE})
  add_compile_definitions(HOLON_CHECK_INDICES)  # base/index.h
endif()
