// Ops from outside the tree: a shared library whose HOLON_OP declarations join the registry when it is loaded. (What it
// exports to Python besides: holon/exports/python.h.)
#pragma once

#include <string>
#include <vector>

namespace holon {

// Loads a user's op library and returns the names of the ops that it declares, none if it only exports to Python; a
// library that is loaded already gives its names again. Its ops are then found by name (call(), Python's holon.name),
// take part in dispatch, gradients and sharding like those of Holon, and stay for the life of the process. Not
// collective: every rank loads it by itself, and ranks that are threads of one process share it. Errors (RuntimeError):
// no such file, no shared library, or undefined names in it; a library built against another version of Holon; a
// declaration that is wrong or whose name is taken. None of its ops exists then.
std::vector<std::string> load_library(const std::string& path);

}  // namespace holon
