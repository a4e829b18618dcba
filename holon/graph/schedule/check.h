// Whether a table of tasks is a schedule: every task once, on its device, and in an order that can run.
#pragma once

#include <string>

#include "holon/graph/schedule/schedule.h"

namespace holon::graph {

// Raises a ValueError that names the task, or the cycle ("stage 1 F(2) waits for ..."), unless
// - every (stage, micro-batch, phase) of the schedule is there once, on its stage's device;
// - the forwards of a stage run in the order of micro-batches, and so do its backwards and its weights' gradients. Sums
// of
//   floats depend on their order: with this one, gradients, running statistics and random draws are those of every
//   other schedule, bit for bit. What passes between two stages then also arrives in the order in which it is used;
// - the devices come to an end when each runs its list in order and sends do not wait: F(s, m) runs after F(s-1, m),
//   B(s, m) after F(s, m) and B(s+1, m), W(s, m) after B(s, m).
void check(const Schedule& schedule);

// Whether the devices also come to an end if a send waits until its receiver asks for it, which it does right before
// the task that needs it. 1F1B with several micro-batches does not: neighbours send to each other at once. why: if not
// null, and they do not, receives a sentence about who waits for whom. Errors: those of check.
bool deadlock_free_with_rendezvous(const Schedule& schedule, std::string* why = nullptr);

}  // namespace holon::graph
