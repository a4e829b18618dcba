// holon-describe-ops [LIBRARY...]: prints what the declarations of all ops say, as JSON; those of op libraries, too.
#include <cstdio>
#include <exception>

#include "holon/registry/describe.h"
#include "holon/registry/library.h"

int main(int argc, char** argv) try {
  for (int i = 1; i < argc; ++i) holon::load_library(argv[i]);
  std::puts(holon::describe_ops().c_str());
  return std::fflush(stdout) == 0 ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "holon-describe-ops: %s\n", e.what());
  return 1;
}
