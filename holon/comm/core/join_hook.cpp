#include "holon/comm/core/join_hook.h"

namespace holon::comm {

namespace {
using Hook = void (*)(const Joined&);
constinit Hook the_hook = nullptr;  // there before any static object wants to set it
}  // namespace

void set_join_hook(void (*hook)(const Joined&)) { the_hook = hook; }

void run_join_hook(const Joined& joined) {
  if (the_hook) the_hook(joined);
}

}  // namespace holon::comm
