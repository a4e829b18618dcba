// MNIST, and what comes in its form: four IDX files, plain or compressed by gzip.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "holon/base/file_path.h"
#include "holon/data/loader.h"

namespace holon::data {

struct MnistOptions {
  FilePath root = {};  // the folder of the files; empty: $HOLON_DATA_DIR/mnist
  bool train = true;   // the 60,000 to learn from, or the 10,000 to test with
};

// Samples of a part: images as float32 [1, 28, 28] from 0 to 1, and labels as int64.
class Mnist : public Dataset {
 public:
  // Errors: see mnist_folder() and read_mnist().
  explicit Mnist(const MnistOptions& options = {});
  int64_t size() const override { return images_.shape()[0]; }
  std::vector<Tensor> batch(std::span<const int64_t> indices) const override;

  // All samples, as they are in the files.
  const Tensor& images() const { return images_; }  // uint8 [samples, 28, 28]
  const Tensor& labels() const { return labels_; }  // uint8 [samples]

 private:
  Tensor images_, labels_;
};

// For a DataLoader: data::DataLoader loader(data::mnist({.train = true}), {.batch_size = 100, .shuffle = true});
std::shared_ptr<const Mnist> mnist(const MnistOptions& options = {});

// Which files are meant.
enum class MnistPart { kTrain, kTest, kBoth };

// The first of the folders that has all files of the part. Errors (RuntimeError), which say what each folder lacks,
// which files to put where, and what draws such files.
std::string mnist_folder(std::span<const FilePath> folders, MnistPart part = MnistPart::kBoth);
// $HOLON_DATA_DIR/mnist; empty if HOLON_DATA_DIR is not set.
std::string mnist_folder_of_settings();

// Images, uint8 [samples, 28, 28], and labels, uint8 [samples], of the files in a folder. Errors (RuntimeError), naming
// the file: see read_idx(); other types or sizes; a label above 9; not as many labels as images.
std::pair<Tensor, Tensor> read_mnist(const FilePath& folder, bool train);

// The usual name of a file: "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte".
std::string mnist_file(bool train, bool images);

}  // namespace holon::data
