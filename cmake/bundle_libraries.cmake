# Copies what libholon.so needs beside it, so that a wheel runs where none of these packages is installed. glibc and the
# compiler's own run time stay the system's, as everywhere on the package index: two libstdc++ in one process do not mix.
file(GET_RUNTIME_DEPENDENCIES LIBRARIES "${library}" RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR missing
     PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|gcc_s)\\.so" "^libstdc\\+\\+\\.so")
if(missing)
  message(FATAL_ERROR "libholon.so needs ${missing}, found nowhere: install their packages")
endif()
set(destination "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${folder}")
file(MAKE_DIRECTORY "${destination}")
foreach(path ${found})
  get_filename_component(name "${path}" NAME)  # the name it is asked for by; wheels hold no links
  file(REAL_PATH "${path}" real)
  message(STATUS "Bundling ${name}")
  file(COPY_FILE "${real}" "${destination}/${name}")
endforeach()
