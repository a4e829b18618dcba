// Sequences of unlike lengths without padding: the steps one after the other, and of each step the sequences that are
// still going on, longest first. Where an element goes is a table of indices that follows from the lengths, which are
// numbers of the host, alike on all ranks.
#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "holon/base/index.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/index.h"
#include "holon/ops/packed.h"
#include "holon/ops/shape.h"
#include "holon/ops/whole.h"

namespace holon::ops {
namespace {

Tensor indices_beside(const Tensor& x, const std::vector<int64_t>& values) {
  Array a = Array::empty({static_cast<int64_t>(values.size())}, int64);
  std::copy(values.begin(), values.end(), a.data<int64_t>());
  return beside(x, a);
}

// x [a, b, ...] as [a b, ...].
Tensor merged(const Tensor& x) {
  Dims shape{x.shape()[0] * x.shape()[1]};
  for (int a = 2; a < x.ndim(); ++a) shape.push_back(x.shape()[a]);
  return reshape(x, shape);
}

}  // namespace

HOLON_OP(pack_padded_sequence,
         "pack_padded_sequence(Tensor x, int[] lengths, bool batch_first=False, bool enforce_sorted=True) -> (Tensor "
         "data, Tensor batch_sizes, Tensor sorted_indices, Tensor unsorted_indices)")
    .doc("The first lengths[i] steps of each sequence of x [steps, n, ...] ([n, steps, ...] if batch_first), step by "
         "step "
         "and the longest first: data [sum of lengths, ...], how many sequences have each step, the sequences in that "
         "order, and their places in it. Errors: lengths that do not fall, unless enforce_sorted is False.",
         "pack_padded_sequence(ones(3, 2), [3, 1]).batch_sizes")
    .function_only()
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      const bool batch_first = c.b("batch_first"_attr);
      const std::span<const int64_t> given = c.ints("lengths"_attr);
      const std::vector<int64_t> lengths(given.begin(), given.end());
      if (x.ndim() < 2 || x.shape()[batch_first ? 0 : 1] != static_cast<int64_t>(lengths.size()) || lengths.empty())
        fail_value("pack_padded_sequence: x is {}, with {} lengths; it takes [steps, n, ...] ([n, steps, ...] if "
                   "batch_first) and one length for each of the n sequences.",
                   x.shape(), lengths.size());
      const int64_t n = static_cast<int64_t>(lengths.size()), steps = x.shape()[batch_first ? 1 : 0];
      for (int64_t length : lengths)
        if (length < 1 || length > steps)
          fail_value("pack_padded_sequence: a length is {}; each must be from 1 to the {} steps of x {}.", length,
                     steps, x.shape());
      if (c.b("enforce_sorted"_attr) && !std::is_sorted(lengths.rbegin(), lengths.rend()))
        fail_value("pack_padded_sequence: the lengths do not fall from first to last. Sort the sequences, or pass "
                   "enforce_sorted=False.");
      std::vector<int64_t> order(lengths.size()), places(lengths.size()), sizes, from;
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t a, int64_t b) { return at_index(lengths, a) > at_index(lengths, b); });
      for (int64_t k = 0; k < n; ++k) at_index(places, at_index(order, k)) = k;
      for (int64_t t = 0; t < at_index(lengths, order[0]); ++t) {
        int64_t count = 0;
        for (; count < n && at_index(lengths, at_index(order, count)) > t; ++count)
          from.push_back(batch_first ? at_index(order, count) * steps + t : t * n + at_index(order, count));
        sizes.push_back(count);
      }
      c.out.push_back(index_select(merged(x), 0, indices_beside(x, from)));
      c.out.push_back(indices_beside(x, sizes));
      c.out.push_back(indices_beside(x, order));
      c.out.push_back(indices_beside(x, places));
    });

HOLON_OP(pad_packed_sequence,
         "pad_packed_sequence(Tensor data, int[] batch_sizes, bool batch_first=False, Scalar padding_value=0.0, int? "
         "total_length=None) -> (Tensor padded, Tensor lengths)")
    .doc("The inverse of pack_padded_sequence, with the sequences in falling order of their lengths: [steps, n, ...] "
         "([n, steps, ...] if batch_first) filled up with padding_value to the longest, or to total_length, and the "
         "lengths.",
         "pad_packed_sequence(ones(4), [2, 1, 1]).lengths")
    .function_only()
    .body([](BodyCall& c) {
      const Tensor& data = c.in(0);
      const bool batch_first = c.b("batch_first"_attr);
      const std::span<const int64_t> given = c.ints("batch_sizes"_attr);
      const std::vector<int64_t> sizes(given.begin(), given.end());
      int64_t sum = 0;
      bool fits = !sizes.empty() && sizes.back() > 0 && std::is_sorted(sizes.rbegin(), sizes.rend());
      for (int64_t s : sizes) fits = fits && !__builtin_add_overflow(sum, s, &sum);
      if (!fits || data.ndim() < 1 || data.shape()[0] != sum)
        fail_value("pad_packed_sequence: data is {}, batch_sizes has {} steps of {} elements; they must fall, be at "
                   "least 1 and add up to data's first axis. Pass those of pack_padded_sequence.",
                   data.shape(), sizes.size(), sum);
      const int64_t n = sizes[0], longest = static_cast<int64_t>(sizes.size());
      const int64_t steps = c.has("total_length"_attr) ? c.i("total_length"_attr) : longest;
      int64_t places = 0;
      if (__builtin_mul_overflow(steps, n, &places) || places > (int64_t{1} << 40))
        fail_value(
            "pad_packed_sequence: total_length {} times {} sequences are more elements than there is memory for.",
            steps, n);
      if (steps < longest)
        fail_value("pad_packed_sequence: total_length is {}, the longest sequence has {} steps. Give at least as many.",
                   steps, longest);
      std::vector<int64_t> from(to_size(steps * n)), lengths(to_size(n));
      Array outside = Array::empty({steps * n}, boolean);
      for (int64_t i = 0, begin = 0, t = 0; t < steps; ++t) {
        const int64_t count = t < longest ? at_index(sizes, t) : 0;
        for (int64_t k = 0; k < n; ++k) {
          i = batch_first ? k * steps + t : t * n + k;
          outside.data<bool>()[i] = k >= count;
          at_index(from, i) = k < count ? begin + k : 0;
          if (k < count) ++at_index(lengths, k);
        }
        begin += count;
      }
      Tensor y = index_select(data, 0, indices_beside(data, from));
      Dims ones = Dims::filled(data.ndim(), 1), shape = batch_first ? Dims{n, steps} : Dims{steps, n};
      ones[0] = steps * n;
      for (int a = 1; a < data.ndim(); ++a) shape.push_back(data.shape()[a]);
      if (sum < steps * n) y = masked_fill(y, reshape(beside(data, outside), ones), c.scalar("padding_value"_attr));
      c.out.push_back(reshape(y, shape));
      c.out.push_back(indices_beside(data, lengths));
    });

}  // namespace holon::ops
