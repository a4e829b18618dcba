// Compilation by NVRTC, which is looked for at the first chain: programs without it, and builds without its header, run
// the ops of a chain one by one.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <vector>

#include "holon/array/vendor_library.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/kernels/cuda/capability.h"
#include "holon/kernels/cuda/rtc.h"
#include "holon/kernels/cuda/stream.h"

#if __has_include(<nvrtc.h>) && CUDART_VERSION >= 12080
#include <nvrtc.h>

namespace holon::kernels::cuda {
namespace {

#define HOLON_NVRTC_CALLS(call)                                                                              \
  call(GetErrorString) call(CreateProgram) call(DestroyProgram) call(CompileProgram) call(GetProgramLogSize) \
      call(GetProgramLog) call(GetCUBINSize) call(GetCUBIN)

struct Library {
  std::string missing;
#define HOLON_NVRTC_POINTER(name) decltype(&nvrtc##name) name = nullptr;
  HOLON_NVRTC_CALLS(HOLON_NVRTC_POINTER)

  Library() {
    const VendorLibrary found = vendor_library(fmt::format("libnvrtc.so.{}", CUDART_VERSION / 1000));
    void* module = found.handle;
    if (!module) {
      missing = found.missing;
      return;
    }
#define HOLON_NVRTC_FIND(name)                                           \
  name = reinterpret_cast<decltype(name)>(dlsym(module, "nvrtc" #name)); \
  if (!name) missing = "libnvrtc has no nvrtc" #name "; a newer one is needed";
    HOLON_NVRTC_CALLS(HOLON_NVRTC_FIND)
  }
};

const Library& library() {
  static const auto* l = new Library;
  return *l;
}

void check(nvrtcResult result, const char* call) {
  if (result != NVRTC_SUCCESS) fail_runtime("NVRTC reports {} at {}", library().GetErrorString(result), call);
}

}  // namespace

const std::string& why_no_compiler() { return library().missing; }

std::string machine_code(const std::string& source, int capability, const char* option, std::string* log) {
  const Library& l = library();
  std::vector<const char*> names{"cstdint"},
      texts{"#pragma once\nusing int8_t = signed char; using int16_t = short; using int32_t = int; using int64_t = "
            "long;\n"
            "using uint8_t = unsigned char; using uint16_t = unsigned short; using uint32_t = unsigned; using uint64_t "
            "= unsigned long;\n"};
  for (auto& h : embedded_headers()) names.push_back(h.name), texts.push_back(h.text);
  struct Program {
    nvrtcProgram p = nullptr;
    ~Program() {
      if (p) library().DestroyProgram(&p);
    }
  } program;
  check(l.CreateProgram(&program.p, source.c_str(), "holon_chain.cu", static_cast<int>(names.size()), texts.data(),
                        names.data()),
        "nvrtcCreateProgram");
  // Numbers are rounded as in the kernels of single ops (CMakeLists.txt).
  const std::string architecture = fmt::format("--gpu-architecture=sm_{}", capability);
  std::vector<const char*> options{architecture.c_str(), "--std=c++20",      "--fmad=false",        "--ftz=false",
                                   "--prec-div=true",    "--prec-sqrt=true", "-DHOLON_ISA=isa_cuda"};
  if (option) options.push_back(option);
  const nvrtcResult result = l.CompileProgram(program.p, static_cast<int>(options.size()), options.data());
  size_t size = 0;
  std::string said;
  if (l.GetProgramLogSize(program.p, &size) == NVRTC_SUCCESS) said.resize(size);
  if (!said.empty()) l.GetProgramLog(program.p, said.data());
  if (result != NVRTC_SUCCESS)
    fail_runtime("NVRTC reports {} for sm_{}: {}", l.GetErrorString(result), capability, said.c_str());
  if (log) *log = said.c_str();
  check(l.GetCUBINSize(program.p, &size), "nvrtcGetCUBINSize");
  std::string image(size, '\0');
  check(l.GetCUBIN(program.p, image.data()), "nvrtcGetCUBIN");
  return image;
}

RunTimeKernel compile_kernel(const std::string& source, const char* name) {
  const std::string image = machine_code(source, compute_capability());
  // It is loaded for all devices, and during a recording that may be in progress.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  cudaLibrary_t loaded = nullptr;
  cudaKernel_t kernel = nullptr;
  cudaError_t error = cudaLibraryLoadData(&loaded, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (error == cudaSuccess) error = cudaLibraryGetKernel(&kernel, loaded, name);
  cudaThreadExchangeStreamCaptureMode(&mode);
  if (error != cudaSuccess) {
    cudaGetLastError();
    fail_runtime("a compiled chain cannot be loaded: {}", cudaGetErrorString(error));
  }
  return kernel;
}

void launch_kernel(RunTimeKernel kernel, unsigned blocks, unsigned threads, const void* arguments, size_t) {
  void* parameters[] = {const_cast<void*>(arguments)};
  check(cudaLaunchKernel(kernel, dim3(blocks), dim3(threads), parameters, 0, stream()), "cudaLaunchKernel");
}

}  // namespace holon::kernels::cuda
#else

namespace holon::kernels::cuda {

const std::string& why_no_compiler() {
  static const auto* why = new std::string("this build was made without NVRTC of CUDA 12.8 or newer");
  return *why;
}
RunTimeKernel compile_kernel(const std::string&, const char*) { fail_runtime("{}", why_no_compiler()); }
void launch_kernel(RunTimeKernel, unsigned, unsigned, const void*, size_t) {}

}  // namespace holon::kernels::cuda
#endif
