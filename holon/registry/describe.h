// What the declarations say, as data: for stubs, the reference and tools.
#pragma once

#include <string>

#include "holon/registry/op_def.h"

namespace holon {

// What users write, "sum(Tensor x, int[]? dim=None) -> Tensor": the schema under the op's public name.
std::string signature_text(const OpDef& op);

// What holds of the shapes of every elementwise op, so that its doc need not say it; empty for others.
std::string shape_words(const OpDef& op);

// A JSON array with an object for each op, by name: its schema taken apart and all else that its declaration says. The
// keys are those of the tables in docs/guides/adding-an-op.md.
std::string describe_ops();

}  // namespace holon
