#include "holon/checkpoint/formats/safetensors.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "checkpoint/folder.h"
#include "holon/base/error.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/ops/create.h"
#include "holon/ops/random.h"

namespace holon::checkpoint {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

void write(const fs::path& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
           const Metadata& metadata = {}) {
  std::vector<TensorInfo> infos;
  for (auto& [name, t] : tensors) infos.push_back({name, t.dtype(), t.shape(), 0, 0});
  SafetensorsWriter writer(path, infos, metadata);
  for (auto& [name, t] : tensors) writer.write(t.array());
  writer.commit();
}

TEST(Safetensors, HasTheFormat) {
  Folder folder;
  write(folder / "x", {{"a", arange(2).to(int32)}, {"b", ones({1}, {.dtype = uint8})}}, {{"k", "v"}});
  std::string text = read_text(folder / "x");
  uint64_t size = 0;
  std::memcpy(&size, text.data(), 8);
  EXPECT_EQ(size % 8, 0u);
  std::string header = text.substr(8, size);
  EXPECT_EQ(header.substr(0, header.find_last_not_of(' ') + 1),
            R"({"__metadata__":{"k":"v"},"a":{"data_offsets":[0,8],"dtype":"I32","shape":[2]},)"
            R"("b":{"data_offsets":[8,9],"dtype":"U8","shape":[1]}})");
  EXPECT_EQ(text.substr(8 + size), std::string("\0\0\0\0\1\0\0\0\1", 9));
  EXPECT_EQ(parse_safetensors(bytes(text), "x").metadata.at("k"), "v");
}

TEST(Safetensors, ReadsRegions) {
  Folder folder;
  Tensor t = arange(60).reshape({3, 4, 5});
  write(folder / "x", {{"first", ones({3})}, {"t", t}});
  SafetensorsFile file(folder / "x");
  Array out = Array::empty({4, 6, 7}, int64);
  file.read(*file.find("t"), {1, 2, 0}, {2, 1, 3}, out, {2, 5, 4});
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t k = 0; k < 3; ++k)
      EXPECT_EQ(out.data<int64_t>()[(2 + i) * 42 + 5 * 7 + 4 + k], (1 + i) * 20 + 2 * 5 + k);
  EXPECT_EQ(file.find("none"), nullptr);
}

TEST(Safetensors, AFileIsThereAsAWholeOrNotAtAll) {
  Folder folder;
  {
    SafetensorsWriter writer(folder / "x", {{"a", float32, {2}, 0, 0}}, {});
    EXPECT_THROW(writer.commit(), Error);
  }
  EXPECT_TRUE(fs::is_empty(folder.path));
  EXPECT_THROW(SafetensorsWriter(folder / "x", {{"a", float32, {2}, 0, 0}, {"a", float32, {2}, 0, 0}}, {}), Error);
  EXPECT_TRUE(fs::is_empty(folder.path));
}

// The sanitizers watch: whatever is in the file, nothing outside of it is read, and little memory is taken.
TEST(Safetensors, RandomDamageIsAnError) {
  Folder folder;
  fs::path path = folder / "x";
  save({{"a", randn({3, 5})}, {"b", checkpoint::Value::List{arange(7), ones({2}, {.dtype = boolean}), 2.5, "text"}}},
       path);
  const std::string whole = read_text(path);
  ASSERT_LT(whole.size(), 1000u);
  for (size_t n = 0; n < whole.size(); ++n) EXPECT_THROW(parse_safetensors(bytes(whole.substr(0, n)), "x"), Error) << n;
  std::mt19937 random(1);
  auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  const std::string likely = "0129-[]{}\",:.eE\\";
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = whole;
    for (size_t k = 0, n = 1 + below(3); k < n; ++k) {
      size_t at = below(text.size());
      switch (below(4)) {
        case 0: text[at] = static_cast<char>(text[at] ^ (1 << below(8))); break;
        case 1: text[at] = likely[below(likely.size())]; break;
        case 2: text.erase(at, 1 + below(4)); break;
        default: text.insert(at, 1 + below(9), likely[below(likely.size())]); break;
      }
    }
    write_text(path, text);
    try {
      load(path);
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(path.string()), std::string::npos) << e.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace holon::checkpoint
