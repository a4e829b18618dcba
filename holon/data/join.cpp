#include "holon/data/join.h"

#include <algorithm>
#include <string>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/global/slice.h"
#include "holon/kernels/on_device.h"
#include "holon/ops/resize.h"
#include "holon/ops/shape.h"

namespace holon::data {

namespace {

constexpr const char* kCall = "DataLoader: a batch of another shape";

// What ranks compare of a batch: the rows that each has differ as they should.
ops::PartMeta meta_of(const Tensor& rows, int64_t samples) {
  ops::PartMeta m = ops::PartMeta::of(rows);
  m.sizes[0] = samples;
  return m;
}

std::string list_text(std::span<const ops::PartMeta> metas) {
  std::string text;
  for (auto& m : metas) text += (text.empty() ? "" : ", ") + m.str();
  return text;
}

std::optional<Scalar> value_of(const Padding& padding, size_t i) {
  return padding.empty() ? std::nullopt : padding[padding.size() == 1 ? 0 : i];
}

// Errors: not the rows of part_rows().
void check_rows(const Tensor& rows, int64_t size, const Placement& placement, const NdSbp& nd_sbp) {
  if (!rows.defined()) fail_value("DataLoader: the dataset returned a batch with an undefined tensor.");
  if (rows.is_global()) fail_type("a loaded batch must be local; found a global tensor {}.", rows.shape());
  if (rows.ndim() == 0) fail_value("a loaded batch must have rows; found a tensor without axes.");
  const int64_t count = part_rows(size, placement, nd_sbp).second;
  check_nd_sbp(rows.shape(), placement, nd_sbp, "a batch");
  if (count > 0 && rows.shape()[0] != count)
    fail_value("this rank's part of a batch has {} rows; found {}.", count, rows.shape());
}

// Where this rank has no rows, any row tells shape and dtype. Axes behind the first are cut here.
Tensor join_rows(const Tensor& rows, int64_t size, const Placement& placement, const NdSbp& nd_sbp) {
  const int64_t count = part_rows(size, placement, nd_sbp).second;
  Dims shape = rows.shape();
  shape[0] = size;
  NoGradGuard guard;
  Array part;
  int index = placement.index_of(Context::current().rank());
  if (index >= 0) {
    Region slice = region_of(shape, placement, nd_sbp, index);
    Tensor mine = rows.detach();
    if (count == 0) mine = narrow(mine, 0, 0, 0);
    for (int a = 1; a < rows.ndim(); ++a)
      if (slice.shape[a] != shape[a]) mine = narrow(mine, a, slice.offset[a], slice.shape[a]);
    part = kernels::on_device(contiguous(mine).array(), placement.device());
  }
  return Tensor::global(std::move(part), shape, rows.dtype(), intern_spec(placement, nd_sbp));
}

}  // namespace

Tensor padded(const Tensor& rows, const Dims& sizes, const Scalar& value) {
  std::vector<int64_t> behind;  // (before, behind) of the last axis, then of the one before it
  for (int a = rows.ndim() - 1; a > 0; --a) {
    behind.push_back(0);
    behind.push_back(sizes[a] - rows.shape()[a]);
  }
  if (std::all_of(behind.begin(), behind.end(), [](int64_t n) { return n == 0; })) return rows;
  NoGradGuard guard;
  return pad(rows, behind, "constant", value);
}

BatchJoiner::BatchJoiner(const Placement& placement, const NdSbp& nd_sbp) : placement_(placement), nd_sbp_(nd_sbp) {
  part_rows(0, placement, nd_sbp);  // raises what is wrong with them
}

std::vector<Tensor> BatchJoiner::join(std::span<const Tensor> rows, int64_t samples, const Padding& padding,
                                      uint64_t structure) {
  if (padding.size() > 1 && padding.size() != rows.size())
    fail_value("DataLoader: {} padding values were given for a batch of {} tensors. Give one for all, or one for each.",
               padding.size(), rows.size());
  for (auto& t : rows) check_rows(t, samples, placement_, nd_sbp_);
  const std::vector<Dims> shapes = agree(rows, samples, padding, structure);
  std::vector<Tensor> batch;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto value = value_of(padding, i);
    batch.push_back(join_rows(value ? padded(rows[i], shapes[i], *value) : rows[i], samples, placement_, nd_sbp_));
  }
  return batch;
}

