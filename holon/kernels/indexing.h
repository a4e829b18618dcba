// Reading and writing by several index arrays at once, and writing to windows: what x[...] comes down to.
#pragma once

#include <span>
#include <string_view>

#include "holon/array/array.h"
#include "holon/kernels/index.h"

namespace holon::kernels {

// The indices name elements of the neighbouring axes from `axis` on, one array for each; they broadcast to one shape
// [b...], which takes the axes' place in out (and in value). parts[k]: what x holds of axis + k. Negative indices count
// from the end if wrap. Errors: an index out of range (IndexError) with its value, position, range and axis, behind
// prefix.
//
// out [pre..., b..., post...] = x at the indices; zero where x does not hold it.
void index_axes(const Array& x, int axis, std::span<const Array* const> indices, std::span<const AxisPart> parts,
                bool wrap, Array& out, std::string_view prefix = {});
// x at the indices = (or +=) value [pre..., b..., post...], one after the other; what x does not hold is left out.
void index_put_axes(Array& x, int axis, std::span<const Array* const> indices, std::span<const AxisPart> parts,
                    bool wrap, bool accumulate, const Array& value, std::string_view prefix = {});

// Every steps[a]-th of sizes[a] elements from starts[a] on, along each axis of the logical x = value, of the shape
// sizes. x holds the logical elements from offset on; an axis of value holds those of the window's elements from
// value_offset on.
void window_put(Array& x, const Dims& offset, std::span<const int64_t> starts, std::span<const int64_t> steps,
                std::span<const int64_t> sizes, const Array& value, const Dims& value_offset);

}  // namespace holon::kernels
