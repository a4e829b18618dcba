// Where NVIDIA's libraries are: cuDNN, NCCL, cuBLASLt, NVRTC. They are loaded when they are needed, from the first of
//
//   1. what the loader finds by itself, or has loaded already
//   2. PyPI's packages: nvidia/*/lib in the folders of Python's packages, and in those above this library
//   3. the toolkit: $CUDA_HOME, $CUDA_PATH, then /usr/local/cuda* from the newest on, each with lib64 and lib
//
// A library that needs another one, which the loader does not find, gets that from there, too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace holon {

struct VendorLibrary {
  std::string name;        // the file's, e.g. "libcudnn.so.9"
  void* handle = nullptr;  // as from dlopen; nullptr: it cannot be loaded
  std::string path;        // the file it was loaded from
  std::string missing;     // why it was not, and where it was looked for
};

// Loads it on the first call of a name, and remembers the answer. For any number of threads; never unloaded.
VendorLibrary vendor_library(std::string_view name);
// Those that have been requested, and those of NVIDIA's that the process has loaded without, by name.
std::vector<VendorLibrary> vendor_libraries();

// The folders of Python's packages, in which nvidia/*/lib is looked for from here on. Forgets what was missing.
void set_package_folders(std::vector<std::string> folders);

// Those, and the folders above this library: a package of Python's that holds it is in one of them.
std::vector<std::string> package_folders();

// dlopen of a file whose needs are looked for as above. nullptr with the reason in *why_not.
void* load_with_vendor_libraries(const std::string& path, std::string* why_not);

}  // namespace holon
