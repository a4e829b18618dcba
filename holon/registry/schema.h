// The signature of an op as text, and its parsed form:
//   "sum(Tensor x, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor"
// Types: Tensor, Tensor?, Tensor[], int, float, bool, Scalar, str, dtype, device, placement, sbp, int[], int[2] (one
// int represents both), int... and Tensor... (may be given as several arguments); "?" after a type lets None through.
// Several outputs may have names: "-> (Tensor values, Tensor indices)".
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holon/registry/attr_value.h"
#include "holon/registry/attrs.h"

namespace holon {

enum class ArgType : uint8_t {
  kTensor,
  kTensorList,
  kInt,
  kFloat,
  kBool,
  kScalar,
  kText,
  kDType,
  kDevice,
  kPlacement,
  kSbp,
  kInts
};

struct ArgDef {
  std::string name;
  ArgType type = ArgType::kTensor;
  bool optional = false;  // None is a value
  bool has_default = false;
  bool keyword_only = false;
  bool variadic = false;     // int...
  int repeat = 0;            // int[2]: one int is repeated so often
  std::string default_text;  // as written
  int attr = -1;             // its place among the attributes, -1 for tensors
  int input = -1;            // its place among the tensor arguments
};

struct Schema {
  std::string name;
  std::string text;
  std::vector<ArgDef> args;
  int n_attrs = 0, n_inputs = 0;
  bool input_list = false;                // the tensor argument is a list: the inputs are its elements
  int n_outputs = 1;                      // -1: a list
  std::vector<std::string> output_names;  // of "-> (Tensor values, Tensor indices)", else empty
  Attrs defaults;                         // of all attributes; those without a default are None

  const ArgDef* find(std::string_view name) const;
  // The place of an attribute by name. Errors: none of that name (internal).
  int attr(std::string_view name) const;
};

// Errors: text that does not follow the grammar (ValueError).
Schema parse_schema(std::string_view text);

// All attributes in the schema's order; those that are not given take their defaults. Errors (TypeError): an unknown
// name, one without a default that is missing, a value of the wrong type.
Attrs make_attrs(const Schema& schema, std::span<const NamedAttr> given);

}  // namespace holon
