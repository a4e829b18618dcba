// inspect(), diff() and convert(), and reading in pieces.
#include "holon/checkpoint/tools.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "holon/checkpoint/core/pieces.h"
#include "holon/checkpoint/verify.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/random_state.h"
#include "holon/ops.h"
#include "holon/ops/operators.h"
#include "tests/cpp/checkpoint/folder.h"
#include "tests/cpp/checkpoint/same_bits.h"
#include "tests/cpp/error_of.h"

namespace holon::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TEST(Pieces, CoverARegionInOrder) {
  for (const Dims& shape : {Dims{4, 3, 5}, Dims{1, 1, 60}, Dims{60}, Dims{}, Dims{7, 1, 2, 3}})
    for (int64_t bytes : {1, 4, 12, 20, 60, 100, 1000}) {
      Region region = whole(shape);
      for (int a = 0; a < shape.size(); ++a) region.offset[a] = 10 * a + 3;
      const Dims strides = contiguous_strides(shape);
      int64_t next = 0;
      for_each_piece(region, 4, bytes, [&](const Region& piece) {
        int64_t begin = 0;
        for (int a = 0; a < shape.size(); ++a) begin += (piece.offset[a] - region.offset[a]) * strides[a];
        EXPECT_EQ(begin, next) << shape << " in pieces of " << bytes;
        EXPECT_LE(piece.shape.numel() * 4, std::max<int64_t>(4, bytes));
        next += piece.shape.numel();
      });
      EXPECT_EQ(next, shape.numel()) << shape << " in pieces of " << bytes;
    }
  for_each_piece(whole({3, 0}), 4, 100, [](const Region&) { FAIL() << "of nothing"; });
}

class ToolsTest : public testing::Test {
 protected:
  void SetUp() override {
    manual_seed(1);
    weight = randn({6, 4});
    save({{"model", {{"weight", weight}, {"count", tensor({1, 2, 3})}}}, {"step", 7}}, path("a.safetensors"));
  }
  std::string path(const std::string& name) const { return folder / name; }

  Folder folder;
  Tensor weight;
};

TEST_F(ToolsTest, Inspect) {
  const std::string text = inspect(path("a.safetensors"));
  EXPECT_THAT(text, HasSubstr("2 tensors, 120 B: 96 B float32, 24 B int64"));
  EXPECT_THAT(text, HasSubstr("model.weight  float32  [6, 4]"));
  EXPECT_THAT(inspect(path("a.safetensors"), true), HasSubstr(R"("name": "model.count")"));
  EXPECT_THAT(error_of([&] { inspect(path("none")); }), HasSubstr("none"));
}

TEST_F(ToolsTest, Diff) {
  auto how = [&](const Value& other, double tolerance = 0) {
    save(other, path("b.safetensors"));
    std::string text;
    for (auto& d : diff(path("a.safetensors"), path("b.safetensors"), tolerance))
      text += d.tensor + ": " + d.how + "\n";
    return text;
  };
  const Tensor count = tensor({1, 2, 3});
  EXPECT_EQ(how({{"model", {{"count", count}, {"weight", weight}}}}), "");
  EXPECT_EQ(how({{"model", {{"count", count}, {"bias", weight}}}}),
            "model.weight: is in A only\nmodel.bias: is in B only\n");
  EXPECT_EQ(how({{"model", {{"count", tensor({1, 2, 5})}, {"weight", weight}}}}),
            "model.count: 1 of 3 elements differ, by up to 2\n");
  EXPECT_EQ(how({{"model", {{"count", count}, {"weight", weight.to(float64)}}}}),
            "model.weight: float32 [6, 4] and float64 [6, 4]\n");
  EXPECT_EQ(how({{"model", {{"count", count}, {"weight", weight + 0.001}}}}, 0.01), "");
  EXPECT_THAT(how({{"model", {{"count", count}, {"weight", weight + 0.25}}}}, 0.01), HasSubstr("24 of 24"));
  EXPECT_THAT(error_of([&] { diff(path("a.safetensors"), path("b.safetensors"), -1); }), HasSubstr("tolerance is -1"));
}

TEST_F(ToolsTest, ConvertsBothWays) {
  convert(path("a.safetensors"), path("many"), {.files = 3});
  EXPECT_GT(verify(path("many")).files, 1);
  EXPECT_EQ(load(path("many"))["step"].integer(), 7);
  EXPECT_TRUE(diff(path("a.safetensors"), path("many")).empty());
  convert(path("many"), path("one.safetensors"));
  EXPECT_EQ(load(path("one.safetensors"))["step"].integer(), 7);
  EXPECT_TRUE(diff(path("a.safetensors"), path("one.safetensors")).empty());
  // A folder is replaced as a whole.
  convert(path("one.safetensors"), path("many"), {.files = 1});
  EXPECT_EQ(verify(path("many")).files, 1);
  EXPECT_THAT(error_of([&] { convert(path("many"), path("hf"), {.format = Format::kHuggingFace}); }),
              HasSubstr("step"));
  EXPECT_THAT(error_of([&] { convert(path("many"), path("many"), {.files = 2}); }), HasSubstr("would be replaced"));
  EXPECT_THAT(error_of([&] { convert(path("many"), path("x"), {.files = 0}); }), HasSubstr("files is 0"));
  EXPECT_TRUE(diff(path("a.safetensors"), path("many")).empty());

  save({{"weight", weight}, {"other", randn({300})}}, path("weights.safetensors"));
  convert(path("weights.safetensors"), path("hf"), {.format = Format::kHuggingFace, .shard_bytes = 1000});
  EXPECT_TRUE(fs::exists(path("hf/model.safetensors.index.json")));
  EXPECT_TRUE(diff(path("weights.safetensors"), path("hf")).empty());
  const Verified found = verify(path("hf"));
  EXPECT_EQ(found.files, 2);
  EXPECT_EQ(found.tensors, 2);
  EXPECT_EQ(found.bytes, 96u + 1200u);
  EXPECT_EQ(found.unchecked_bytes, found.bytes);
  fs::resize_file(path("hf/model-00002-of-00002.safetensors"), 100);
  EXPECT_THAT(error_of([&] { verify(path("hf")); }), HasSubstr("model-00002-of-00002.safetensors"));
}

TEST_F(ToolsTest, LayoutsStay) {
  comm::run_ranks(4, [&](int rank) {
    const Placement all("cpu", {2, 2}, {0, 1, 2, 3});
    const Tensor x = arange(24).reshape({6, 4}).to_global(all, {sbp::broadcast(), sbp::broadcast()});
    save({{"x", x.to_global(all, {sbp::split(0), sbp::split(1)})}}, path("parts"));
    if (rank == 0) convert(path("parts"), path("few"), {.files = 2});
    comm::barrier();
    const Tensor found = load(path("few"))["x"].tensor();
    EXPECT_EQ(found.nd_sbp(), (NdSbp{sbp::split(0), sbp::split(1)}));
    EXPECT_TRUE(same_bits(found, x));
    if (rank == 0) {
      EXPECT_TRUE(diff(path("parts"), path("few")).empty());
      EXPECT_THAT(inspect(path("few")), HasSubstr("(S(0), S(1)) on 4 ranks"));
    }
  });
}

}  // namespace
}  // namespace holon::checkpoint
