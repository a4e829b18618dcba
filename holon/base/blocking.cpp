#include "holon/base/blocking.h"

namespace holon {

namespace {
BlockingHooks hooks;
thread_local bool on_its_own = false;
}  // namespace

void set_blocking_hooks(BlockingHooks h) { hooks = h; }
const BlockingHooks& blocking_hooks() {
  static constexpr BlockingHooks kNone;
  return on_its_own ? kNone : hooks;
}
void leave_host_language() { on_its_own = true; }

}  // namespace holon
