#include "holon/exports/value.h"

#include <algorithm>
#include <array>

#include "holon/base/error.h"
#include "holon/base/index.h"

namespace holon::exports {

std::string_view Value::kind() const {
  constexpr std::string_view kKinds[] = {"None",   "bool",      "int", "float",  "str",      "Tensor", "dtype",
                                         "device", "placement", "sbp", "module", "iterable", "list",   "tuple"};
  static_assert(std::size(kKinds) == std::variant_size_v<Variant>);
  return kKinds[data.index()];
}

void fail_conversion(const ArgumentName& name, std::string_view wanted, const Value& found) {
  fail_type("{}: {} must be {} {}, got {}.", name.function, name.argument.empty() ? "an argument" : name.argument,
            std::string_view("aeiou").find(wanted[0]) == std::string_view::npos ? "a" : "an", wanted, found.kind());
}

NdSbp Conversion<NdSbp>::from(const Value& v, const ArgumentName& name) {
  if (auto* sbp = std::get_if<NdSbp>(&v.data)) return *sbp;
  auto* items = detail::items_of(v);
  if (!items) fail_conversion(name, kName, v);
  std::vector<Sbp> list;
  for (auto& item : *items) {
    auto* sbp = std::get_if<NdSbp>(&item.data);
    if (!sbp || sbp->size() != 1) fail_conversion(name, kName, v);
    list.push_back((*sbp)[0]);
  }
  return NdSbp(list);
}

data::Batches Conversion<data::Batches>::from(const Value& v, const ArgumentName& name) {
  if (auto* batches = std::get_if<data::Batches>(&v.data)) return *batches;
  auto* items = detail::items_of(v);
  if (!items) fail_conversion(name, kName, v);
  std::vector<std::vector<Tensor>> list;
  for (auto& item : *items) {
    if (auto* t = std::get_if<Tensor>(&item.data))
      list.push_back({*t});
    else
      list.push_back(Conversion<std::vector<Tensor>>::from(item, name));
  }
  return data::Batches(std::move(list));
}

}  // namespace holon::exports
