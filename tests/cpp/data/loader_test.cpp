#include "holon/data/loader.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "holon/array/device_runtime.h"
#include "holon/base/error.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"
#include "holon/data/sampler.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"
#include "holon/ops/values.h"
#include "tests/cpp/error_of.h"

namespace holon::data {
namespace {

using Row = std::vector<int64_t>;

Row values(const Tensor& t) {
  Tensor whole = t.full();
  return {whole.data<int64_t>().begin(), whole.data<int64_t>().end()};
}

std::shared_ptr<Dataset> counting(int64_t n) {
  return std::make_shared<TensorDataset>(std::vector<Tensor>{arange(n), arange(2 * n).reshape({n, 2})});
}

// All batches' first tensors until the end of the epoch.
std::vector<Row> epoch(DataLoader& loader) {
  std::vector<Row> rows;
  for (auto batch = loader.next(); !batch.empty(); batch = loader.next()) {
    EXPECT_EQ(batch[1].shape(), (Dims{batch[0].shape()[0], 2}));
    rows.push_back(values(batch[0]));
  }
  return rows;
}

TEST(Sampler, PermutationsAreWholeAndRepeat) {
  Row first = permutation(7, 0, 100), sorted = first;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(sorted[i], static_cast<int64_t>(i));
  EXPECT_EQ(permutation(7, 0, 100), first);
  EXPECT_NE(permutation(7, 1, 100), first);
  EXPECT_NE(permutation(8, 0, 100), first);
  EXPECT_EQ(permutation(1, 1, 0), Row{});
  EXPECT_THROW(permutation(1, 1, -1), Error);
}

TEST(Loader, GivesEveryBatchAndBeginsAnew) {
  for (int64_t prefetch : {0, 1, 3}) {
    DataLoader loader(counting(7), {.batch_size = 3, .prefetch = prefetch});
    for (int i = 0; i < 2; ++i) EXPECT_EQ(epoch(loader), (std::vector<Row>{{0, 1, 2}, {3, 4, 5}, {6}}));
    EXPECT_EQ(loader.position().epoch, 2);
    DataLoader even(counting(7), {.batch_size = 3, .drop_last = true, .prefetch = prefetch});
    EXPECT_EQ(epoch(even).size(), 2u);
    DataLoader none(counting(0), {.batch_size = 3, .prefetch = prefetch});
    EXPECT_TRUE(epoch(none).empty());
  }
}

TEST(Loader, PinsWhereThereIsADeviceAndGoesOnWithout) {
  const bool pins = pinning_runtime();
  for (int64_t prefetch : {0, 2})
    for (bool global : {false, true}) {
      LoaderOptions options{.batch_size = 3, .prefetch = prefetch, .pin_memory = true};
      if (global) options.placement = Placement("cpu", {0}), options.sbp = sbp::split(0);
      DataLoader loader(counting(7), options);
      std::vector<Row> rows;
      for (auto batch = loader.next(); !batch.empty(); batch = loader.next()) {
        EXPECT_EQ(batch[0].is_pinned(), pins);
        EXPECT_EQ(batch[1].is_pinned(), pins);
        rows.push_back(values(batch[0]));
        if (pins && !global) {
          EXPECT_EQ(values(to_device(to_device(batch[0], Device::parse("cuda"), true), Device())), rows.back());
        }
      }
      EXPECT_EQ(rows, (std::vector<Row>{{0, 1, 2}, {3, 4, 5}, {6}}));
    }
}

TEST(Loader, ShufflesBySeedAndGoesOnAnywhere) {
  LoaderOptions options{.batch_size = 4, .shuffle = true, .seed = 5};
  DataLoader loader(counting(11), options);
  auto first = epoch(loader), second = epoch(loader);
  EXPECT_NE(first, second);
  Row order = permutation(5, 0, 11);
  EXPECT_EQ(first[0], Row(order.begin(), order.begin() + 4));
  DataLoader other(counting(11), options);
  other.seek({1, 4});
  EXPECT_EQ(epoch(other), (std::vector<Row>{second.begin() + 1, second.end()}));
  EXPECT_THROW(other.seek({0, 12}), Error);
}

TEST(Loader, GoesOnAtTheSameSampleWithAnotherBatchSize) {
  const Row order = permutation(5, 1, 11);
  for (int64_t prefetch : {0, 2})
    for (int64_t before : {1, 3, 4})
      for (int64_t after : {1, 2, 5, 20})
        for (bool drop_last : {false, true}) {
          LoaderOptions options{.batch_size = before, .shuffle = true, .seed = 5, .prefetch = prefetch};
          DataLoader loader(counting(11), options);
          epoch(loader);
          for (int i = 0; i < 2; ++i) loader.next();
          EXPECT_EQ(loader.position().sample, 2 * before);
          options.batch_size = after, options.drop_last = drop_last;
          DataLoader other(counting(11), options);
          other.seek(loader.position());
          Row rest, want(order.begin() + 2 * before, order.end());
          for (auto& rows : epoch(other)) rest.insert(rest.end(), rows.begin(), rows.end());
          if (drop_last) want.resize(want.size() - want.size() % static_cast<size_t>(after));
          EXPECT_EQ(rest, want);
          EXPECT_EQ(other.position().epoch, 2);
        }
}

TEST(Loader, GlobalBatchesAreTheSameForAnyRanks) {
  std::vector<Row> want;
  {
    DataLoader loader(counting(10), {.batch_size = 4, .shuffle = true, .seed = 3});
    want = epoch(loader);
  }
  for (int ranks : {1, 2, 3, 4})
    comm::run_ranks(ranks, [&](int rank) {
      std::vector<std::pair<Placement, NdSbp>> layouts{{Placement::all("cpu"), sbp::split(0)},
                                                       {Placement::all("cpu"), sbp::broadcast()},
                                                       {Placement("cpu", {0}), sbp::split(0)}};
      if (ranks == 4) layouts.push_back({Placement("cpu", Dims{2, 2}, {0, 1, 2, 3}), {sbp::split(0), sbp::split(0)}});
      for (auto& [placement, sbp] : layouts) {
        DataLoader loader(counting(10),
                          {.batch_size = 4, .shuffle = true, .seed = 3, .placement = placement, .sbp = sbp});
        EXPECT_EQ(epoch(loader), want) << ranks << " " << sbp.str();
      }
    });
}

// Sample i is i, lengths[i] times; and i. Batches are as long as their longest sample, as a dataset that pads makes
// them.
struct Ragged : Dataset {
  Row lengths;
  DType dtype = int64;
  explicit Ragged(Row l, DType d = int64) : lengths(std::move(l)), dtype(d) {}
  int64_t size() const override { return static_cast<int64_t>(lengths.size()); }
  std::vector<Tensor> batch(std::span<const int64_t> indices) const override {
    int64_t longest = 0;
    for (int64_t i : indices) longest = std::max(longest, lengths[static_cast<size_t>(i)]);
    Row values, labels(indices.begin(), indices.end());
    for (int64_t i : indices)
      for (int64_t k = 0; k < longest; ++k) values.push_back(k < lengths[static_cast<size_t>(i)] ? i : -1);
    const auto n = static_cast<int64_t>(indices.size());
    return {tensor(values, {n, longest}).to(dtype), tensor(labels, {n})};
  }
};

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (auto& word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " in: " << text;
}

std::vector<std::pair<Placement, NdSbp>> layouts_of(int ranks) {
  std::vector<std::pair<Placement, NdSbp>> layouts{{Placement::all("cpu"), sbp::split(0)},
                                                   {Placement::all("cpu"), sbp::broadcast()},
                                                   {Placement::all("cpu"), sbp::split(1)},
                                                   {Placement("cpu", {ranks - 1}), sbp::split(0)}};
  if (ranks == 4) layouts.push_back({Placement("cpu", Dims{2, 2}, {3, 1, 2, 0}), {sbp::split(0), sbp::split(1)}});
  return layouts;
}

TEST(Loader, PartsOfUnlikeLengthsAreToldOnAllRanks) {
  for (int64_t prefetch : {0, 2})
    for (int ranks : {2, 3})
      comm::run_ranks(ranks, [&](int rank) {
        DataLoader loader(
            std::make_shared<Ragged>(Row{3, 3, 3, 3, 3, 3, 5, 1, 1, 2, 2, 2}),
            {.batch_size = 6, .prefetch = prefetch, .placement = Placement::all("cpu"), .sbp = sbp::split(0)});
        EXPECT_EQ(loader.next()[0].shape(), (Dims{6, 3}));
        expect_words(error_of([&] { loader.next(); }),
                     {"tensor 0 of the batch is int64 [6, 5] according to rank 0's part", "padding_value"});
        EXPECT_EQ(Tensor(ones({1}).to_global(Placement::all("cpu"), sbp::split(0))).sum().item().as_double(), ranks)
            << rank;
      });
}

TEST(Loader, PartsThatLookAsBeforeOnOneRankOnlyAreToldToo) {
  // Rank 0's part of the second batch is as long as the first batch, and it has no reason to ask.
  comm::run_ranks(2, [&](int rank) {
    DataLoader loader(std::make_shared<Ragged>(Row{3, 3, 3, 2}),
                      {.batch_size = 2, .placement = Placement::all("cpu"), .sbp = sbp::split(0)});
    loader.next();
    expect_words(error_of([&] {
                   auto batch = loader.next();
                   batch[0].to(float32).mean().item();
                 }),
                 {"a batch of another shape"});
    EXPECT_TRUE(rank == 0 || loader.position().sample == 4);
  });
}

TEST(Loader, PartsOfUnlikeDtypesAreTold) {
  for (bool pads : {false, true})
    comm::run_ranks(2, [&](int rank) {
      DataLoader loader(std::make_shared<Ragged>(Row{3, 3}, rank ? int32 : int64),
                        {.batch_size = 2,
                         .placement = Placement::all("cpu"),
                         .sbp = sbp::split(0),
                         .padding_value = pads ? Padding{0} : Padding{}});
      expect_words(error_of([&] { loader.next(); }), {"int64 [2, 3]", "int32 [2, 3]", "same dtype"});
    });
}

TEST(Loader, PadsToTheCommonLength) {
  const Row lengths{2, 7, 1, 4, 0, 3, 5, 5, 1, 2, 6};
  std::vector<Row> want;
  for (int64_t begin = 0; begin < 11; begin += 4) {
    const int64_t end = std::min<int64_t>(begin + 4, 11);
    const int64_t longest = *std::max_element(lengths.begin() + begin, lengths.begin() + end);
    Row row;
    for (int64_t i = begin; i < end; ++i)
      for (int64_t k = 0; k < longest; ++k) row.push_back(k < lengths[static_cast<size_t>(i)] ? i : -1);
    want.push_back(row);
  }
  for (int ranks : {1, 2, 3, 4})
    comm::run_ranks(ranks, [&](int) {
      for (auto& [placement, sbp] : layouts_of(ranks)) {
        if (sbp.size() == 1 && sbp[0].is_split(1)) continue;  // labels have one axis
        if (sbp.size() == 2) continue;
        for (const Padding& padding : {Padding{-1}, Padding{-1, std::nullopt}, Padding{-1, 5}}) {
          DataLoader loader(std::make_shared<Ragged>(lengths),
                            {.batch_size = 4, .placement = placement, .sbp = sbp, .padding_value = padding});
          for (auto& row : want) {
            auto batch = loader.next();
            EXPECT_EQ(values(batch[0]), row) << ranks << " " << sbp.str();
            EXPECT_EQ(batch[1].shape(), (Dims{batch[0].shape()[0]}));
          }
          EXPECT_TRUE(loader.next().empty());
        }
      }
      DataLoader wrong(
          std::make_shared<Ragged>(lengths),
          {.batch_size = 4, .placement = Placement::all("cpu"), .sbp = sbp::broadcast(), .padding_value = {1, 2, 3}});
      expect_words(error_of([&] { wrong.next(); }), {"3 padding values", "2 tensors"});
    });
  EXPECT_THROW(DataLoader(counting(2), {.padding_value = {0}}), Error);
}

TEST(Joiner, PadsAxesThatAreSplit) {
  comm::run_ranks(4, [&](int rank) {
    const Placement grid("cpu", Dims{2, 2}, {0, 1, 2, 3});
    BatchJoiner joiner(grid, {sbp::split(0), sbp::split(1)});
    // Two rows, one for each row of the grid, of 3 and 5 elements.
    const int64_t mine = rank < 2 ? 3 : 5;
    auto batch = joiner.join(std::vector{ones({1, mine})}, 2, {Scalar(0)});
    EXPECT_EQ(batch[0].shape(), (Dims{2, 5}));
    EXPECT_EQ(to_vector<float>(batch[0]), (std::vector<float>{1, 1, 1, 0, 0, 1, 1, 1, 1, 1}));
  });
}

TEST(Joiner, BatchesThatAreBuiltDifferentlyAreTold) {
  comm::run_ranks(2, [&](int rank) {
    BatchJoiner joiner(Placement::all("cpu"), sbp::split(0));
    const std::vector<Tensor> rows{ones({1, 2}), ones({1, 2})};
    expect_words(error_of([&] { joiner.join(std::span(rows).first(rank ? 1 : 2), 2); }), {"numbers of tensors"});
    expect_words(error_of([&] { joiner.join(rows, 2, {}, rank ? 3 : 4); }), {"built in different ways"});
    // As an iterable dataset gives that ends sooner on one rank.
    expect_words(error_of([&] { joiner.join(rows, rank ? 1 : 2); }), {"numbers of samples"});
    EXPECT_EQ(joiner.join(rows, 2).size(), 2u);
  });
}

TEST(Joiner, AsksOnlyWhereABatchIsNotTheOneToExpect) {
  comm::run_ranks(2, [&](int) {
    BatchJoiner joiner(Placement::all("cpu"), sbp::split(0));
    auto calls = [&](int64_t length, const Padding& padding = {}) {
      const uint64_t before = comm::stats().calls;
      joiner.join(std::vector{ones({1, length})}, 2, padding);
      return comm::stats().calls - before;
    };
    EXPECT_EQ(calls(3), 1u);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(calls(3), 0u);
    EXPECT_EQ(calls(4), 1u);
    EXPECT_EQ(calls(3), 1u);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(calls(4), 0u);  // as it came before
      EXPECT_EQ(calls(3), 0u);
    }
    EXPECT_EQ(calls(3, {Scalar(0)}), 1u);
  });
}

struct Failing : Dataset {
  int64_t size() const override { return 4; }
  std::vector<Tensor> batch(std::span<const int64_t> indices) const override {
    if (indices[0] == 2) fail_runtime("sample 2 is damaged");
    return {arange(static_cast<int64_t>(indices.size()))};
  }
};

// Its thread is not in the child, which makes one of its own and goes on where the parent was.
TEST(Loader, GoesOnInAForkedProcess) {
  auto loader = std::make_unique<DataLoader>(counting(10), LoaderOptions{.batch_size = 2, .shuffle = true, .seed = 3});
  DataLoader same(counting(10), {.batch_size = 2, .shuffle = true, .seed = 3, .prefetch = 0});
  auto alike = [&] { return values(loader->next()[0]) == values(same.next()[0]); };
  EXPECT_TRUE(alike());
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);
    bool well = true;
    for (int i = 0; i < 4; ++i) well &= alike();
    loader.reset();
    _exit(well ? 0 : 1);
  }
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(alike());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(Loader, ErrorsArriveWithTheirBatch) {
  DataLoader loader(std::make_shared<Failing>(), {.batch_size = 2});
  EXPECT_EQ(loader.next().size(), 1u);
  EXPECT_THROW(loader.next(), Error);
  EXPECT_TRUE(loader.next().empty());
  EXPECT_THROW(DataLoader(counting(1), {.batch_size = 0}), Error);
  EXPECT_THROW(DataLoader(counting(1), {.prefetch = -1}), Error);
  EXPECT_THROW(DataLoader(counting(1), {.placement = Placement("cpu", {0})}), Error);
  EXPECT_THROW(TensorDataset({}), Error);
  EXPECT_THROW(TensorDataset({arange(2), arange(3)}), Error);
}

TEST(Loader, ReadsWindowsOfText) {
  auto path = std::filesystem::temp_directory_path() / "holon_loader_test.txt";
  std::ofstream(path) << "hello world";
  auto data = std::make_shared<ByteDataset>(ByteCorpus({path}), 4, 3, true);
  std::filesystem::remove(path);
  EXPECT_EQ(data->size(), 3);
  DataLoader loader(data, {.batch_size = 2});
  auto batch = loader.next();
  EXPECT_EQ(values(batch[0]), (Row{'h', 'e', 'l', 'l', 'l', 'o', ' ', 'w'}));
  EXPECT_EQ(values(batch[1]), (Row{'e', 'l', 'l', 'o', 'o', ' ', 'w', 'o'}));
}

}  // namespace
}  // namespace holon::data
