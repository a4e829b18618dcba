// Looking at what was saved, comparing and converting it: what `holon checkpoint` does. Whatever load() reads is taken:
// files and folders of save(), of a Checkpointer, Hugging Face's and PyTorch's. Tensors are read in pieces: memory does
// not grow with their size. Not collective: one rank may call these.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "holon/base/file_path.h"
#include "holon/checkpoint/checkpoint.h"

namespace holon::checkpoint {

// Called now and then with how many of how many bytes of tensors are done.
using Progress = std::function<void(uint64_t done, uint64_t all)>;

// What is in it, for people: a line for each tensor with dtype, shape, layout and size, and the sums; as JSON, an
// object with "name", "bytes" and "tensors", each with "name", "dtype", "shape", "bytes", and "sbp" and "ranks" where
// it was global. Errors: those of load().
std::string inspect(const FilePath& path, bool json = false);

// How two differ.
struct Difference {
  std::string tensor;
  // "is in A only", "float32 [2] and float32 [3]", "4 of 100 elements differ, by up to 0.5".
  std::string how;
};
// Compares tensors of the same name; bits decide, so that NaNs are alike. tolerance: how far numbers may be apart.
// Errors: those of load(); the tolerance is negative.
std::vector<Difference> diff(const FilePath& a, const FilePath& b, double tolerance = 0, const Progress& progress = {});

struct ConvertOptions {
  Format format = Format::kHolon;
  // Of kHuggingFace: the most bytes of tensors in one file.
  uint64_t shard_bytes = 5'000'000'000;
  // Of kHolon: nothing: one file; else a folder of so many files, about equally large.
  std::optional<int> files = {};
  // As in LoadOptions.
  std::optional<DType> dequantize = {};
};
// Writes what is at `from` to `to`, which holds what it held until all is written. Layouts and other values of save()
// stay, where the format has them (kHolon). Errors: those of load() and save(); files is below 1; in Hugging Face's
// format, values that are not tensors.
void convert(const FilePath& from, const FilePath& to, const ConvertOptions& options = {},
             const Progress& progress = {});

}  // namespace holon::checkpoint
