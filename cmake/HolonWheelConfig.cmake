# find_package(Holon) where Holon is a Python package: its folder is the prefix.
#   cmake -DCMAKE_PREFIX_PATH=$(python -c "import holon; print(holon.__path__[0])") ...
get_filename_component(holon_package "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET Holon::holon)
  file(GLOB holon_library "${holon_package}/lib/libholon.so.*")
  add_library(Holon::holon SHARED IMPORTED)
  target_compile_features(Holon::holon INTERFACE cxx_std_20)
  target_include_directories(Holon::holon INTERFACE "${holon_package}/include")
  set_target_properties(Holon::holon PROPERTIES IMPORTED_LOCATION "${holon_library}")
  add_executable(Holon::launch IMPORTED)
  set_target_properties(Holon::launch PROPERTIES IMPORTED_LOCATION "${holon_package}/bin/holon-launch")
endif()
