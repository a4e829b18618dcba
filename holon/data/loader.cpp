#include "holon/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>
#include <thread>
#include <tuple>

#include "holon/array/device_backend.h"
#include "holon/array/device_runtime.h"
#include "holon/base/ceil_div.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/fork.h"
#include "holon/base/index.h"
#include "holon/base/log.h"
#include "holon/base/parallel.h"
#include "holon/base/settings.h"
#include "holon/data/sampler.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/on_device.h"

namespace holon::data {

TensorDataset::TensorDataset(std::vector<Tensor> tensors) {
  if (tensors.empty()) fail_value("TensorDataset: it needs at least one tensor.");
  for (auto& t : tensors) {
    if (t.is_global())
      fail_type("TensorDataset: a global tensor {}. Give local ones; the loader makes global batches.", t.shape());
    if (t.ndim() == 0 || t.shape()[0] != tensors[0].shape()[0])
      fail_value("TensorDataset: the tensors must have the same number of samples; found {} and {}.",
                 tensors[0].shape(), t.shape());
    tensors_.push_back(Tensor::local(kernels::contiguous(kernels::on_device(t.array(), {}))));
  }
}

std::vector<Tensor> TensorDataset::batch(std::span<const int64_t> indices) const {
  std::vector<Tensor> batch;
  for (auto& t : tensors_) {
    Dims shape = t.shape();
    shape[0] = static_cast<int64_t>(indices.size());
    Array out = Array::empty(shape, t.dtype());
    const size_t row = t.shape()[0] == 0 ? 0 : t.array().nbytes() / to_size(t.shape()[0]);
    for (size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] < 0 || indices[i] >= size())
        fail(ErrorKind::kIndex, "TensorDataset: sample {} of {}.", indices[i], size());
      if (row > 0) std::memcpy(out.bytes() + i * row, t.array().bytes() + to_size(indices[i]) * row, row);
    }
    batch.push_back(Tensor::local(std::move(out)));
  }
  return batch;
}

ByteDataset::ByteDataset(ByteCorpus corpus, int64_t length, int64_t stride, bool targets)
    : corpus_(std::move(corpus)), length_(length), stride_(stride), targets_(targets) {
  if (length < 1 || stride < 1)
    fail_value("ByteDataset: length is {} and stride {}; both must be at least 1.", length, stride);
}

int64_t ByteDataset::size() const {
  const int64_t room = corpus_.size() - length_ - targets_;
  return room < 0 ? 0 : room / stride_ + 1;
}

std::vector<Tensor> ByteDataset::batch(std::span<const int64_t> indices) const {
  std::vector<int64_t> offsets;
  for (int64_t i : indices) {
    if (i < 0 || i >= size()) fail(ErrorKind::kIndex, "ByteDataset: window {} of {}.", i, size());
    offsets.push_back(i * stride_);
  }
  std::vector<Tensor> batch{corpus_.rows(offsets, length_)};
  if (targets_) {
    for (int64_t& o : offsets) ++o;
    batch.push_back(corpus_.rows(offsets, length_));
  }
  return batch;
}

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
    : dataset_(std::move(dataset)), options_(options), owner_(&Context::current()) {
  if (options.batch_size < 1) fail_value("DataLoader: batch_size is {}; it must be at least 1.", options.batch_size);
  if (options.prefetch < 0) fail_value("DataLoader: prefetch is {}; it must not be negative.", options.prefetch);
  if (static_cast<bool>(options.placement) != static_cast<bool>(options.sbp))
    fail_layout(
        "DataLoader: placement and sbp must be given together. Give both for global batches, neither for local ones.");
  if (options.placement)
    joiner_.emplace(options.placement, options.sbp);
  else if (!options.padding_value.empty())
    fail_value("DataLoader: padding_value applies to global batches, whose parts it pads to one length. Pad in the "
               "dataset's batch(), or give placement and sbp.");
  if (options.pin_memory && !pinning_runtime()) {
    if (!is_simulated(kFirstDeviceType))
      log::warn(fmt::format("DataLoader: pin_memory was requested, but there is no {} device: batches are in pageable "
                            "memory.",
                            name(kFirstDeviceType)));
    options_.pin_memory = false;
  }
  start();
}

DataLoader::~DataLoader() { stop(); }

int64_t DataLoader::batches_per_epoch() const {
  const int64_t n = dataset_->size();
  return options_.drop_last ? n / options_.batch_size : ceil_div(n, options_.batch_size);
}

