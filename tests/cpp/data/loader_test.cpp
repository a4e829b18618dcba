#include "holon/data/loader.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "holon/array/device_runtime.h"
#include "holon/base/error.h"
#include "holon/comm/run_ranks.h"
#include "holon/data/sampler.h"
#include "holon/ops.h"

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
  const bool pins = device_runtime();
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
  other.seek({1, 1});
  EXPECT_EQ(epoch(other), (std::vector<Row>{second.begin() + 1, second.end()}));
  EXPECT_THROW(other.seek({0, 4}), Error);
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

struct Failing : Dataset {
  int64_t size() const override { return 4; }
  std::vector<Tensor> batch(std::span<const int64_t> indices) const override {
    if (indices[0] == 2) fail_runtime("sample 2 is damaged");
    return {arange(static_cast<int64_t>(indices.size()))};
  }
};

// Its thread is not in the child, which makes one of its own and goes on where the parent was.
TEST(Loader, GoesOnInAForkedProcess) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer ends children that start threads";
#endif
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
