#include "holon/checkpoint/formats/dequantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>

#include "checkpoint/folder.h"
#include "checkpoint/other_files.h"
#include "error_of.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/shape.h"

namespace holon::checkpoint {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

std::string random_bytes(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::string out;
  for (int64_t i = 0; i < n; ++i) out.push_back(static_cast<char>(random() & 0xff));
  return out;
}

uint8_t byte(const std::string& bytes, int64_t i) { return static_cast<uint8_t>(bytes[static_cast<size_t>(i)]); }

// Its definition: (-1)^s 2^(e - 7) (1 + m / 8), and 2^-6 m / 8 where e is 0.
float e4m3(uint8_t b) {
  const int e = b >> 3 & 15, m = b & 7;
  if (e == 15 && m == 7) return NAN;
  const double size = e == 0 ? std::pow(2.0, -6) * m / 8 : std::pow(2.0, e - 7) * (1 + m / 8.0);
  return static_cast<float>(b & 0x80 ? -size : size);
}

// A checkpoint with one of each, and its numbers by the definition.
struct Sample {
  static constexpr int64_t kRows = 300, kColumns = 200, kExperts = 2, kGroups = 3;
  std::string e4m3_bytes = random_bytes(kRows * kColumns, 1), blocks = random_bytes(kExperts * 5 * kGroups * 16, 2);
  std::vector<float> scales;
  std::string e8m0;

