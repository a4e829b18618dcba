#include "holon/kernels/cudnn.h"

#include <atomic>

#include "holon/base/settings.h"

namespace holon::kernels {
namespace {

std::atomic<bool>& setting() {
  static std::atomic<bool> enabled{settings::flag("HOLON_CUDNN")};
  return enabled;
}

}  // namespace

bool cudnn_enabled() { return setting().load(std::memory_order_relaxed); }
void enable_cudnn(bool enabled) { setting() = enabled; }

}  // namespace holon::kernels
