# What `cmake --install` puts where. A program calls find_package(Holon) and links Holon::holon. In a wheel (SKBUILD)
# everything is inside the Python package, together with the libraries that it needs (bundle_libraries.cmake).
include(CMakePackageConfigHelpers)
get_property(networks GLOBAL PROPERTY HOLON_NETWORKS)
# Headers that only Holon's own sources include. The others include no library's but those of C++ and of the system
# (tools/check_headers.py), so that programs need none.
set(HOLON_PRIVATE_HEADERS "_body\\.h$|/holon/(base/fmt|checkpoint/core/json|comm/hosts/net/ucx/[a-z_]+|kernels/cpu/onednn)\\.h$")

if(SKBUILD)
  install(TARGETS holon LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_SKIP)
  set(libraries $<TARGET_FILE:holon>)
  foreach(network ${networks})
    install(TARGETS ${network} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    list(APPEND libraries $<TARGET_FILE:${network}>)
  endforeach()
  install(CODE "set(libraries \"${libraries}\")\nset(folder \"${CMAKE_INSTALL_LIBDIR}\")")
  install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/bundle_libraries.cmake)
  # For op libraries that users compile (holon.utils.cpp_extension).
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/holon ${PROJECT_BINARY_DIR}/generated/holon DESTINATION holon/include
          FILES_MATCHING PATTERN "*.h" REGEX "${HOLON_PRIVATE_HEADERS}" EXCLUDE)
  # And for programs: find_package(Holon) with the package's folder as prefix.
  set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Holon)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/HolonConfigVersion.cmake COMPATIBILITY ${HOLON_COMPATIBILITY})
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/HolonWheelConfig.cmake DESTINATION ${package_folder} RENAME HolonConfig.cmake)
  install(FILES ${PROJECT_BINARY_DIR}/HolonConfigVersion.cmake DESTINATION ${package_folder})
  return()
endif()

install(TARGETS holon EXPORT HolonTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(networks)
  install(TARGETS ${networks} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

install(DIRECTORY ${PROJECT_SOURCE_DIR}/holon ${PROJECT_BINARY_DIR}/generated/holon
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" REGEX "${HOLON_PRIVATE_HEADERS}" EXCLUDE)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Holon)
install(EXPORT HolonTargets NAMESPACE Holon:: DESTINATION ${package_folder})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/HolonConfig.cmake.in ${PROJECT_BINARY_DIR}/HolonConfig.cmake
                              INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/HolonConfigVersion.cmake COMPATIBILITY ${HOLON_COMPATIBILITY})
install(FILES ${PROJECT_BINARY_DIR}/HolonConfig.cmake ${PROJECT_BINARY_DIR}/HolonConfigVersion.cmake
        DESTINATION ${package_folder})
# The build folder is a package as well: cmake -DHolon_DIR=build/dev.
export(EXPORT HolonTargets NAMESPACE Holon:: FILE ${PROJECT_BINARY_DIR}/HolonTargets.cmake)

file(RELATIVE_PATH HOLON_PC_UP /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" HOLON_PC_UP "${HOLON_PC_UP}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/holon.pc.in ${PROJECT_BINARY_DIR}/holon.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/holon.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/holon-dev RENAME copyright)
