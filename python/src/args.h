// Python values as the core's: one function per type of the schemas. A to_...() that returns bool answers false, with
// no Python error set, where the object is of another kind; the caller knows which op and argument to name.
#pragma once

#include "bind.h"
#include "holon/registry/op_def.h"

namespace holon::python {

using IntList = SmallVec<int64_t, 8>;

// A number: int, float, bool, a numpy scalar, or a local tensor without axes. Errors: an int beyond 64 bits.
bool to_scalar(PyObject* o, Scalar* out);
// An int or what has __index__; bool is taken as 0 or 1. Errors: beyond 64 bits.
bool to_int(PyObject* o, int64_t* out);
bool to_float(PyObject* o, double* out);
bool to_bool(PyObject* o, bool* out);
// A list or tuple of ints. Errors: beyond 64 bits.
bool to_ints(PyObject* o, IntList* out);
// A dtype object, its name, Python's float, int or bool, or numpy's dtype.
bool to_dtype(PyObject* o, DType* out);
// A device object or its name. Errors: an unknown device.
bool to_device(PyObject* o, Device* out);
bool to_placement(PyObject* o, Placement* out);
// An sbp, or a list or tuple of them.
bool to_nd_sbp(PyObject* o, NdSbp* out);

// The same, raising TypeError that names the call and the argument.
DType expect_dtype(nb::handle o, const char* call);
Device expect_device(nb::handle o, const char* call);
Placement expect_placement(nb::handle o, const char* call);
NdSbp expect_nd_sbp(nb::handle o, const char* call);
const Tensor& expect_tensor(nb::handle o, const char* call, const char* argument);

// "str 'abc'", "list of 3", "Tensor [4, 5]": for messages.
std::string describe(PyObject* o);

// numpy's scalar types, found when first needed; false where o is not a numpy object at all.
bool is_numpy(PyObject* o);
bool is_numpy_array(PyObject* o);

}  // namespace holon::python
