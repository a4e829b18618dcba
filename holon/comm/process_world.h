// Ranks as processes of one host: each maps the arenas of all.
#pragma once

#include <memory>

#include "holon/base/context.h"
#include "holon/comm/core/world.h"

namespace holon::comm {

// Connects to the other ranks of the context's world through the store and maps their memory. Blocks until all have
// come. Errors: see bootstrap/rendezvous.h.
std::shared_ptr<World> join_processes(const Context& context);

}  // namespace holon::comm
