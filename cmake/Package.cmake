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
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libfmt-dev (>= 9)")  # and what the headers include
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "g++, cmake, pkg-config")
include(CPack)