// The shapes of the whole batch's tensors.
std::vector<Dims> BatchJoiner::agree(std::span<const Tensor> rows, int64_t samples, const Padding& padding,
                                     uint64_t structure) {
  const bool pads = !padding.empty();
  std::vector<ops::PartMeta> mine;
  struct Word {
    uint64_t hash = 0;
    uint64_t structure = 0;
    int64_t tensors = 0, samples = 0;
  } word;
  for (auto& t : rows) mine.push_back(meta_of(t, samples)), word.hash = mine.back().hash(word.hash);
  word.structure = structure, word.tensors = static_cast<int64_t>(rows.size()), word.samples = samples;
  const uint64_t signature = hash_words(word.hash, structure);
  auto shapes = [&] {
    std::vector<Dims> all;
    for (auto& m : mine) all.push_back(m.shape());
    return all;
  };
  if (!ops::has_peers()) return shapes();
  if (!pads && foreseen_.is(signature)) {
    foreseen_.agreed(signature);
    return shapes();
  }

  ops::PartMeta shown = mine.empty() ? ops::PartMeta{} : mine[0];
  shown.dtype = -1;
  std::vector<Word> words;
  try {
    words = ops::exchange(kCall, shown, pads, word);
  } catch (const Error& e) {
    // The others, whose batches look as before, may have gone on to what they do with them.
    fail(e.kind(),
         "{} On {} the batch is {}, unlike the batch before: if the other ranks' batches differ, give the loader a "
         "padding_value, or pad to one length for all.",
         e.what(), rank_text(), list_text(mine));
  }
  const auto same = [&](auto member) {
    return std::all_of(words.begin(), words.end(), [&](const Word& w) { return w.*member == words[0].*member; });
  };
  const auto first_other = [&](auto member) {
    return std::find_if(words.begin(), words.end(), [&](const Word& w) { return w.*member != words[0].*member; }) -
        words.begin();
  };
  for (auto [member, what] : {std::pair{&Word::samples, "samples"}, {&Word::tensors, "tensors"}})
    if (!same(member)) {
      const auto r = first_other(member);
      fail_runtime("DataLoader: the ranks' batches have different numbers of {}: {} on rank 0, {} on rank {}. All "
                   "ranks must go through the same samples in the same order, with the same collate function.",
                   what, words[0].*member, at_index(words, r).*member, r);
    }
  if (!same(&Word::structure))
    fail_runtime("DataLoader: the ranks' batches are built in different ways (the keys of dicts and their order, lists "
                 "and tuples): rank {} differs from rank 0. Return the same structure from the dataset on all ranks.",
                 first_other(&Word::structure));
  if (same(&Word::hash)) {
    foreseen_.agreed(signature);
    return shapes();
  }

  const size_t n = mine.size(), bytes = n * sizeof(ops::PartMeta), world = words.size();
  std::vector<ops::PartMeta> all(n * world);
  ops::exchange_bytes(kCall, shown, 2, mine.data(), bytes, all.data());
  for (size_t i = 0; i < n; ++i)
    for (size_t r = 1; r < world; ++r) {
      const ops::PartMeta &a = all[i], &b = all[r * n + i];
      if (a == b) continue;
      const bool only_sizes = a.dtype == b.dtype && a.ndim == b.ndim;
      if (!only_sizes || !value_of(padding, i))
        fail_runtime("DataLoader: tensor {} of the batch is {} according to rank 0's part and {} according to that of "
                     "rank {}. {}",
                     i, a.str(), b.str(), r,
                     only_sizes ? "Give the loader a padding_value, which pads to the common length, or pad to one "
                                  "length for all."
                                : "Return the same dtype and number of axes on all ranks.");
      for (int64_t d = 1; d < a.ndim; ++d) mine[i].sizes[d] = std::max({mine[i].sizes[d], a.sizes[d], b.sizes[d]});
    }
  return shapes();
}

}  // namespace holon::data
