// The gradients that updates take, and where they are clipped.
#pragma once

#include <map>

#include "holon/graph/ir/graph.h"

namespace holon::graph {

// By the update and its slot; slots without a gradient are left out.
std::map<GradClip::Of, const Value*> taken_gradients(const Graph& g);

// Where the rank clips these gradients by their norm: optim::clip_device() of them. Pre: they are taken.
Device clip_device(const GradClip& clip, const std::map<GradClip::Of, const Value*>& gradients);

}  // namespace holon::graph
