// Compilation while the program runs, by the host's compiler: the source becomes a library whose kernel runs on fibers.
//
// EMULATED_COMPILER=0       there is no compiler, as on a machine without NVRTC
// EMULATED_COMPILER=broken  none accepts anything
// EMULATED_KERNELS=FOLDER   where processes of one build share what they compile; else each has its own folder
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <sstream>
#include <string_view>
#include <vector>

#include "emulator.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/kernels/cuda/rtc.h"
#include "holon/kernels/cuda/stream.h"

namespace holon::kernels::cuda {
namespace {

namespace fs = std::filesystem;

std::string setting(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

void write(const fs::path& path, std::string_view text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

constexpr const char* kPrelude = "holon/kernels/cuda/chain_device.h";

std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Of one process at a time; also of one that ends while it has it.
class FileLock {
 public:
  explicit FileLock(const fs::path& path) : file_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    if (file_ < 0 || flock(file_, LOCK_EX) != 0) fail_runtime("{} cannot be locked", path.string());
  }
  ~FileLock() { close(file_); }

 private:
  int file_;
};

void run_compiler(const fs::path& folder, const std::string& arguments, const fs::path& output);

// With the headers in it, which are compiled once. The process's own is removed at its end.
struct Folder {
  fs::path path = setting("EMULATED_KERNELS");
  const bool own = path.empty();
  Folder() {
    if (own) {
      std::string name = (fs::temp_directory_path() / "holon_emulated_XXXXXX").string();
      if (!mkdtemp(name.data())) fail("a folder for compiled kernels cannot be made");
      path = name;
    }
    fs::create_directories(path);
    FileLock lock(path / "lock");
    const fs::path prelude = path / kPrelude, compiled = prelude.string() + ".gch";
    if (fs::exists(compiled)) return;
    for (auto& h : embedded_headers()) write(path / h.name, h.text);
    run_compiler(path, "-x c++-header " + prelude.string(), compiled);
  }
  ~Folder() {
    std::error_code error;
    if (own) fs::remove_all(path, error);
  }
};
Folder& folder() {
  static Folder f;
  return f;
}

// What was compiled, and how often all of that was launched: for tests.
std::mutex mutex;
std::deque<std::string>& sources() {
  static auto* all = new std::deque<std::string>;
  return *all;
}
std::atomic<int64_t> launches{0};

using Entry = void(emulator::Thread* thread, const void* arguments);

// The output appears when it is whole. Errors: what the compiler says.
void run_compiler(const fs::path& folder, const std::string& arguments, const fs::path& output) {
  const std::string f = folder.string(), made = fmt::format("{}.{}", output.string(), getpid()), log = made + ".log";
  const std::string command = fmt::format("{} -std=c++20 -fPIC -fvisibility=hidden {} -DHOLON_EMULATED "
                                          "-DHOLON_ISA=isa_cuda -Wno-unknown-pragmas -w -I{} -I{} -I{} -I{} {} -o {} "
                                          ">{} 2>&1",
                                          EMULATED_CXX, EMULATED_FLAGS, f, EMULATED_INCLUDE, EMULATED_ROOT,
                                          EMULATED_GENERATED, arguments, made, log);
  if (std::system(command.c_str()) != 0) fail_runtime("{} fails: {}", command, read(log));
  fs::rename(made, output);
  fs::remove(log);
}

}  // namespace

const std::string& why_no_compiler() {
  static const std::string why =
      setting("EMULATED_COMPILER") == "0" ? "there is no compiler (EMULATED_COMPILER=0)" : "";
  return why;
}

RunTimeKernel compile_kernel(const std::string& source, const char* name) {
  if (setting("EMULATED_COMPILER") == "broken") fail_runtime("the compiler accepts nothing (EMULATED_COMPILER=broken)");
  std::lock_guard lock(mutex);
  sources().push_back(source);
  const std::string stem = fmt::format("chain_{:016x}", std::hash<std::string>()(source));
  const std::string base = (folder().path / stem).string();
  {
    FileLock others(base + ".lock");
    if (!fs::exists(base + ".so")) {
      write(base + ".cu", source);
      // The kernel on the thread that runs a fiber.
      write(base + ".cpp",
            fmt::format(R"(#include "{}"
#include "{}.cu"
namespace emulator {{ thread_local Thread* current = nullptr; }}
extern "C" __attribute__((visibility("default"))) void entry(emulator::Thread* thread, const void* arguments) {{
  emulator::current = thread;
  holon::kernels::cuda::{}(*static_cast<const holon::kernels::cuda::Arguments*>(arguments));
}}
)",
                        kPrelude, stem, name));
      run_compiler(folder().path,
                   fmt::format("-shared {}.cpp -L{} -Wl,-rpath,{} -lholon", base, EMULATED_LIBRARIES,
                               EMULATED_LIBRARIES),
                   base + ".so");
    } else if (read(base + ".cu") != source) {
      fail_runtime("another kernel than {}.cu has its name", base);
    }
  }
  void* module = dlopen((base + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
  void* entry = module ? dlsym(module, "entry") : nullptr;
  if (!entry) fail_runtime("a compiled kernel cannot be loaded: {}", dlerror());
  return entry;
}

void launch_kernel(RunTimeKernel kernel, unsigned blocks, unsigned threads, const void* arguments, size_t bytes) {
  std::vector<std::byte> copy(bytes);
  std::memcpy(copy.data(), arguments, bytes);
  ++launches;
  auto* entry = reinterpret_cast<Entry*>(const_cast<void*>(kernel));
  auto work = [=, copy = std::move(copy)] {
    emulator::run_grid(blocks, threads, 0, [&] { entry(emulator::current, copy.data()); });
  };
  emulator::enqueue(stream(), std::move(work), {"chain", kernel});
}

}  // namespace holon::kernels::cuda

extern "C" int64_t emulated_chain_launches() { return holon::kernels::cuda::launches; }
// The source that was compiled as the i-th in this process, nullptr beyond the last.
extern "C" const char* emulated_chain_source(int64_t i) {
  namespace here = holon::kernels::cuda;
  std::lock_guard lock(here::mutex);
  return static_cast<size_t>(i) < here::sources().size() ? here::sources()[static_cast<size_t>(i)].c_str() : nullptr;
}