  Sample() {
    for (char& c : e4m3_bytes)
      if ((c & 0x7f) == 0x7f) c = 1;  // not a number: not comparable
    for (int i = 0; i < 3 * 2; ++i) scales.push_back(0.5f + static_cast<float>(i));
    for (int64_t i = 0; i < kExperts * 5 * kGroups; ++i) e8m0.push_back(static_cast<char>(120 + i));
  }
  std::string file() const {
    return safetensors_of({{"w", "F8_E4M3", {kRows, kColumns}, e4m3_bytes},
                           {"w_scale_inv", "F32", {3, 2}, bytes_of_numbers(scales)},
                           {"plain", "F8_E5M2", {4}, std::string("\x3c\x40\xbc\x00", 4)},
                           {"experts_blocks", "U8", {kExperts, 5, kGroups, 16}, blocks},
                           {"experts_scales", "U8", {kExperts, 5, kGroups}, e8m0},
                           {"bias", "BF16", {2}, std::string("\x80\x3f\x00\x40", 4)}});
  }
  float weight(int64_t r, int64_t c) const {
    return e4m3(byte(e4m3_bytes, r * kColumns + c)) * scales[static_cast<size_t>(r / 128 * 2 + c / 128)];
  }
  float expert(int64_t e, int64_t r, int64_t c) const {
    static constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const int64_t group = (e * 5 + r) * kGroups + c / 32;
    const uint8_t two = byte(blocks, group * 16 + c % 32 / 2);
    const int four = c % 2 ? two >> 4 : two & 15;
    return std::ldexp(four & 8 ? -kValues[four & 7] : kValues[four & 7], byte(e8m0, group) - 127);
  }
};

TEST(Dequantize, IsByRequest) {
  Folder folder;
  Sample sample;
  write_text(folder / "x", sample.file());
  Value raw = load(folder / "x");
  EXPECT_EQ(raw.size(), 6u);
  EXPECT_EQ(raw["w"].tensor().dtype(), float8_e4m3fn);
  EXPECT_EQ(raw["plain"].tensor().dtype(), float8_e5m2);
  EXPECT_EQ(raw["w"].tensor().array().data<uint8_t>()[5], byte(sample.e4m3_bytes, 5));
  EXPECT_EQ(raw["w"].tensor().to(float32).array().data<float>()[5], e4m3(byte(sample.e4m3_bytes, 5)));
  EXPECT_EQ(raw["plain"].tensor().to(float32).array().data<float>()[0], 1.0f);
  EXPECT_EQ(raw["plain"].tensor().to(float32).array().data<float>()[2], -1.0f);
  EXPECT_EQ(raw["experts_blocks"].tensor().dtype(), uint8);
  Value v = load(folder / "x", {.dequantize = bfloat16});
  std::string names;
  for (auto& [key, value] : v.dict()) names += key.text() + " ";
  EXPECT_EQ(names, "w plain experts bias ");
  EXPECT_EQ(v["bias"].tensor().dtype(), bfloat16);
  for (auto name : {"w", "plain", "experts"}) EXPECT_EQ(v[name].tensor().dtype(), bfloat16) << name;
  EXPECT_TRUE(contains(error_of([&] { load(folder / "x", {.dequantize = int32}); }), "dequantize is int32"));
  EXPECT_TRUE(contains(error_of([&] { load(folder / "x", {.dequantize = float8_e5m2}); }), "is float8_e5m2"));
}

TEST(Dequantize, EveryRegionOnEveryRank) {
  Folder folder;
  Sample sample;
  write_text(folder / "x", sample.file());
  for (int n : {1, 2, 3, 4})
    comm::run_ranks(n, [&](int) {
      for (auto sbp : {sbp::split(0), sbp::split(1), sbp::split(2), sbp::broadcast()})
        for (DType dtype : {float32, bfloat16}) {
          Value v = load(folder / "x", {.placement = Placement::all("cpu"), .sbp = sbp, .dequantize = dtype});
          Tensor w = contiguous(v["w"].tensor().full().to(float32));
          Tensor experts = contiguous(v["experts"].tensor().full().to(float32));
          ASSERT_EQ(w.shape(), (Dims{300, 200}));
          ASSERT_EQ(experts.shape(), (Dims{2, 5, 96}));
          auto expected = [&](float x) { return dtype == float32 ? x : static_cast<float>(BFloat16(x)); };
          for (int64_t i = 0; i < w.numel(); ++i)
            ASSERT_EQ(w.array().data<float>()[i], expected(sample.weight(i / 200, i % 200))) << i;
          for (int64_t i = 0; i < experts.numel(); ++i)
            ASSERT_EQ(experts.array().data<float>()[i], expected(sample.expert(i / 480, i / 96 % 5, i % 96))) << i;
        }
    });
}

TEST(Dequantize, ScalesThatDoNotFitAreErrors) {
  Folder folder;
  auto error = [&](const std::vector<RawTensor>& tensors) {
    write_text(folder / "x", safetensors_of(tensors));
    std::string found = error_of([&] { load(folder / "x", {.dequantize = float32}); });
    EXPECT_TRUE(found == "no error" || contains(found, (folder / "x").string())) << found;
    return found;
  };
  const RawTensor w{"w", "F8_E4M3", {129, 4}, std::string(129 * 4, '\1')};
  EXPECT_EQ(error({w, {"w_scale_inv", "F32", {2, 1}, std::string(8, '\0')}}), "no error");
  EXPECT_EQ(error({w, {"w_scale_inv", "BF16", {2, 1}, std::string(4, '\0')}}), "no error");
  EXPECT_EQ(error({w, {"w_scale_inv", "F8_E8M0", {2, 1}, std::string(2, '\0')}}), "no error");
  EXPECT_TRUE(contains(error({w, {"w_scale_inv", "F32", {1, 1}, std::string(4, '\0')}}),
                       "'w_scale_inv' [1, 1] cannot be the scales of 'w' [129, 4]"));
  EXPECT_TRUE(contains(error({w, {"w_scale_inv", "I32", {2, 1}, std::string(8, '\0')}}), "not floating point"));
  EXPECT_EQ(error({w}), "no error");
  const RawTensor blocks{"b_blocks", "U8", {2, 16}, std::string(32, '\1')};
  EXPECT_TRUE(contains(error({blocks, {"b_scales", "U8", {3}, std::string(3, '\1')}}), "cannot be the scales"));
  EXPECT_TRUE(contains(error({blocks, {"b_scales", "U8", {2}, std::string(2, '\1')}, {"b", "U8", {1}, "x"}}),
                       "would have the same name"));
  EXPECT_EQ(error({blocks}), "no error");
}

}  // namespace
}  // namespace holon::checkpoint
