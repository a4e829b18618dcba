// Options of optimizers as Python's dicts have them.
#pragma once

#include "bind.h"
#include "holon/optim/rule.h"

namespace holon::python {

// kind: "sgd", "adam", ...; options: a group of parameters. Errors: an option of another type.
optim::Rule rule_of(std::string_view kind, nb::handle options);

// A state of a parameter, undefined where the dict has none. Errors: it is not a tensor.
Tensor state_in(const nb::dict& state, const char* name);

}  // namespace holon::python
