#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "holon/base/error.h"
#include "holon/comm/run_ranks.h"
#include "holon/data/corpus.h"
#include "holon/data/idx.h"
#include "holon/data/place.h"
#include "holon/ops/create.h"
#include "holon/ops/reduce.h"
#include "holon/ops/values.h"

namespace holon::data {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> bytes(std::initializer_list<int> list) {
  std::vector<std::byte> out;
  for (int x : list) out.push_back(static_cast<std::byte>(x));
  return out;
}

std::string message(const std::vector<std::byte>& file) {
  try {
    parse_idx(file, "file.idx");
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("file.idx"), std::string::npos);
    return e.what();
  }
  return "";
}

// A folder of its own that goes with the test.
struct Folder {
  fs::path path;
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "holon_data_test_XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path); }
  fs::path write(const std::string& name, const std::string& text) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << text;
    return path / name;
  }
};

TEST(Idx, ReadsEveryType) {
  Tensor t = parse_idx(bytes({0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255}), "x");
  EXPECT_EQ(t.shape(), (Dims{2, 3}));
  EXPECT_EQ(t.data<uint8_t>()[5], 255);
  EXPECT_EQ(to_vector<int8_t>(parse_idx(bytes({0, 0, 9, 1, 0, 0, 0, 1, 255}), "x"))[0], -1);
  EXPECT_EQ(to_vector<int32_t>(parse_idx(bytes({0, 0, 0x0b, 1, 0, 0, 0, 2, 255, 254, 1, 0}), "x"))[0], -2);
  EXPECT_EQ(to_vector<int32_t>(parse_idx(bytes({0, 0, 0x0c, 1, 0, 0, 0, 1, 0, 0, 1, 2}), "x"))[0], 258);
  EXPECT_EQ(to_vector<float>(parse_idx(bytes({0, 0, 0x0d, 1, 0, 0, 0, 1, 0x3f, 0xc0, 0, 0}), "x"))[0], 1.5f);
  EXPECT_EQ(to_vector<double>(parse_idx(bytes({0, 0, 0x0e, 0, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0}), "x"))[0], 1.5);
  EXPECT_EQ(parse_idx(bytes({0, 0, 8, 2, 0, 0, 0, 0, 255, 255, 255, 255}), "x").shape(), (Dims{0, 4294967295}));
}

TEST(Idx, RefusesDamagedFiles) {
  EXPECT_NE(message({}).find("4 bytes"), std::string::npos);
  EXPECT_NE(message(bytes({0x1f, 0x8b, 8, 0})).find("gzip"), std::string::npos);
  EXPECT_NE(message(bytes({'P', 'K', 8, 1})).find("not an IDX file"), std::string::npos);
  EXPECT_NE(message(bytes({0, 0, 7, 1, 0, 0, 0, 0})).find("0x07"), std::string::npos);
  EXPECT_NE(message(bytes({0, 0, 8, 9, 0, 0, 0, 0})).find("9 axes"), std::string::npos);
  EXPECT_NE(message(bytes({0, 0, 8, 2, 0, 0, 0, 1})).find("ends after 8"), std::string::npos);
  EXPECT_NE(message(bytes({0, 0, 8, 1, 0, 0, 0, 3, 1, 2})).find("truncated"), std::string::npos);
  EXPECT_NE(message(bytes({0, 0, 8, 1, 0, 0, 0, 1, 1, 2})).find("do not fit"), std::string::npos);
  // Sizes whose product wraps around to what is there.
  EXPECT_NE(message(bytes({0, 0, 8, 3, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0})).find("do not fit"), std::string::npos);
  EXPECT_NE(message(bytes({0, 0, 0x0e, 2, 0x20, 0, 0, 0, 1, 0, 0, 0})).find("do not fit"), std::string::npos);
}

// Whatever the header says, nothing is read beyond the end (the sanitizers watch), and every prefix is refused.
TEST(Idx, RefusesEveryPrefix) {
  auto whole = bytes({0, 0, 0x0c, 2, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2});
  EXPECT_EQ(parse_idx(whole, "x").numel(), 2);
  for (size_t n = 0; n < whole.size(); ++n) {
    std::vector<std::byte> prefix(whole.begin(), whole.begin() + static_cast<long>(n));
    EXPECT_THROW(parse_idx(prefix, "x"), Error) << n;
  }
}

TEST(Idx, ReadsFiles) {
  Folder folder;
  auto path = folder.write("a.idx", std::string("\0\0\x08\x01\0\0\0\x02\x05\x06", 10));
  EXPECT_EQ(to_vector<uint8_t>(read_idx(path))[1], 6);
  EXPECT_THROW(read_idx(folder.path / "none"), Error);
  EXPECT_THROW(read_idx(folder.path), Error);
}

TEST(Corpus, ReadsFilesAsOne) {
  Folder folder;
  ByteCorpus corpus(
      {folder.write("a", "abc"), folder.write("empty", ""), folder.write("b", "defgh"), folder.write("c", "i")});
  EXPECT_EQ(corpus.size(), 9);
  std::string text(9, ' ');
  for (int64_t from = 0; from <= 9; ++from)
    for (int64_t to = from; to <= 9; ++to) {
      corpus.read(from, {reinterpret_cast<uint8_t*>(text.data()), static_cast<size_t>(to - from)});
      EXPECT_EQ(text.substr(0, static_cast<size_t>(to - from)),
                std::string("abcdefghi").substr(static_cast<size_t>(from), static_cast<size_t>(to - from)));
    }
  uint8_t two[2];
  EXPECT_THROW(corpus.read(8, two), Error);
  EXPECT_THROW(corpus.read(-1, two), Error);
  EXPECT_THROW(corpus.read(INT64_MAX, two), Error);
  std::vector<int64_t> offsets{0, 6};
  Tensor rows = corpus.rows(offsets, 3);
  EXPECT_EQ(rows.shape(), (Dims{2, 3}));
  EXPECT_EQ(rows.data<int64_t>()[5], 'i');
  EXPECT_THROW(ByteCorpus({folder.path / "empty"}), Error);
  EXPECT_THROW(ByteCorpus({folder.path / "none"}), Error);
}

TEST(Corpus, ListsFilesInOrder) {
  Folder folder;
  folder.write("b.py", "x");
  folder.write("a/z.py", "x");
  folder.write("a/y.txt", "x");
  auto found = files_below(folder.path, ".py");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0], folder.path / "a" / "z.py");
  EXPECT_THROW(files_below(folder.path / "none", ".py"), Error);
}

TEST(Place, KeepsTheWholeValueUnderEveryLayout) {
  comm::run_ranks(4, [](int) {
    Placement grid("cpu", Dims{2, 2}, {0, 1, 2, 3}), some("cpu", {2, 0, 1});
    Tensor alike = arange(15).reshape({5, 3});
    auto check = [&](const Placement& p, const NdSbp& sbp) {
      Tensor t = place(alike, p, sbp);
      EXPECT_EQ(t.nd_sbp(), sbp);
      EXPECT_TRUE(equal(t.full(), alike).item().as_int()) << sbp.str();
    };
    for (Sbp a : {sbp::broadcast(), sbp::split(0), sbp::split(1), sbp::partial_sum()}) {
      check(some, a);
      for (Sbp b : {sbp::broadcast(), sbp::split(0), sbp::split(1), sbp::partial_sum()}) check(grid, {a, b});
    }
    EXPECT_THROW(place(alike, some, {sbp::split(0), sbp::split(1)}), Error);
    EXPECT_THROW(place(alike, some, sbp::split(2)), Error);
  });
}

}  // namespace
}  // namespace holon::data