// The position behind a batch, or behind the end of an epoch, which is its own step.
LoaderPosition DataLoader::after(LoaderPosition at) const {
  if (const int64_t n = samples_at(at)) return {at.epoch, at.sample + n};
  return {at.epoch + 1, 0};
}

// How many samples the batch there has; 0 at the end of an epoch.
int64_t DataLoader::samples_at(LoaderPosition at) const {
  const int64_t left = dataset_->size() - at.sample;
  return left < options_.batch_size && options_.drop_last ? 0 : std::min(left, options_.batch_size);
}

DataLoader::Made DataLoader::make(LoaderPosition at, Order& order) const {
  Made made;
  made.samples = samples_at(at);
  if (made.samples == 0) return made;
  try {
    const int64_t n = dataset_->size();
    if (order.epoch != at.epoch) {
      if (options_.shuffle) {
        order.samples = permutation(options_.seed, static_cast<uint64_t>(at.epoch), n);
      } else {
        order.samples.resize(to_size(n));
        std::iota(order.samples.begin(), order.samples.end(), 0);
      }
      order.epoch = at.epoch;
    }
    int64_t first = 0, count = made.samples;
    if (options_.placement) {
      ContextGuard guard(*owner_);  // asks for its rank only
      std::tie(first, count) = part_rows(made.samples, options_.placement, options_.sbp);
      if (count == 0) first = 0, count = 1;  // tells shape and dtype
    }
    made.rows =
        dataset_->batch(std::span<const int64_t>(order.samples).subspan(to_size(at.sample + first), to_size(count)));
    if (made.rows.empty()) fail_value("DataLoader: the dataset returned a batch without tensors.");
    if (options_.pin_memory && !options_.placement)  // a global batch when it is one
      for (Tensor& rows : made.rows) rows = pinned(rows);
  } catch (...) {
    made.error = std::current_exception();
  }
  return made;
}

struct DataLoader::Ahead {
  const ForkMark mark = {};
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Made> ready;
  bool stopping = false;
  Order order;
  std::thread thread;
};

void DataLoader::start() {
  if (options_.prefetch == 0) return;
  ahead_ = std::make_unique<Ahead>();
  ahead_->thread = std::thread([this, from = position_, ahead = ahead_.get()] { run(*ahead, from); });
}

void DataLoader::stop() {
  if (!ahead_) return;
  if (ahead_->mark.inherited()) {  // the thread is that of the process that this one was forked from
    (void)ahead_.release();
    return;
  }
  {
    std::lock_guard lock(ahead_->mutex);
    ahead_->stopping = true;
  }
  ahead_->changed.notify_all();
  ahead_->thread.join();
  ahead_.reset();
}

void DataLoader::run(Ahead& ahead, LoaderPosition from) {
  // A rank's context is for one thread.
  Context own(0, 1, 0, 1);
  ContextGuard guard(own);
  set_num_threads(1);
  for (LoaderPosition at = from;; at = after(at)) {
    Made made = make(at, ahead.order);
    std::unique_lock lock(ahead.mutex);
    ahead.changed.wait(lock,
                       [&] { return ahead.stopping || static_cast<int64_t>(ahead.ready.size()) < options_.prefetch; });
    if (ahead.stopping) return;
    ahead.ready.push_back(std::move(made));
    ahead.changed.notify_all();
  }
}

std::vector<Tensor> DataLoader::next() {
  Made made;
  if (options_.prefetch == 0) {
    made = make(position_, order_);
  } else {
    if (ahead_->mark.inherited()) stop(), start();
    Ahead& ahead = *ahead_;
    std::unique_lock lock(ahead.mutex);
    ahead.changed.wait(lock, [&] { return !ahead.ready.empty(); });
    made = std::move(ahead.ready.front());
    ahead.ready.pop_front();
    ahead.changed.notify_all();
  }
  position_ = after(position_);
  if (made.error) std::rethrow_exception(made.error);
  if (!joiner_ || made.rows.empty()) return std::move(made.rows);
  std::vector<Tensor> batch = joiner_->join(made.rows, made.samples, options_.padding_value);
  if (options_.pin_memory)
    for (Tensor& t : batch) t = pinned(t);
  return batch;
}

void DataLoader::seek(LoaderPosition position) {
  if (position.epoch < 0 || position.sample < 0 || position.sample > dataset_->size())
    fail_value("DataLoader: there is no sample {} in epoch {}; an epoch has {}.", position.sample, position.epoch,
               dataset_->size());
  stop();
  position_ = position;
  start();
}

}  // namespace holon::data
