#include "holon/verify/recording.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "error_of.h"
#include "holon/base/fmt.h"

namespace holon::verify {
namespace {

namespace fs = std::filesystem;

class RecordingTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove(path); }
  const std::string path = (fs::temp_directory_path() / fmt::format("holon_recording_{}", getpid())).string();
};

Record sample() {
  Record r{.kind = Kind::kBackward, .op = "matmul", .site = "a.py:7", .label = "x", .random = true};
  r.forward = 0;
  r.place = 1;
  r.inputs = {0};
  Value v;
  v.dtype = DType::kBFloat16;
  v.shape = {4, 2};
  v.global = true;
  v.hierarchy = {2, 1};
  v.ranks = {3, 1};
  v.nd_sbp = {sbp::split(0), sbp::partial_sum()};
  v.requires_grad = true;
  v.here = true;
  v.part_shape = {2, 2};
  v.part = {1, -2, 0.5, 1e30};
  r.values = {v, Value{}};
  return r;
}

TEST_F(RecordingTest, IsReadAsItWasWritten) {
  {
    RecordingWriter writer(path, 1, 4);
    writer.add({.kind = Kind::kMade, .op = "tensor"});
    writer.add(sample());
    writer.end("a.py:9: ValueError: no");
  }
  const Recording r = read_recording(path);
  EXPECT_EQ(r.rank, 1);
  EXPECT_EQ(r.world, 4);
  EXPECT_FALSE(r.ended);
  EXPECT_EQ(r.error, "a.py:9: ValueError: no");
  ASSERT_EQ(r.records.size(), 2u);
  const Record &found = r.records[1], want = sample();
  EXPECT_EQ(found.kind, want.kind);
  EXPECT_EQ(found.op + found.site + found.label, want.op + want.site + want.label);
  EXPECT_TRUE(found.random && !found.view && !found.converts);
  EXPECT_EQ(found.inputs, want.inputs);
  ASSERT_EQ(found.values.size(), 2u);
  const Value &v = found.values[0], &w = want.values[0];
  EXPECT_EQ(v.dtype, w.dtype);
  EXPECT_EQ(v.shape, w.shape);
  EXPECT_EQ(v.ranks, w.ranks);
  EXPECT_EQ(v.nd_sbp, w.nd_sbp);
  EXPECT_EQ(v.part_shape, w.part_shape);
  EXPECT_EQ(v.part, w.part);
  EXPECT_FALSE(found.values[1].here);
}

// A rank may be killed while it writes.
TEST_F(RecordingTest, AnyBeginningOfItCanBeRead) {
  {
    RecordingWriter writer(path, 0, 1);
    writer.add({.kind = Kind::kMade, .op = "tensor"});
    writer.add(sample());
    writer.end("");
  }
  std::ifstream file(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  EXPECT_TRUE(read_recording(path).ended);
  for (size_t n = 24; n < all.size(); ++n) {
    std::ofstream(path, std::ios::binary).write(all.data(), static_cast<std::streamsize>(n));
    const Recording r = read_recording(path);
    EXPECT_FALSE(r.ended) << n;
    EXPECT_LE(r.records.size(), 2u);
  }
}

// What a file says of sizes and places is not believed.
TEST_F(RecordingTest, DamageIsNotFollowed) {
  {
    RecordingWriter writer(path, 0, 1);
    writer.add({.kind = Kind::kMade, .op = "tensor"});
    writer.add(sample());
    writer.end("");
  }
  std::ifstream file(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  for (size_t i = 8; i < all.size(); ++i) {
    std::string damaged = all;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x7f);
    std::ofstream(path, std::ios::binary).write(damaged.data(), static_cast<std::streamsize>(damaged.size()));
    for (auto& record : read_recording(path).records)
      for (int in : record.inputs) EXPECT_GE(in, 0);
  }
}

TEST_F(RecordingTest, OtherFilesAreRefused) {
  EXPECT_NE(error_of([&] { read_recording(path); }).find("is not the recording"), std::string::npos);
  std::ofstream(path) << "something else";
  EXPECT_NE(error_of([&] { read_recording(path); }).find("is not the recording"), std::string::npos);
  EXPECT_NE(error_of([&] { RecordingWriter("/no/such/folder/x", 0, 1); }).find("cannot be written"), std::string::npos);
}

}  // namespace
}  // namespace holon::verify
