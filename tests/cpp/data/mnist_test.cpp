#include "holon/data/mnist.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "holon/base/error.h"
#include "holon/base/parallel.h"
#include "holon/data/gzip.h"
#include "holon/data/idx.h"
#include "holon/data/synthetic_digits.h"
#include "tests/cpp/error_of.h"

namespace holon::data {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

struct TemporaryFolder {
  fs::path path;
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "holon_mnist_test_XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { fs::remove_all(path); }
};

Bytes read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  auto* from = reinterpret_cast<const std::byte*>(text.data());
  return {from, from + text.size()};
}

void write(const fs::path& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

TEST(Gzip, ComesBackPieceByPiece) {
  std::mt19937 random(1);
  for (size_t n : {size_t{0}, size_t{1}, size_t{1000}, size_t{300000}}) {
    Bytes content(n);
    for (auto& b : content) b = static_cast<std::byte>(random() % 7);
    Bytes packed = gzip(content);
    EXPECT_EQ(packed, gzip(content));
    for (size_t step : {size_t{1000}, n + 1}) {
      GzipReader reader(packed, "x");
      Bytes out;
      for (size_t got = step; got == step;) {
        Bytes piece(step);
        got = reader.read(piece);
        out.insert(out.end(), piece.begin(), piece.begin() + static_cast<long>(got));
      }
      EXPECT_EQ(out, content);
    }
  }
  EXPECT_THROW(gzip({}, 11), Error);
}

TEST(Mnist, IsReadByALoader) {
  TemporaryFolder folder;
  write_synthetic_mnist(folder.path, {.train = 20, .test = 7, .seed = 3});
  auto train = mnist({.root = folder.path});
  EXPECT_EQ(train->size(), 20);
  EXPECT_EQ(mnist({.root = folder.path, .train = false})->size(), 7);
  DataLoader loader(train, {.batch_size = 8, .drop_last = true});
  auto batch = loader.next();
  EXPECT_EQ(batch[0].shape(), (Dims{8, 1, 28, 28}));
  EXPECT_EQ(batch[0].dtype(), float32);
  EXPECT_EQ(batch[1].dtype(), int64);
  const Tensor labels = train->labels(), images = train->images();
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(batch[1].data<int64_t>()[i], labels.data<uint8_t>()[i]);
  for (size_t k = 0; k < 8 * 784; ++k)
    EXPECT_EQ(batch[0].data<float>()[k], static_cast<float>(images.data<uint8_t>()[k]) / 255.0f);
  EXPECT_THROW(train->batch(std::vector<int64_t>{20}), Error);
}

TEST(Mnist, SaysWhatIsMissing) {
  TemporaryFolder folder;
  std::string text = error_of([&] { mnist({.root = folder.path}); });
  EXPECT_NE(text.find("lacks train-images-idx3-ubyte and train-labels-idx1-ubyte."), std::string::npos) << text;
  EXPECT_NE(text.find("python -m holon.data.synthetic_mnist"), std::string::npos);
}

TEST(SyntheticDigits, FollowFromTheSeed) {
  auto [images, labels] = draw_digits(600, 5, 1);
  int threads = num_threads();
  set_num_threads(threads == 1 ? 2 : 1);
  auto [again, same] = draw_digits(700, 5, 1);
  set_num_threads(threads);
  EXPECT_EQ(std::memcmp(images.array().bytes(), again.array().bytes(), images.array().nbytes()), 0);
  EXPECT_EQ(std::memcmp(labels.array().bytes(), same.array().bytes(), labels.array().nbytes()), 0);
  for (auto [seed, stream] : {std::pair<uint64_t, uint64_t>{5, 0}, {6, 1}}) {
    auto [other, digits] = draw_digits(600, seed, stream);
    EXPECT_NE(std::memcmp(images.array().bytes(), other.array().bytes(), images.array().nbytes()), 0);
  }
  std::vector<int> count(10);
  for (uint8_t digit : labels.data<uint8_t>()) ++count.at(digit);
  EXPECT_GT(*std::min_element(count.begin(), count.end()), 30);
  EXPECT_EQ(draw_digits(0, 1).first.shape(), (Dims{0, 28, 28}));
  EXPECT_THROW(draw_digits(-1, 1), Error);
}

TEST(SyntheticDigits, LieInTheMiddle) {
  auto [images, labels] = draw_digits(200, 1);
  auto pixels = images.data<uint8_t>();
  for (size_t i = 0; i < 200; ++i) {
    double ink = 0, x = 0, y = 0;
    for (size_t k = 0; k < 784; ++k) {
      double p = pixels[i * 784 + k];
      ink += p, x += p * static_cast<double>(k % 28), y += p * static_cast<double>(k / 28);
    }
    EXPECT_GT(ink / 784, 8) << i;
    EXPECT_LT(ink / 784, 120) << i;
    EXPECT_NEAR(x / ink, 13.5, 4) << i;
    EXPECT_NEAR(y / ink, 13.5, 4) << i;
  }
}

TEST(SyntheticDigits, RealFilesAreNotWrittenOver) {
  TemporaryFolder folder;
  write_synthetic_mnist(folder.path / "deep/mnist", {.train = 3, .test = 2});
  auto file = folder.path / "deep/mnist" / (mnist_file(true, true) + ".gz");
  Bytes before = read(file);
  EXPECT_NE(error_of([&] {
              write_synthetic_mnist(folder.path / "deep/mnist", {.train = 3, .test = 2});
            }).find("exists already"),
            std::string::npos);
  write_synthetic_mnist(folder.path / "deep/mnist", {.train = 3, .test = 2, .force = true});
  EXPECT_EQ(read(file), before);
  EXPECT_THROW(write_synthetic_mnist(folder.path / "x", {.train = 0}), Error);
}

// Whatever is in the files: an error that names one of them, no crash, and no more memory than they can fill.
TEST(Mnist, RandomDamageIsAnError) {
  TemporaryFolder folder;
  write_synthetic_mnist(folder.path, {.train = 12, .test = 5});
  std::mt19937 random(7);
  auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  for (bool packed : {true, false}) {
    if (!packed)
      for (bool images : {true, false}) {
        fs::path path = folder.path / mnist_file(true, images);
        auto [x, y] = read_mnist(folder.path, true);
        write(path, idx_bytes(images ? x : y));
        fs::remove(path.string() + ".gz");
      }
    int refused = 0;
    for (int i = 0; i < 500; ++i) {
      fs::path path = folder.path / (mnist_file(true, below(2) == 0) + (packed ? ".gz" : ""));
      const Bytes whole = read(path);
      Bytes bytes = whole;
      switch (below(4)) {
        case 0: bytes.resize(below(bytes.size())); break;
        case 1:
          bytes.insert(bytes.begin() + static_cast<long>(below(bytes.size())), 1 + below(20),
                       static_cast<std::byte>(below(256)));
          break;
        default:
          for (size_t k = 0, n = 1 + below(4); k < n; ++k)
            bytes[below(std::min<size_t>(bytes.size(), below(2) ? 16 : bytes.size()))] =
                static_cast<std::byte>(below(256));
      }
      write(path, bytes);
      reset_peak_memory();
      size_t before = memory_stats().in_use_bytes;
      try {
        read_mnist(folder.path, true);
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find(path.string()), std::string::npos) << e.what();
        ++refused;
      }
      EXPECT_LT(memory_stats().peak_bytes - before, 1100 * (bytes.size() + 1000) + (1 << 20));
      write(path, whole);
    }
    EXPECT_GT(refused, packed ? 350 : 150);  // a changed pixel of a plain file is a pixel
  }
}

// A small file that says, or unpacks to, something large.
TEST(Mnist, AbsurdSizesTakeNoMemory) {
  Bytes header{std::byte{0}, std::byte{0}, std::byte{8}, std::byte{3}};
  for (int i = 0; i < 12; ++i) header.push_back(i % 4 == 0 ? std::byte{0x7f} : std::byte{0xff});
  reset_peak_memory();
  size_t before = memory_stats().in_use_bytes;
  for (auto& file : {header, gzip(header)})
    EXPECT_NE(error_of([&] { parse_idx(file, "x"); }).find("do not fit"), std::string::npos);
  // 64 MiB of zeros in 64 KiB: twice as many as the header says.
  Bytes bomb{std::byte{0}, std::byte{0}, std::byte{8}, std::byte{1},
             std::byte{0}, std::byte{0}, std::byte{4}, std::byte{0}};
  bomb.resize(64 << 20);
  EXPECT_NE(error_of([&] { parse_idx(gzip(bomb), "x"); }).find("or more"), std::string::npos);
  EXPECT_LT(memory_stats().peak_bytes - before, size_t{1} << 20);
}

}  // namespace
}  // namespace holon::data
