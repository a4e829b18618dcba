# cpack: one Debian package with what `cmake --install` installs (./dev package). Library and headers are not divided: there is no repository
# from which apt could fetch the second part. Programs are linked to libholon.so by a version of its ABI, so both can be upgraded together.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME holon-dev)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR Holon)
set(CPACK_PACKAGE_CONTACT "The Holon authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Deep learning with global tensors, in C++20")
set(CPACK_PACKAGE_DESCRIPTION "Holon's shared library, headers and launcher. A program sees one logical tensor, and each rank holds a part of it.
CMake finds it by find_package(Holon), other build systems by pkg-config.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # the libraries that the binaries need
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "g++, cmake, pkg-config")
# For packages of programs: which releases of this one have the same ABI. And the loader's cache is brought up to date.
math(EXPR next "${PROJECT_VERSION_MAJOR} + 1")
if(PROJECT_VERSION_MAJOR EQUAL 0)
  math(EXPR next "${PROJECT_VERSION_MINOR} + 1")
  set(next 0.${next})
endif()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/debian/shlibs CONTENT
     "libholon ${HOLON_ABI} holon-dev (>= ${PROJECT_VERSION}), holon-dev (<< ${next}~)\n")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/debian/triggers CONTENT "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/shlibs ${PROJECT_BINARY_DIR}/debian/triggers)
include(CPack)
