// Batches: what a training loop in C++ iterates over, wherever the data come from.
#pragma once

#include <cstddef>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "holon/data/loader.h"
#include "holon/tensor/tensor.h"

namespace holon::data {

// A range of batches, each the tensors of one:
//   for (const auto& batch : batches) loss(net(batch[0]), batch[1]).backward();
// As an argument of an exported function it is any iterable of Python's whose items are tensors, or lists or tuples of
// them: a DataLoader, a list, a generator. Each loop starts the iterable from its beginning; Python's lock is taken for
// each batch, and an exception that the iterable raises leaves the loop and reaches the caller in Python as it is.
class Batches {
 public:
  // Puts the next batch into *batch, or returns false at the end.
  using Next = std::function<bool(std::vector<Tensor>* batch)>;
  // start: begins an iteration.
  explicit Batches(std::function<Next()> start) : start_(std::move(start)) {}
  Batches(std::vector<std::vector<Tensor>> list);  // NOLINT(google-explicit-constructor)
  // One epoch of the loader for each loop; it must outlive this.
  Batches(DataLoader& loader);  // NOLINT(google-explicit-constructor)

  // An input iterator: begins a new iteration, and ends at std::default_sentinel.
  class Iterator {
   public:
    using value_type = std::vector<Tensor>;
    using difference_type = std::ptrdiff_t;
    using iterator_concept = std::input_iterator_tag;
    explicit Iterator(Next next) : next_(std::move(next)) { ++*this; }
    const std::vector<Tensor>& operator*() const { return batch_; }
    const std::vector<Tensor>* operator->() const { return &batch_; }
    Iterator& operator++() {
      batch_.clear();
      if (!next_(&batch_)) next_ = nullptr;
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return !next_; }

   private:
    Next next_;
    std::vector<Tensor> batch_;
  };
  Iterator begin() const { return Iterator(start_()); }
  std::default_sentinel_t end() const { return {}; }

 private:
  std::function<Next()> start_;
};

}  // namespace holon::data
