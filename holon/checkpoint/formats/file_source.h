// A file as a source.
#pragma once

#include <filesystem>
#include <memory>

#include "holon/checkpoint/formats/source.h"

namespace holon::checkpoint {

// A safetensors file, or one that torch.save() wrote. Errors (RuntimeError): as SafetensorsFile and open_torch().
std::unique_ptr<Source> open_file(const std::filesystem::path& path);

}  // namespace holon::checkpoint
