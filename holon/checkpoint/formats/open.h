// Whatever is at a path, as a source.
#pragma once

#include <filesystem>
#include <memory>

#include "holon/checkpoint/formats/source.h"

namespace holon::checkpoint {

// A file, as open_file(); or a folder, of save() or of Hugging Face's libraries. Errors (RuntimeError) also: a folder
// that is neither; Superseded, where another job has replaced what was there.
std::unique_ptr<Source> open_source(const std::filesystem::path& path);

}  // namespace holon::checkpoint
