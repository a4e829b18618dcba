#include "holon/data/batches.h"

#include <gtest/gtest.h>

#include <ranges>
#include <stdexcept>

#include "holon/dispatch/dispatch.h"
#include "holon/ops/create.h"

namespace holon::data {
namespace {

static_assert(std::ranges::input_range<Batches>);

std::vector<size_t> sizes(const Batches& batches) {
  std::vector<size_t> list;
  for (const auto& batch : batches) list.push_back(batch.size());
  return list;
}

TEST(Batches, OfAList) {
  const Tensor t = ones({2});
  Batches batches(std::vector<std::vector<Tensor>>{{t}, {t, t}});
  EXPECT_EQ(sizes(batches), (std::vector<size_t>{1, 2}));
  EXPECT_EQ(sizes(batches), (std::vector<size_t>{1, 2}));  // from the beginning again
  EXPECT_TRUE((*batches.begin())[0].is_same(t));
  EXPECT_TRUE(sizes(Batches(std::vector<std::vector<Tensor>>())).empty());
}

TEST(Batches, OfALoader) {
  DataLoader loader(std::make_shared<TensorDataset>(std::vector{arange(10)}), {.batch_size = 4});
  Batches batches(loader);
  for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(sizes(batches), (std::vector<size_t>{1, 1, 1}));
}

TEST(Batches, AnExceptionLeavesTheLoop) {
  int started = 0;
  Batches batches([&] {
    ++started;
    return [n = 0](std::vector<Tensor>* batch) mutable -> bool {
      if (n++) throw std::runtime_error("the source");
      batch->push_back(ones({1}));
      return true;
    };
  });
  int seen = 0;
  EXPECT_THROW(for (auto& batch : batches) seen += static_cast<int>(batch.size()), std::runtime_error);
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(started, 1);
}

}  // namespace
}  // namespace holon::data
