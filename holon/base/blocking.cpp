#include "holon/base/blocking.h"

namespace holon {

namespace {
BlockingHooks hooks;
}

void set_blocking_hooks(BlockingHooks h) { hooks = h; }
const BlockingHooks& blocking_hooks() { return hooks; }

}  // namespace holon
