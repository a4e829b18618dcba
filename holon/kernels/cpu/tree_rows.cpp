#include <algorithm>
#include <vector>

#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/sum_tree.h"
#include "holon/kernels/tree.h"

namespace holon::kernels::tree {

namespace {

// Sums of some of the rows of x, the others being zeros.
class RowSums {
 public:
  RowSums(const Array& x, std::span<const int64_t> from)
      : bytes_(x.bytes()),
        from_(from),
        stride_(x.strides.back()),
        width_(x.shape.back()),
        leaf_(leaf_length(static_cast<int64_t>(from.size()))),
        leaves_(subtrees(static_cast<int64_t>(from.size()))) {}

  // to = the sum of the rows `places`, which ascend. Pre: there are some.
  void run(std::span<const int64_t> places, float* to) { add(places, 0, leaves_, 0, to); }

 private:
  // Of the places in the leaves [first, first + count).
  void add(std::span<const int64_t> places, int64_t first, int64_t count, size_t depth, float* to) {
    // Subtrees of zeros change nothing.
    while (count > 1) {
      const int64_t middle = (first + count / 2) * leaf_;
      if (places.back() < middle) {
        count /= 2;
      } else if (places.front() >= middle) {
        count /= 2;
        first += count;
      } else {
        break;
      }
    }
    if (count == 1) {
      std::fill_n(to, width_, 0.0f);
      for (int64_t i : places) {
        const float* row = reinterpret_cast<const float*>(bytes_ + at_index(from_, i));
        for (int64_t j = 0; j < width_; ++j) to[j] += row[j * stride_];
      }
      return;
    }
    const int64_t half = count / 2;
    const auto middle =
        static_cast<size_t>(std::lower_bound(places.begin(), places.end(), (first + half) * leaf_) - places.begin());
    while (depth >= more_.size()) more_.emplace_back(to_size(width_));
    float* more = more_[depth].data();  // stays where it is when more_ grows
    add(places.first(middle), first, half, depth + 1, to);
    add(places.subspan(middle), first + half, half, depth + 1, more);
    for (int64_t j = 0; j < width_; ++j) to[j] += more[j];
  }

  const std::byte* bytes_;
  std::span<const int64_t> from_;
  const int64_t stride_, width_, leaf_, leaves_;
  std::vector<std::vector<float>> more_;  // the right half at each depth
};

}  // namespace

void add_rows(const Array& x, std::span<const int64_t> from, std::span<const int64_t> to, Array& out, bool adds) {
  const int64_t rows = out.shape[0], d = out.shape[1];
  // The places of each row of out, in their order.
  std::vector<int64_t> begin(to_size(rows + 1)), places(to.size());
  auto is_here = [&](int64_t r) { return r >= 0 && r < rows; };
  for (int64_t r : to)
    if (is_here(r)) ++at_index(begin, r + 1);
  for (int64_t r = 0; r < rows; ++r) at_index(begin, r + 1) += at_index(begin, r);
  std::vector<int64_t> next(begin.begin(), begin.end() - 1);
  for (size_t i = 0; i < to.size(); ++i)
    if (is_here(to[i])) at_index(places, at_index(next, to[i])++) = static_cast<int64_t>(i);
  parallel_for(rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(d, 1)), [&](int64_t first, int64_t last) {
    RowSums sums(x, from);
    std::vector<float> row(to_size(d));
    for (int64_t r = first; r < last; ++r) {
      const int64_t at = at_index(begin, r), count = at_index(begin, r + 1) - at;
      float* dst = out.data<float>() + r * out.strides[0];
      const int64_t stride = out.strides[1];
      if (count == 0) {
        if (!adds)
          for (int64_t j = 0; j < d; ++j) dst[j * stride] = 0;
        continue;
      }
      sums.run({places.data() + at, to_size(count)}, row.data());
      for (int64_t j = 0; j < d; ++j) dst[j * stride] = adds ? dst[j * stride] + row[to_size(j)] : row[to_size(j)];
    }
  });
}

}  // namespace holon::kernels::tree
