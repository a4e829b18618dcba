// Windows on other tensors' memory, and what a write into one of them means for the tape: the tensor at the start of
// the chain of views gets a node that puts the new value in its place, and its views are recorded again as views of
// that.
#pragma once

#include "holon/registry/op_def.h"

namespace holon {

// Remembers that the op made a view of its input, which is not recorded in a graph's capture. moved: the input was
// redistributed first, so that the result is not a view of it.
void track_view(const OpDef& op, const Attrs& attrs, const Tensor& input, const Tensor& view, bool moved);

// Whether a tensor is a view whose writes reach the tape. (Not: one that may be a copy on some ranks.)
bool is_tracked_view(const Tensor& t);
// The tensor at the start of its chain of views; undefined if it is not a view.
Tensor base_of(const Tensor& t);

// A tensor that is not a view was written to: records its views again.
void record_views_again(const Tensor& base);
// value was written into a tracked view: records that, if either has a gradient.
void record_write(const Tensor& view, const Tensor& value);

}  // namespace holon
