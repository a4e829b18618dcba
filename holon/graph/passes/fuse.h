// Passes that put several ops of a graph into one. They run after autograd: what they make has no gradient.
#pragma once

#include "holon/graph/ir/graph.h"

namespace holon::graph {

struct CompileOptions;

// Gradients of slices that make up the whole of a tensor (chunk(), split()) are put next to each other by one cat,
// instead of being added up in zeros.
void join_slices(Graph& g, const CompileOptions& options);

// Products do what follows them (activations, sums with another tensor, a gradient's factor) while their blocks are in
// the cache; gradients of biases come with those of weights; numbers that products are multiplied by become theirs.
void fuse_epilogue(Graph& g, const CompileOptions& options);

// A residual's sum and the norm of it become one op, and in backward the norm's gradient and what is added to it; casts
// that autocast has put around them become theirs. Sums that products have taken, or a chain of element-wise ops saves
// more with, stay.
void fuse_norm(Graph& g, const CompileOptions& options);

// Products of stacks of matrices, softmax and what is element-wise between them (attention) become kFused nodes that
// take one matrix after the other: what only they read stays in the cache.
void fuse_matrices(Graph& g, const CompileOptions& options);

// Chains of element-wise ops become kFused nodes: a value that only the chain reads never gets memory. Members of a
// chain have one section, stage, shape and spec, and take the place of the last of them.
void fuse_elementwise(Graph& g, const CompileOptions& options);

}  // namespace holon::graph
