// What launches ask for: a limit on shared memory, and a list of them. And what kernels ask of it: conflicts of banks.
#include <dlfcn.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <mutex>

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

std::atomic<int64_t> matrices_loaded{0}, matrices_in_conflict{0};

}  // namespace

void note_matrix(const void* const (&rows)[8]) {
  // A row is 16 bytes: four of the 32 banks.
  unsigned groups = 0;
  for (const void* row : rows) groups |= 1u << (reinterpret_cast<uintptr_t>(row) / 16 % 8);
  matrices_loaded.fetch_add(1, std::memory_order_relaxed);
  if (groups != 0xff) matrices_in_conflict.fetch_add(1, std::memory_order_relaxed);
}

size_t shared_bytes_of_block() { return most_shared(); }

void note_launch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes) {
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

extern "C" {
void emulated_shared_kb(int kb) { emulator::most_shared() = static_cast<size_t>(kb) << 10; }
// Since the last call: matrices that were loaded from shared memory, and those of which two rows lie in one bank.
void emulated_matrices(int64_t* loaded, int64_t* in_conflict) {
  *loaded = emulator::matrices_loaded.exchange(0);
  *in_conflict = emulator::matrices_in_conflict.exchange(0);
}
// The file is begun anew; null or "": no more.
void emulated_launches(const char* path) { emulator::list().write_to(path); }
}
