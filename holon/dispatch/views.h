// Windows on other tensors' memory, and what a write into one of them means for the tape: the tensor at the start of
// the chain of views gets a node that puts the new value in its place. Its views are recorded again, as views of that,
// when they are used next.
#pragma once

#include "holon/registry/op_def.h"

namespace holon {

// A tensor that is to hold what the op, a view, makes of the input: nothing yet, but it knows how it was made if writes
// into it are to reach the tape. moved: the input was redistributed first, so that the result is a copy.
// (Views in a graph's capture do not come here.)
Ref<TensorImpl> new_view(const OpDef& op, const Attrs& attrs, const Tensor& input, const Dims& shape, DType dtype,
                         bool moved);
// The op has copied: it is a tensor like any other.
void is_no_view(TensorImpl& made);

// Whether a tensor is a view whose writes reach the tape. (Not: one that may be a copy on some ranks.)
bool is_tracked_view(const Tensor& t);
// The tensor at the start of its chain of views; undefined if it is not a view.
Tensor base_of(const Tensor& t);

// A tensor that is not a view was written to: its views are to be recorded again.
void record_views_again(const Tensor& base);
// value was written into a tracked view: records that, if either has a gradient.
void record_write(const Tensor& view, const Tensor& value);

}  // namespace holon
