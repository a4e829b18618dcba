// holon.Size, the type of shapes.
#pragma once

#include "bind.h"

namespace holon::python {

bool is_size(PyObject* o);

}  // namespace holon::python
