// The implicit boxing of an op's input.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "holon/registry/op_def.h"
#include "holon/tensor/tensor.h"

namespace holon {

// Of which input of an op, and to what the op redistributes all of them: nullptr for absent ones. Without targets it is
// something else of the op, such as a gradient.
struct InputOf {
  std::string_view name;
  std::span<const GlobalSpec* const> targets;
};

// t under another spec of its placement: the same logical tensor in another form, whose gradient goes to where that of
// t goes. Recorded as an event of the op, of a parameter if it is one. Collective over the placement.
Tensor redistribute_input(const char* op, const Tensor& t, const GlobalSpec* to, const InputOf& input,
                          bool parameter = false);

// The name of an op's input: that of its schema, or the number in a list.
std::string input_name(const OpDef& op, size_t input);

}  // namespace holon
