// A source whose tensors have other names and layouts, by a KeyMap. Of what is requested only the bytes are read.
#pragma once

#include <memory>
#include <string>

#include "holon/checkpoint/core/key_map.h"
#include "holon/checkpoint/formats/source.h"

namespace holon::checkpoint {

// The tensors whose names begin with the prefix, as the map makes them of the names without it, under that prefix. All
// other tensors, and what is not a tensor, are left out. Errors: those of KeyMap::resolve().
std::unique_ptr<Source> mapped(std::unique_ptr<Source> source, const KeyMap& map, const std::string& prefix);

}  // namespace holon::checkpoint
