#include "holon/kernels/tf32.h"

#include <atomic>

#include "holon/base/settings.h"

namespace holon::kernels {

namespace {

std::atomic<bool>& allowed(Tf32 of) {
  static std::atomic<bool> products{settings::flag("HOLON_TF32")}, convolutions{settings::flag("HOLON_TF32")};
  return of == Tf32::kProducts ? products : convolutions;
}

}  // namespace

bool tf32_allowed(Tf32 of) { return allowed(of).load(std::memory_order_relaxed); }
void allow_tf32(Tf32 of, bool on) { allowed(of) = on; }

}  // namespace holon::kernels
