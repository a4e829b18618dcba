#include "holon/registry/describe.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

namespace holon {

namespace {

using Json = nlohmann::ordered_json;

const char* type_name(const ArgDef& a) {
  switch (a.type) {
    case ArgType::kTensor: return "Tensor";
    case ArgType::kTensorList: return a.variadic ? "Tensor..." : "Tensor[]";
    case ArgType::kInt: return "int";
    case ArgType::kFloat: return "float";
    case ArgType::kBool: return "bool";
    case ArgType::kScalar: return "Scalar";
    case ArgType::kText: return "str";
    case ArgType::kDType: return "dtype";
    case ArgType::kDevice: return "device";
    case ArgType::kPlacement: return "placement";
    case ArgType::kSbp: return "sbp";
    default: return a.variadic ? "int..." : a.repeat ? "int[n]" : "int[]";
  }
}

const char* name(Autocast a) {
  switch (a) {
    case Autocast::kLower: return "lower";
    case Autocast::kFloat32: return "float32";
    case Autocast::kPromote: return "promote";
    default: return "none";
  }
}

const char* name(Fuses f) {
  switch (f) {
    case Fuses::kElements: return "elements";
    case Fuses::kMatrices: return "matrices";
    case Fuses::kLastAxes: return "last axes";
    default: return "no";
  }
}

const char* name(ViewKind k) {
  switch (k) {
    case ViewKind::kReshape: return "reshape";
    case ViewKind::kPermute: return "permute";
    default: return "other";
  }
}

Json describe(const ArgDef& a) {
  Json arg;
  arg["name"] = a.name;
  arg["type"] = type_name(a);
  arg["optional"] = a.optional;
  arg["keyword_only"] = a.keyword_only;
  const bool quoted = a.type == ArgType::kText && a.has_default && a.default_text != "None";
  arg["default"] = a.has_default ? Json(quoted ? "'" + a.default_text + "'" : a.default_text)
      : a.optional               ? Json("None")
                                 : Json();
  return arg;
}

// The names of the arguments whose place among the inputs, or the attributes, is wanted.
template <class Wanted>
Json names_of(const OpDef& op, Wanted wanted) {
  Json names = Json::array();
  for (auto& a : op.schema.args)
    if (wanted(a)) names.push_back(a.name);
  return names;
}

Json describe(const OpDef& op, std::vector<std::string> aliases) {
  Json row;
  row["name"] = op.schema.name;
  row["public_name"] = op.public_name();
  row["family"] = op.family;
  row["schema"] = op.schema.text;
  row["signature"] = signature_text(op);
  row["doc"] = op.doc;
  row["shapes"] = shape_words(op);
  row["example"] = op.example;
  row["aliases"] = std::move(aliases);
  row["args"] = Json::array();
  for (auto& a : op.schema.args) row["args"].push_back(describe(a));
  row["n_outputs"] = op.schema.n_outputs;
  row["output_names"] = op.schema.output_names;
  row["cpp_function"] = op.cpp_function;
  row["function"] = op.function;
  row["method"] = op.method;
  row["in_place"] = op.in_place;
  row["in_place_name"] = !op.in_place ? ""
      : op.in_place_name.empty()      ? op.public_name() + std::string("_")
                                      : op.in_place_name;
  row["gives_number"] = op.gives_number;
  row["scalar_overload"] = op.scalar_overload;
  row["wraps_numbers"] = op.wraps_numbers;
  row["promoted"] = names_of(op, [&](const ArgDef& a) {
    if (!op.promotes) return false;
    for (int at : op.promote_attrs)
      if (a.attr == at) return true;
    return a.input >= 0 && (op.promoted_inputs >> std::min(a.input, 31) & 1) != 0;
  });
  row["promotes_to_float"] = op.promotes_to_float;
  row["masks"] = names_of(op, [&](const ArgDef& a) { return a.input >= 0 && a.input == op.mask_input; });
  row["composed"] = op.body != nullptr && !op.body_if;
  row["has_grad"] = op.grad != nullptr || op.body != nullptr;
  row["random"] = op.random;
  row["on_host"] = op.on_host;
  row["rule"] = op.no_rule_reason.empty() ? op.rule_text : "whole: " + op.no_rule_reason;
  row["linear"] = op.joint != 0 || op.each != 0;
  row["autocast"] = name(op.autocast);
  row["flops"] = op.flops != nullptr;
  row["fuses"] = name(op.fuses);
  row["view"] = op.view ? Json(name(op.view_kind)) : Json();
  row["elementwise"] = op.elementwise;
  row["writes_strides"] = op.writes_strides;
  return row;
}

}  // namespace

std::string signature_text(const OpDef& op) { return op.public_name() + op.schema.text.substr(op.schema.name.size()); }

std::string shape_words(const OpDef& op) {
  if (!op.elementwise) return "";
  std::string names;
  int n = 0;
  for (auto& a : op.schema.args) {
    if (a.input < 0) continue;
    if (n++) names += ", ";
    names += a.name;
  }
  return n == 1 ? "The result has the shape of " + names + "." : names + " broadcast to one shape, that of the result.";
}

std::string describe_ops() {
  std::map<const OpDef*, std::vector<std::string>> aliases;
  for (auto& [alias, op] : all_aliases()) aliases[op].push_back(alias);
  Json table = Json::array();
  for (auto* op : all_ops()) table.push_back(describe(*op, aliases[op]));
  return table.dump(1);
}

}  // namespace holon
