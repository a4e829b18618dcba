// The textbook schedules with one call each, for stages on devices in turn. make_schedule() makes the same by name, and
// knows any mapping. Errors (ValueError): no stages, devices or micro-batches.
#pragma once

#include "holon/graph/schedule/schedule.h"

namespace holon::graph {

// All forwards, then all backwards. A stage holds the activations of all micro-batches.
// https://arxiv.org/abs/1811.06965
Schedule gpipe(int stages, int micro_batches, bool training = true);

// Warm-up, then a forward and a backward in turn, then cool-down: stage s of p holds the activations of at most
// min(p - s, micro_batches). https://arxiv.org/abs/2104.04473
Schedule one_f_one_b(int stages, int micro_batches, bool training = true);

// 1F1B with devices * chunks_per_device stages, stage s on device s mod devices, which makes the bubble smaller by
// chunks_per_device. Device d of p with v > 1 chunks holds the activations of at most (v - 1) p + 2 (p - 1 - d) + 1
// pairs of a stage and a micro-batch. Any number of micro-batches: where p does not divide it, a list schedule within
// the same bound. https://arxiv.org/abs/2104.04473
Schedule interleaved_1f1b(int devices, int chunks_per_device, int micro_batches);

// ZB-H1: 1F1B whose W wait, so that B come earlier and W fill the cool-down. A stage holds what W needs of at most
// min(stages, micro_batches) micro-batches, the peak of 1F1B, which there only stage 0 has.
// https://arxiv.org/abs/2401.10241
Schedule zero_bubble_h1(int stages, int micro_batches);

}  // namespace holon::graph
