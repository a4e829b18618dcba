// Nested values of Python, such as the arguments of a graph: taken apart into tensors and what is around them.
#pragma once

#include <span>
#include <string>

#include "bind.h"
#include "holon/base/small_vec.h"
#include "holon/tensor/tensor.h"

namespace holon::python {

using Tensors = SmallVec<Tensor, 8>;

// The value as a tree of tuples: None for a tensor, which goes to the end of `tensors`, ("const", type, value),
// ("dict", type, keys, children...), and ("list", ...), ("tuple", ...), ("named", type, children...). Hashable where
// its constants are.
nb::object take_apart(PyObject* value, Tensors& tensors);

// The values of a tree, with these tensors in order. next: the first one's place, moved on.
nb::object put_together(PyObject* tree, std::span<const Tensor> tensors, size_t* next);

// Where in a tree, which is at `path`, the first constant is that has no hash: "args[0]['mask'][2], a
// numpy.ndarray". False: all have one.
bool find_unhashable(PyObject* tree, const std::string& path, std::string* found);

}  // namespace holon::python
