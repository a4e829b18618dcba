// What graphs and front ends in other languages need of a module beyond its public class.
#pragma once

#include <cstdint>
#include <string>
#include <typeinfo>
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
  // Whether an object of that very class, which derives from Layer of itself, has registered the parameter.
  static bool has_parameter_of(const Module& module, const std::string& name, const std::type_info& layer);
  struct NamedBuffer {
    std::string name;
    Tensor tensor;
    bool persistent;
  };
  static std::vector<NamedBuffer> buffers(const Module& module);
};

}  // namespace holon::nn::detail
