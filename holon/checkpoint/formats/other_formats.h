#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace holon::checkpoint {

// What a file that is not a safetensors file is, by its first bytes (64 are enough) and its name, and what to do with
// it: "it is a zip archive, as torch.save() writes it. ..."; empty: nothing that is known.
std::string other_format(std::span<const std::byte> first, std::string_view name);

}  // namespace holon::checkpoint
