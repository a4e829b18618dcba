// One body of collective tests for ranks of any kind: each function throws a holon::Error if this rank got a wrong
// result.
#pragma once

#include "holon/comm/core/communicator.h"

namespace holon::comm::test {

// Runs every collective over the group on float32 and on `dtype`, at sizes that are inline, at the border and beyond,
// even and uneven, with empty parts.
void check_collectives(Communicator& group, DType dtype);
// Groups inside the world: pairs, all but one, and the whole in reverse order.
void check_subgroups(int rank, int world_size);
// Exact counts of bytes read.
void check_byte_counts(Communicator& group);

}  // namespace holon::comm::test
