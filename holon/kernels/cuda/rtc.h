// Kernels that are compiled while the program runs: by NVRTC for devices (vendor_nvrtc.cpp), by the host's compiler for
// the emulator.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace holon::kernels::cuda {

// Headers as a generated source may include them: those of HOLON_CHAIN_HEADERS in CMakeLists.txt.
struct EmbeddedHeader {
  const char* name;  // "holon/kernels/functors.h"
  const char* text;
};
std::span<const EmbeddedHeader> embedded_headers();

// Of no use after an error of the device, as all else; never given back.
using RunTimeKernel = const void*;

// Why nothing can be compiled here; "" where it can.
const std::string& why_no_compiler();
// The kernel of that name (extern "C") in a source, for devices like the current one. Errors (RuntimeError): what the
// compiler says.
RunTimeKernel compile_kernel(const std::string& source, const char* name);
// What NVRTC makes of a source for a compute capability (90 is 9.0), on a machine with or without a device. option: one
// more than those that it is compiled with. log: what the compiler says. Errors: as above.
std::string machine_code(const std::string& source, int capability, const char* option = nullptr,
                         std::string* log = nullptr);
// On the current stream. arguments: the kernel's only parameter, as it is in memory.
void launch_kernel(RunTimeKernel kernel, unsigned blocks, unsigned threads, const void* arguments, size_t bytes);

}  // namespace holon::kernels::cuda
