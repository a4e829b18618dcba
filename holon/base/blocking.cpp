#include "holon/base/blocking.h"

namespace holon {

namespace {
BlockingHooks hooks;
constinit thread_local bool without = false;
}

void set_blocking_hooks(BlockingHooks h) { hooks = h; }
const BlockingHooks& blocking_hooks() {
  static const BlockingHooks none;
  return without ? none : hooks;
}
void set_no_blocking_hooks_on_this_thread() { without = true; }

}  // namespace holon
