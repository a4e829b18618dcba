// Sums of several columns of numbers whose leaves come one after the other (sum_tree.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/sum_tree.h"

namespace holon::kernels::tree {

class TreeColumn {
 public:
  // For up to `width` columns.
  explicit TreeColumn(int64_t width) : width_(width), leaf_(to_size(width)) {}

  // The sums of n <= width columns go to `to`.
  void begin(int64_t n, float* to) {
    n_ = n, to_ = to, number_ = 0;
    std::fill_n(to, n, 0.0f);
  }
  // Where the terms of the next leaf are added: zeros at first.
  float* leaf() {
    std::fill_n(leaf_.data(), n_, 0.0f);
    return leaf_.data();
  }
  // The same, for a leaf that is written at once.
  float* unset() { return leaf_.data(); }
  // The leaf is complete.
  void push() {
    push_leaf(
        number_++, [&](int l) { add(level(l), leaf_.data()); },
        [&](int l) { std::copy_n(leaf_.data(), n_, level(l)); });
  }
  // Pre: the number of leaves is a power of two, or 0.
  void end() {
    if (number_ > 0) std::copy_n(level(std::countr_zero(number_)), n_, to_);
  }

 private:
  float* level(int l) {
    if (to_size((l + 1) * width_) > levels_.size()) levels_.resize(to_size((l + 1) * width_));
    return levels_.data() + l * width_;
  }
  void add(const float* first, float* carried) const {
    for (int64_t j = 0; j < n_; ++j) carried[j] = first[j] + carried[j];
  }

  const int64_t width_;
  int64_t n_ = 0;
  float* to_ = nullptr;
  uint64_t number_ = 0;
  std::vector<float> leaf_, levels_;
};

// Sums over rows of several columns, in subtrees for the threads.
class RowTree {
 public:
  RowTree(int64_t rows, int64_t columns) : rows_(rows), columns_(columns), leaf_(leaf_length(rows)) {
    while (parts_ < kParts && parts_ * 2 <= subtrees(rows)) parts_ *= 2;
    sums_.resize(to_size(parts_ * columns));
  }

  // work(each_leaf) is called for some subtrees, in a thread; it calls each_leaf(f), and that f(begin, end, sums) for
  // the rows of each leaf, whose terms it adds to sums, zeros at first. grain: rows that are worth a thread.
  template <class Work>
  void run(int64_t grain, Work&& work) {
    const int64_t rows = rows_ / parts_;
    parallel_for(parts_, std::max<int64_t>(1, grain / std::max<int64_t>(rows, 1)), [&](int64_t first, int64_t last) {
      TreeColumn column(columns_);
      work([&](auto&& f) {
        for (int64_t part = first; part < last; ++part) {
          column.begin(columns_, sums_.data() + part * columns_);
          for (int64_t at = part * rows; at < (part + 1) * rows; at += leaf_) {
            f(at, at + leaf_, column.leaf());
            column.push();
          }
          column.end();
        }
      });
    });
    for (int64_t step = 1; step < parts_; step *= 2)
      for (int64_t p = 0; p + step < parts_; p += 2 * step)
        for (int64_t j = 0; j < columns_; ++j)
          at_index(sums_, p * columns_ + j) += at_index(sums_, (p + step) * columns_ + j);
  }
  const float* sums() const { return sums_.data(); }

 private:
  static constexpr int64_t kParts = 16;
  const int64_t rows_, columns_, leaf_;
  int64_t parts_ = 1;
  std::vector<float> sums_;
};

}  // namespace holon::kernels::tree
