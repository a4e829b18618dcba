# Copies what libholon.so and the modules beside it need there, so that a wheel runs where none of these packages is installed. glibc and the
# compiler's own run time stay the system's, as everywhere on the package index: two libstdc++ in one process do not mix.
file(GET_RUNTIME_DEPENDENCIES LIBRARIES ${libraries} RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR missing
     PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|gcc_s)\\.so" "^libstdc\\+\\+\\.so" "^libholon\\.so")
if(missing)
  message(FATAL_ERROR "the libraries need ${missing}, found nowhere: install their packages")
endif()
# A library that is loaded by itself has no run path of the extension's to inherit.
find_program(patchelf patchelf)
set(destination "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${folder}")
file(MAKE_DIRECTORY "${destination}")
foreach(path ${found})
  get_filename_component(name "${path}" NAME)  # the name it is asked for by; wheels hold no links
  file(REAL_PATH "${path}" real)
  message(STATUS "Bundling ${name}")
  file(COPY_FILE "${real}" "${destination}/${name}")
  if(patchelf)
    file(CHMOD "${destination}/${name}" PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
    execute_process(COMMAND ${patchelf} --force-rpath --set-rpath $ORIGIN "${destination}/${name}" COMMAND_ERROR_IS_FATAL ANY)
  endif()
  # Its licence goes along. dpkg names the package by the path that it has installed, with or without the /usr before.
  string(REGEX REPLACE "^/usr" "" short "${real}")
  foreach(candidate "${real}" "${short}")
    execute_process(COMMAND dpkg -S "${candidate}" OUTPUT_VARIABLE owner ERROR_QUIET RESULT_VARIABLE unknown)
    string(REGEX REPLACE ":.*" "" package "${owner}")
    if(NOT unknown AND EXISTS "/usr/share/doc/${package}/copyright")
      file(COPY_FILE "/usr/share/doc/${package}/copyright" "${destination}/${name}.copyright")
      break()
    endif()
  endforeach()
endforeach()
