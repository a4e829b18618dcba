#include "holon/data/corpus.h"

#include <algorithm>
#include <filesystem>

#include "holon/base/error.h"
#include "holon/base/index.h"

namespace holon::data {

ByteCorpus::ByteCorpus(const std::vector<FilePath>& files) {
  for (auto& path : files) {
    InputFile file(path);
    if (file.size() == 0) continue;
    begins_.push_back(size_);
    size_ += static_cast<int64_t>(file.size());
    files_.push_back({path, file.size(), {}});
    if (files_.size() <= kMostOpen) files_.back().open = std::move(file);
  }
  if (size_ == 0) fail_value("a corpus of {} files has no bytes. Name files that are not empty.", files.size());
}

void ByteCorpus::read(int64_t offset, std::span<uint8_t> out) const {
  auto n = static_cast<int64_t>(out.size());
  if (offset < 0 || n > size_ || offset > size_ - n)
    fail(ErrorKind::kIndex, "corpus: {} bytes from offset {} on exceed its {} bytes.", n, offset, size_);
  auto file = to_size(std::upper_bound(begins_.begin(), begins_.end(), offset) - begins_.begin()) - 1;
  for (size_t done = 0; done < out.size(); ++file) {
    const File& f = files_[file];
    auto from = static_cast<uint64_t>(offset + static_cast<int64_t>(done) - begins_[file]);
    size_t take = to_size(std::min<uint64_t>(f.size - from, out.size() - done));
    auto piece = std::as_writable_bytes(out.subspan(done, take));
    if (f.open)
      f.open->read(from, piece);
    else
      InputFile(f.path).read(from, piece);
    done += take;
  }
}

Tensor ByteCorpus::rows(std::span<const int64_t> offsets, int64_t length) const {
  if (length < 0) fail_value("corpus: rows of length {}; it must not be negative.", length);
  Array out = Array::empty({static_cast<int64_t>(offsets.size()), length}, int64);
  auto* to = out.data<int64_t>();
  std::vector<uint8_t> row(to_size(length));
  for (int64_t offset : offsets) {
    read(offset, row);
    to = std::copy(row.begin(), row.end(), to);
  }
  return Tensor::local(std::move(out));
}

std::vector<std::string> files_below(const FilePath& folder, std::string_view ending) {
  namespace fs = std::filesystem;
  std::vector<fs::path> found;
  std::error_code error;
  fs::recursive_directory_iterator it(fs::path(folder.string()), fs::directory_options::skip_permission_denied, error),
      end;
  for (; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored) && it->path().filename().string().ends_with(ending)) found.push_back(it->path());
  }
  if (error) fail_runtime("cannot list the files below {}: {}.", folder.string(), error.message());
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (auto& path : found) names.push_back(path.string());
  return names;
}

}  // namespace holon::data
