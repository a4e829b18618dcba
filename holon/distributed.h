// Ranks as threads, what boxing moves, contracts about it, and who holds which part of a tensor.
#pragma once

#include "holon/boxing/events.h"
#include "holon/comm/core/context_handoff.h"
#include "holon/comm/run_ranks.h"
#include "holon/contract/contract.h"
#include "holon/tensor.h"
#include "holon/tensor/visualize.h"

namespace holon {

using boxing::boxing_counters;
using boxing::BoxingPolicyGuard;
using boxing::ParameterPolicyGuard;
using boxing::reset_boxing_counters;
using comm::barrier;
using comm::ContextHandoff;
using comm::run_ranks;

}  // namespace holon
