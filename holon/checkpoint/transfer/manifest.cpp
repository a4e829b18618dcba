#include "holon/checkpoint/transfer/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/core/json.h"
#include "holon/checkpoint/core/pieces.h"
#include "holon/checkpoint/core/printable.h"

namespace holon::checkpoint {

using nlohmann::json;

namespace {

constexpr const char* kFormat = "holon-transfer";
constexpr int kVersion = 1;
constexpr int kMostLevels = 16;
constexpr std::string_view kAdvice = "The other job is not one of this version of Holon, or its message was damaged.";

void check_layout(const SavedLayout& layout, const ManifestTensor& tensor, size_t world_size,
                  const JsonReader& reader) {
  const std::string name = printable(tensor.info.name);
  uint64_t places = 1;
  for (int64_t n : layout.hierarchy) {
    if (n < 1 || static_cast<uint64_t>(n) > world_size || places * static_cast<uint64_t>(n) > world_size)
      reader.damaged(fmt::format("the layout of '{}' is larger than its world of {} ranks", name, world_size));
    places *= static_cast<uint64_t>(n);
  }
  if (layout.ranks.size() != places)
    reader.damaged(fmt::format("the layout of '{}' has {} ranks on {} places", name, layout.ranks.size(), places));
  std::vector<bool> seen(world_size);
  for (int64_t r : layout.ranks) {
    if (static_cast<uint64_t>(r) >= world_size || seen[static_cast<size_t>(r)])
      reader.damaged(fmt::format("the layout of '{}' has rank {} twice, or outside the world", name, r));
    seen[static_cast<size_t>(r)] = true;
  }
  for (Sbp s : layout.nd_sbp)
    if (s.is_split() && s.axis >= tensor.info.shape.size())
      reader.damaged(fmt::format("the layout of '{}' splits axis {}, and its shape is {}", name,
                                 static_cast<int>(s.axis), tensor.info.shape));
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  json tensors = json::array();
  for (auto& t : manifest.tensors) {
    json j = {{"name", t.info.name}, {"dtype", format_name(t.info.dtype)}, {"shape", json_list(t.info.shape)}};
    if (t.layout) j["layout"] = layout_json(*t.layout);
    tensors.push_back(std::move(j));
  }
  return json{{"format", kFormat},           {"version", kVersion},
              {"tree", manifest.tree},       {"addresses", manifest.addresses},
              {"session", manifest.session}, {"tensors", std::move(tensors)}}
      .dump();
}

Manifest parse_manifest(std::string_view text, std::string_view name) {
  JsonReader reader(name, kAdvice);
  const json j = parse_json(text, kMostLevels, name, "what it sends is not JSON", kAdvice);
  if (reader.text(j, "format") != kFormat) reader.damaged("it does not say what it exports");
  if (reader.member(j, "version") != kVersion)
    fail_runtime("{}: it exports by version {}; this Holon receives version {}. Use one version for both jobs.", name,
                 printable(j["version"].dump()), kVersion);
  Manifest out;
  out.tree = reader.text(j, "tree");
  out.session = reader.text(j, "session");
  for (auto& address : reader.array(j, "addresses")) {
    if (!address.is_string()) reader.damaged("an address is not text");
    out.addresses.push_back(address.get<std::string>());
  }
  if (out.addresses.empty()) reader.damaged("it has no ranks");
  std::unordered_set<std::string> names;
  for (auto& item : reader.array(j, "tensors")) {
    ManifestTensor t;
    t.info.name = reader.text(item, "name");
    if (!names.insert(t.info.name).second)
      reader.damaged(fmt::format("two tensors have the name '{}'", printable(t.info.name)));
    auto dtype = dtype_of_format(reader.text(item, "dtype"));
    if (!dtype) reader.damaged(fmt::format("tensor '{}' has an unknown dtype", printable(t.info.name)));
    t.info.dtype = *dtype;
    t.info.shape = reader.dims(item, "shape");
    if (!bytes_of(t.info.shape, t.info.dtype))
      reader.damaged(fmt::format("tensor '{}' {} is larger than any memory", printable(t.info.name), t.info.shape));
    if (item.contains("layout")) {
      t.layout = reader.layout(item["layout"]);
      check_layout(*t.layout, t, out.addresses.size(), reader);
    }
    out.tensors.push_back(std::move(t));
  }
  return out;
}

std::vector<HeldRegion> held_regions(const ManifestTensor& tensor) {
  if (tensor.layout) return held_regions(tensor.info.shape, *tensor.layout);
  if (tensor.info.shape.numel() == 0) return {};
  return {{whole(tensor.info.shape), {0}}};
}

}  // namespace holon::checkpoint
