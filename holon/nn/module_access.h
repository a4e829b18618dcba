// What graphs and front ends in other languages need of a module beyond its public class.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holon/nn/module.h"

namespace holon::nn::detail {

struct ModuleAccess {
  // How often something was registered or replaced in the module itself.
  static uint64_t changes(const Module& module);
  // The mode of this module, and of none below it.
  static void set_training(const Module& module, bool on);
  // What is registered in the module itself, under every name.
  static StateDict parameters(const Module& module);
  struct NamedBuffer {
    std::string name;
    Tensor tensor;
    bool persistent;
  };
  static std::vector<NamedBuffer> buffers(const Module& module);
};

}  // namespace holon::nn::detail
