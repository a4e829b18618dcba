// Batches of a dataset, made ahead of time by a thread, local or as global tensors.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "holon/base/context.h"
#include "holon/data/corpus.h"
#include "holon/data/join.h"

namespace holon::data {

// Samples by index. A batch is a list of local tensors, each with the samples along axis 0: images and labels, say.
class Dataset {
 public:
  virtual ~Dataset() = default;
  // The number of samples.
  virtual int64_t size() const = 0;
  // The samples with the given indices. Called in the loader's thread, which belongs to no rank: ops on local tensors
  // only.
  virtual std::vector<Tensor> batch(std::span<const int64_t> indices) const = 0;
};

// Sample i is the i-th element of each tensor, as from read_idx(). Errors: no tensor, or a global one; unlike lengths.
class TensorDataset : public Dataset {
 public:
  explicit TensorDataset(std::vector<Tensor> tensors);
  int64_t size() const override { return tensors_[0].shape()[0]; }
  std::vector<Tensor> batch(std::span<const int64_t> indices) const override;

 private:
  std::vector<Tensor> tensors_;
};

// Windows of `length` bytes of a corpus as int64, beginning every `stride` bytes; with targets also the windows one
// byte later. Errors: length or stride below 1.
class ByteDataset : public Dataset {
 public:
  ByteDataset(ByteCorpus corpus, int64_t length, int64_t stride, bool targets);
  int64_t size() const override;
  std::vector<Tensor> batch(std::span<const int64_t> indices) const override;

 private:
  ByteCorpus corpus_;
  int64_t length_, stride_;
  bool targets_;
};

struct LoaderOptions {
  int64_t batch_size = 1;  // of all ranks together, with a placement
  bool shuffle = false;    // a new order for each epoch, which follows from seed and epoch alone
  uint64_t seed = 0;
  bool drop_last = false;
  int64_t prefetch = 2;  // batches that are made ahead; 0: no thread
  // Batches are in pinned memory, from which copies to a device need no waiting (to_device(x, device, true)). Without a
  // device a warning says that they do not.
  bool pin_memory = false;
  // With both, batches are global tensors of which each rank loads its own rows; no rows are sent.
  Placement placement = {};
  NdSbp sbp = {};
  // For global batches whose rows have their own lengths, such as texts: behind the first axis the ranks' parts are
  // brought to the longest one's size, with this value, or with one for each tensor of a batch. Without it parts of
  // different shapes are an error.
  Padding padding_value = {};
};

// Where a loader is: the epoch, and the samples of it that were handed out, which means the same for any batch size.
struct LoaderPosition {
  int64_t epoch = 0, sample = 0;
};

// Threads: one at a time calls next() and seek(); the dataset is read by the loader's own thread meanwhile.
class DataLoader {
 public:
  // Errors: batch_size below 1, prefetch negative, one of placement and sbp alone, a partial sum; a padding_value
  // without them.
  DataLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // The next batch; an empty list at the end of an epoch, behind which the next one begins. Throws what the dataset
  // threw. Collective over the world where batches are global: ranks whose parts do not belong together raise.
  std::vector<Tensor> next();
  int64_t batches_per_epoch() const;

  // Where the next batch begins.
  LoaderPosition position() const { return position_; }
  // Goes on from there. Errors: beyond the epoch's samples.
  void seek(LoaderPosition position);

 private:
  struct Made {
    std::vector<Tensor> rows;
    int64_t samples = 0;
    std::exception_ptr error;
  };
  struct Order {
    std::vector<int64_t> samples;  // of this epoch
    int64_t epoch = -1;
  };
  Made make(LoaderPosition at, Order& order) const;
  LoaderPosition after(LoaderPosition at) const;
  struct Ahead;
  int64_t samples_at(LoaderPosition at) const;
  void start();
  void stop();
  void run(Ahead& ahead, LoaderPosition from);

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  LoaderPosition position_;
  Order order_;
  Context* owner_;
  std::unique_ptr<Ahead> ahead_;       // a thread that makes batches
  std::optional<BatchJoiner> joiner_;  // of global batches
};

}  // namespace holon::data
