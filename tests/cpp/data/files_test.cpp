#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/data/atomic_file.h"
#include "holon/data/corpus.h"
#include "holon/data/crc32c.h"
#include "holon/data/file_lock.h"
#include "holon/data/idx.h"
#include "holon/data/input_file.h"
#include "tests/cpp/error_of.h"

namespace holon::data {
namespace {

namespace fs = std::filesystem;

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "holon_files_test_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path file(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  fs::path folder_;
};

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Crc32c, IsTheKnownOne) {
  EXPECT_EQ(crc32c({}), 0u);
  EXPECT_EQ(crc32c(bytes("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c_by_table(bytes("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(bytes(std::string(32, '\0'))), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(bytes("456789"), crc32c(bytes("123"))), 0xe3069283u);
}

TEST(Crc32c, InstructionsAndTableAgree) {
  std::string text(40000, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761u >> 11);
  for (size_t n : {1u, 7u, 8u, 9u, 2048u, 8191u, 8192u, 8193u, 16384u, 20000u, 39990u})
    for (size_t from : {0u, 1u, 5u}) {
      auto part = bytes(text).subspan(from, n);
      EXPECT_EQ(crc32c(part, 77), crc32c_by_table(part, 77)) << n;
    }
}

TEST_F(Files, WhatIsNoRegularFileIsRefusedAtOnce) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  for (const fs::path& path : {folder_ / "pipe", folder_, fs::path("/dev/null"), fs::path("/dev/zero")})
    EXPECT_NE(error_of([&] { InputFile file(path); }).find(path.string() + " is not a regular file"),
              std::string::npos);
  EXPECT_NE(error_of([&] { read_idx(folder_ / "pipe"); }).find("not a regular file"), std::string::npos);
  EXPECT_NE(error_of([&] { ByteCorpus corpus({folder_ / "pipe"}); }).find("not a regular file"), std::string::npos);
  EXPECT_NE(error_of([&] { AtomicFile file(folder_ / "pipe"); }).find("not a regular file"), std::string::npos);
}

// A map of the file would end the process by SIGBUS.
TEST_F(Files, WhatIsCutOffMeanwhileIsAnError) {
  fs::path path = file("x", std::string(100000, 'a'));
  InputFile input(path);
  ByteCorpus corpus({path});
  fs::resize_file(path, 10);
  std::vector<std::byte> out(5000);
  EXPECT_NE(error_of([&] { input.read(50000, out); }).find("it had 100000 when it was opened"), std::string::npos);
  EXPECT_NE(error_of([&] { corpus.rows(std::vector<int64_t>{50000}, 5000); }).find("truncated it"), std::string::npos);
  EXPECT_EQ(error_of([&] { input.read(2, std::span(out).first(8)); }), "no error");
  EXPECT_NE(error_of([&] { read_whole(path, 5); }).find("it has 10 bytes; a file of this kind has at most 5"),
            std::string::npos);
}

// A program has few descriptors; a corpus may have thousands of files.
TEST_F(Files, ACorpusOfManyFilesKeepsFewOpen) {
  std::vector<fs::path> paths;
  for (int i = 0; i < 200; ++i) paths.push_back(file(fmt::format("{:03}", i), fmt::format("{:03}", i)));
  const int before = ::dup(0);
  ::close(before);
  ByteCorpus corpus(paths);
  const int after = ::dup(0);
  ::close(after);
  EXPECT_LT(after - before, 100);
  Tensor row = corpus.rows(std::vector<int64_t>{1}, 598);
  for (int64_t i = 0; i < 598; ++i)
    EXPECT_EQ(row.array().data<int64_t>()[i], fmt::format("{:03}", (i + 1) / 3)[static_cast<size_t>((i + 1) % 3)]) << i;
}

TEST_F(Files, OnlyWhatKilledWritersLeftIsRemoved) {
  file(".holon-tmp-1-0", "of a writer that is gone");
  file("mine", "");
  {
    AtomicFile alive(folder_ / "x");
    alive.write("abc", 3);
    alive.overwrite(1, "x", 1);
    remove_dead_temporaries(folder_);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2);
    alive.commit();
  }
  std::string text(3, ' ');
  std::ifstream(folder_ / "x") >> text;
  EXPECT_EQ(text, "axc");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2);
  const int fd = create_locked(folder_ / "lock");
  ASSERT_GE(fd, 0);
  EXPECT_FALSE(remove_if_unlocked(folder_ / "lock"));
  ::close(fd);
  EXPECT_TRUE(remove_if_unlocked(folder_ / "lock"));
  EXPECT_TRUE(remove_if_unlocked(folder_ / "lock"));
  EXPECT_FALSE(fs::exists(folder_ / "lock"));
}

}  // namespace
}  // namespace holon::data
