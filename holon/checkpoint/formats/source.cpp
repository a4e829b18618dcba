#include "holon/checkpoint/formats/source.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "holon/base/index.h"
#include "holon/checkpoint/core/pieces.h"

namespace holon::checkpoint {

StoredParts Source::stored(const TensorInfo& info) const {
  StoredParts out{{whole(info.shape)}, std::vector<int>(to_size(info.shape.size())), kBlockBytes};
  std::iota(out.axis_order.begin(), out.axis_order.end(), 0);
  return out;
}

std::string Source::tree() const { return tree_of_names(tensors()); }

std::string tree_of_names(const std::vector<TensorInfo>& tensors) {
  nlohmann::json pairs = nlohmann::json::array();
  for (auto& t : tensors) pairs.push_back({t.name, {{"tensor", t.name}}});
  return nlohmann::json{{"dict", pairs}}.dump();
}

}  // namespace holon::checkpoint
