// Pulls between arrays, wherever their memory is: the host's, devices' of one type, or some of each.
#pragma once

#include <optional>
#include <span>

#include "holon/array/array.h"
#include "holon/comm/core/communicator.h"

namespace holon::boxing {

// Collective among `ranks`, which find their pulls in `pulls`. in: this rank's part, undefined where it has none; out:
// what it pulls into, row-major, undefined where it pulls nothing; what no pull is for stays as it is. devices: this
// rank's, where all parts and results are on devices of one type; data then moves between these if they have a way to
// each other, else through the hosts' memory. Errors: as Communicator::pull().
void exchange(std::span<const int> ranks, const comm::CallInfo& info, const comm::GroupPulls& pulls,
              std::optional<Device> devices, const Array& in, const Array& out);

// The same for the kernel of an op, which a trace shows as boxing, with what this rank reads from others.
void exchange_inside(std::span<const int> ranks, const comm::CallInfo& info, const comm::GroupPulls& pulls,
                     std::optional<Device> devices, const Array& in, const Array& out);

}  // namespace holon::boxing
