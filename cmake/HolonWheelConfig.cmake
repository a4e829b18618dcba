# find_package(Holon) where Holon is a Python package: its folder is the prefix.
#   cmake -DCMAKE_PREFIX_PATH=$(python -c "import holon; print(holon.__path__[0])") ...
get_filename_component(holon_package "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET Holon::holon)
  file(GLOB holon_library "${holon_package}/lib/libholon.so.*")
  file(GLOB holon_fmt "${holon_package}/lib/libfmt.so*")
  list(FILTER holon_fmt EXCLUDE REGEX "copyright$")
  add_library(Holon::holon SHARED IMPORTED)
  target_compile_features(Holon::holon INTERFACE cxx_std_20)
  target_compile_definitions(Holon::holon INTERFACE FMT_SHARED)
  target_include_directories(Holon::holon INTERFACE "${holon_package}/include")
  target_link_libraries(Holon::holon INTERFACE "${holon_fmt}")
  set_target_properties(Holon::holon PROPERTIES IMPORTED_LOCATION "${holon_library}")
endif()
