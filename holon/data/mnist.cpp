#include "holon/data/mnist.h"

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/settings.h"
#include "holon/data/idx.h"

namespace holon::data {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kSide = 28;

// The file in the folder, plain or packed, as it is spelled where people unpack it; empty if it is not there.
fs::path find_file(const fs::path& folder, std::string name) {
  std::string dotted = name;
  dotted[dotted.find("-idx")] = '.';
  for (auto& stem : {name, dotted})
    for (const char* ending : {"", ".gz"}) {
      std::error_code ignored;
      fs::path path = folder / (stem + ending);
      if (fs::is_regular_file(path, ignored)) return path;
    }
  return {};
}

std::vector<std::string> files_of(MnistPart part) {
  std::vector<std::string> names;
  for (bool train : {true, false})
    if (part == MnistPart::kBoth || (part == MnistPart::kTrain) == train)
      for (bool images : {true, false}) names.push_back(mnist_file(train, images));
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  return text;
}

}  // namespace

std::string mnist_file(bool train, bool images) {
  return std::string(train ? "train" : "t10k") + (images ? "-images-idx3-ubyte" : "-labels-idx1-ubyte");
}

std::string mnist_folder_of_settings() {
  std::string folder = settings::text("HOLON_DATA_DIR");
  return folder.empty() ? folder : (fs::path(folder) / "mnist").string();
}

std::string mnist_folder(std::span<const FilePath> folders, MnistPart part) {
  std::string found;
  for (auto& given : folders) {
    if (given.empty()) continue;
    const fs::path folder = given.string();
    std::vector<std::string> missing = files_of(part);
    std::erase_if(missing, [&](auto& name) { return !find_file(folder, name).empty(); });
    if (missing.empty()) return given.string();
    std::error_code ignored;
    if (fs::is_directory(folder, ignored))
      found += folder.string() + " lacks " + joined(missing) + ". ";
    else
      found += folder.string() + " is not a folder. ";
  }
  if (settings::text("HOLON_DATA_DIR").empty()) found += "HOLON_DATA_DIR is not set. ";
  fail_runtime("MNIST is not here: {}Put its files {} (plain, or compressed with the suffix .gz) into a folder "
               "\"mnist\" and set HOLON_DATA_DIR to the folder above it. Or generate digits instead, and name that "
               "folder: python -m holon.data.synthetic_mnist DIR.",
               found, joined(files_of(MnistPart::kBoth)));
}

std::pair<Tensor, Tensor> read_mnist(const FilePath& folder, bool train) {
  fs::path found = mnist_folder(std::span(&folder, 1), train ? MnistPart::kTrain : MnistPart::kTest);
  fs::path image_file = find_file(found, mnist_file(train, true)),
           label_file = find_file(found, mnist_file(train, false));
  Tensor images = read_idx(image_file), labels = read_idx(label_file);
  if (images.dtype() != uint8 || images.ndim() != 3 || images.shape()[1] != kSide || images.shape()[2] != kSide)
    fail_runtime("{} holds {} {}; images of MNIST are uint8 [samples, 28, 28].", image_file.string(),
                 name(images.dtype()), images.shape());
  if (labels.dtype() != uint8 || labels.ndim() != 1)
    fail_runtime("{} holds {} {}; labels of MNIST are uint8 [samples].", label_file.string(), name(labels.dtype()),
                 labels.shape());
  if (images.shape()[0] != labels.shape()[0])
    fail_runtime("{} holds {} images and {} {} labels: they do not match.", image_file.string(), images.shape()[0],
                 label_file.string(), labels.shape()[0]);
  auto digits = labels.data<uint8_t>();
  auto wrong = std::find_if(digits.begin(), digits.end(), [](uint8_t d) { return d > 9; });
  if (wrong != digits.end())
    fail_runtime("{}: label {} is {}; labels of MNIST are 0 to 9.", label_file.string(), wrong - digits.begin(),
                 *wrong);
  return {std::move(images), std::move(labels)};
}

Mnist::Mnist(const MnistOptions& options) {
  const FilePath root = options.root.empty() ? FilePath(mnist_folder_of_settings()) : options.root;
  std::span<const FilePath> folders(&root, root.empty() ? 0 : 1);
  std::tie(images_, labels_) =
      read_mnist(mnist_folder(folders, options.train ? MnistPart::kTrain : MnistPart::kTest), options.train);
}

std::vector<Tensor> Mnist::batch(std::span<const int64_t> indices) const {
  constexpr int64_t kPixels = kSide * kSide;
  auto n = static_cast<int64_t>(indices.size());
  Array images = Array::empty({n, 1, kSide, kSide}, float32), labels = Array::empty({n}, int64);
  for (int64_t i = 0; i < n; ++i) {
    int64_t at = at_index(indices, i);
    if (at < 0 || at >= size()) fail(ErrorKind::kIndex, "MNIST: sample {} of {}.", at, size());
    const uint8_t* from = images_.array().data<uint8_t>() + at * kPixels;
    float* to = images.data<float>() + i * kPixels;
    for (int64_t k = 0; k < kPixels; ++k) to[k] = static_cast<float>(from[k]) / 255.0f;
    labels.data<int64_t>()[i] = labels_.array().data<uint8_t>()[at];
  }
  return {Tensor::local(std::move(images)), Tensor::local(std::move(labels))};
}

std::shared_ptr<const Mnist> mnist(const MnistOptions& options) { return std::make_shared<Mnist>(options); }

}  // namespace holon::data
