// Numbers about tensors, put together from what each rank finds in its part.
#pragma once

#include <span>

#include "holon/global/spec.h"

namespace holon::optim {

enum class Combine : uint8_t { kSum, kLargest, kSmallest };

// values holds `width` numbers for each of specs: of this rank's part of a tensor of that layout (whatever is there
// on ranks without a part is not read); nullptr: a local tensor, whose numbers stay. They become the whole tensor's:
// every element counts once, and every rank gets the same bits. everywhere: on all ranks of the world, else on those of
// the placement. Collective. Pre: no layout has a partial sum.
void combine_over_ranks(std::span<const GlobalSpec* const> specs, int width, Combine how, bool everywhere,
                        std::span<double> values);

// Whether what the index-th rank of the placement has counts: of broadcast copies the first one does.
bool counts_once(const GlobalSpec& spec, int index);

}  // namespace holon::optim
