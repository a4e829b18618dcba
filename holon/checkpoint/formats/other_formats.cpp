#include "holon/checkpoint/formats/other_formats.h"

#include <algorithm>

#include "holon/checkpoint/formats/folder.h"

namespace holon::checkpoint {

namespace {

using namespace std::string_view_literals;

constexpr std::string_view kTorch =
    "Convert it with PyTorch: safetensors.torch.save_file(torch.load(path, weights_only=True), \"model.safetensors\").";

struct Format {
  std::string_view magic, is, advice;
};

constexpr Format kFormats[] = {
    {"PK\5\6"sv, "an empty zip archive", ""},
    {"\x80\2"sv, "a pickle, as older torch.save() writes them", kTorch},
    {"\x80\3"sv, "a pickle of Python", kTorch},
    {"\x80\4\x95"sv, "a pickle of Python", kTorch},
    {"\x80\5\x95"sv, "a pickle of Python", kTorch},
    {"\x93NUMPY"sv, "an array of NumPy", "Read it with numpy.load() and pass it to tensor()."},
    {"GGUF"sv, "a GGUF file", "Convert it to safetensors first."},
    {"\x89HDF\r\n\x1a\n"sv, "an HDF5 file", "Convert it to safetensors first."},
    {"\x1f\x8b"sv, "compressed by gzip", "Unpack it first."},
    {"\x28\xb5\x2f\xfd"sv, "compressed by Zstandard", "Unpack it first."},
    {"version https://git-lfs"sv, "only a Git LFS pointer to the file", "Fetch the file itself with git lfs pull."},
    {"<!DOCTYPE"sv, "an HTML page, perhaps from a failed download", "Download the file again."},
    {"<html"sv, "an HTML page, perhaps from a failed download", "Download the file again."},
};

}  // namespace

std::string other_format(std::span<const std::byte> first, std::string_view name) {
  std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  if (text.starts_with('{')) {
    const auto slash = name.rfind('/');
    if (name.substr(slash == name.npos ? 0 : slash + 1) == kIndexFile)
      return "it is the index of a folder that save() wrote. Load the folder.";
    return "it is text, perhaps JSON. Name a safetensors file.";
  }
  for (auto& f : kFormats)
    if (text.starts_with(f.magic)) return std::string("it is ") + std::string(f.is) + ". " + std::string(f.advice);
  return "";
}

}  // namespace holon::checkpoint
