// What launches ask for: a limit on shared memory, and a list of them. And what kernels ask of it: conflicts of banks.
#include <dlfcn.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "cuda_runtime.h"
#include "emulator.h"

namespace emulator {
namespace {

std::atomic<size_t>& most_shared() {
  static std::atomic<size_t> bytes{[] {
    const char* text = std::getenv("EMULATED_SHARED_KB");
    return static_cast<size_t>(text ? std::atoi(text) : 227) << 10;
  }()};
  return bytes;
}

struct List {
  std::mutex mutex;
  FILE* file = nullptr;
  std::atomic<bool> open = false;

  List() { write_to(std::getenv("EMULATED_LAUNCHES")); }
  void write_to(const char* path) {
    const std::lock_guard lock(mutex);
    if (file) std::fclose(file);
    file = path && *path ? std::fopen(path, "w") : nullptr;
    open = file != nullptr;
  }
};
List& list() {
  static List of_process;
  return of_process;
}

std::atomic<int64_t> matrices_loaded{0}, matrices_in_conflict{0}, products{0}, shared_requests{0};

// The shared memory that kernels have asked for, by device.
struct Allowed {
  std::mutex mutex;
  std::map<std::pair<int, const void*>, size_t> bytes;
};
Allowed& allowed() {
  static Allowed of_process;
  return of_process;
}
size_t& allowed_bytes(Allowed& a, const void* kernel) {
  int device = 0;
  cudaGetDevice(&device);
  return a.bytes[{device, kernel}];
}

}  // namespace

void note_matrix(const void* const (&rows)[8]) {
  // A row is 16 bytes: four of the 32 banks.
  unsigned groups = 0;
  for (const void* row : rows) groups |= 1u << (reinterpret_cast<uintptr_t>(row) / 16 % 8);
  matrices_loaded.fetch_add(1, std::memory_order_relaxed);
  if (groups != 0xff) matrices_in_conflict.fetch_add(1, std::memory_order_relaxed);
}

void note_product() { products.fetch_add(1, std::memory_order_relaxed); }

size_t shared_bytes_of_block() { return most_shared(); }

void note_launch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes) {
  if (shared_bytes > size_t{48} << 10) {
    const std::lock_guard lock(allowed().mutex);
    if (shared_bytes > allowed_bytes(allowed(), kernel)) {
      std::fprintf(stderr, "emulator: a kernel has %zu bytes of shared memory that it has not asked for\n",
                   shared_bytes);
      std::abort();
    }
  }
  List& l = list();
  if (!l.open) return;
  Dl_info module;
  if (dladdr(kernel, &module) == 0) return;
  const std::lock_guard lock(l.mutex);
  if (!l.file) return;
  const auto at = static_cast<const char*>(kernel) - static_cast<const char*>(module.dli_fbase);
  std::fprintf(l.file, "%tx %" PRIu64 " %u %zu\n", at, uint64_t{grid.x} * grid.y * grid.z, block.x * block.y * block.z,
               shared_bytes);
}

}  // namespace emulator

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  const std::lock_guard lock(emulator::allowed().mutex);
  emulator::allowed_bytes(emulator::allowed(), kernel) = static_cast<size_t>(value);
  emulator::shared_requests.fetch_add(1, std::memory_order_relaxed);
  return cudaSuccess;
}

extern "C" {
void emulated_shared_kb(int kb) { emulator::most_shared() = static_cast<size_t>(kb) << 10; }
// Since the last call: matrices that were loaded from shared memory, and those of which two rows lie in one bank.
void emulated_matrices(int64_t* loaded, int64_t* in_conflict) {
  *loaded = emulator::matrices_loaded.exchange(0);
  *in_conflict = emulator::matrices_in_conflict.exchange(0);
}
// Since the last call: products of matrices that warps have done, each of 16 x 8 x 16.
int64_t emulated_products() { return emulator::products.exchange(0); }
// Since the last call: how often a kernel has asked for shared memory.
int64_t emulated_shared_requests() { return emulator::shared_requests.exchange(0); }
// The file is begun anew; null or "": no more.
void emulated_launches(const char* path) { emulator::list().write_to(path); }
}
