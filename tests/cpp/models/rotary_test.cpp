#include "holon/models/rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "holon/comm/run_ranks.h"
#include "holon/ops/values.h"

namespace holon::models {
namespace {

using comm::run_ranks;

constexpr int64_t kWidth = 8;

RotaryConfig config(const std::string& rope) {
  return RotaryConfig::from(
      Config(R"({"max_position_embeddings": 64, "rope_theta": 100.0, "rope_scaling": )" + rope + "}"));
}

double plain(int64_t i) { return std::pow(100.0, -2.0 * static_cast<double>(i) / kWidth); }

TEST(Rotary, LinearScalingDividesAll) {
  const auto f = inverse_frequencies(config(R"({"rope_type": "linear", "factor": 4.0})"), kWidth);
  ASSERT_EQ(f.size(), 4u);
  for (size_t i = 0; i < f.size(); ++i) EXPECT_NEAR(f[i], plain(static_cast<int64_t>(i)) / 4, 1e-7);
}

TEST(Rotary, Llama3DividesTheLowOnes) {
  // Wavelengths 6.3, 19.9, 62.8, 198.7; those below 64 / 4 stay, those over 64 / 1 are stretched.
  const auto f = inverse_frequencies(
      config(R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                 "original_max_position_embeddings": 64})"),
      kWidth);
  EXPECT_NEAR(f[0], plain(0), 1e-7);
  EXPECT_NEAR(f[3], plain(3) / 8, 1e-8);
  for (int64_t i : {1, 2}) {
    const double turns = 64 * plain(i) / (2 * std::numbers::pi), kept = (turns - 1) / 3;
    EXPECT_NEAR(f[static_cast<size_t>(i)], plain(i) * (kept + (1 - kept) / 8), 1e-7) << i;
  }
}

TEST(Rotary, YarnIsARamp) {
  const RotaryConfig c = config(R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16})");
  EXPECT_NEAR(c.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
  const auto f = inverse_frequencies(c, kWidth);
  // By hand: the pairs that turn 32 times and once in 16 positions are -2.19, held at 0, and 0.81, rounded up to 1.
  EXPECT_NEAR(f[0], plain(0), 1e-7);
  for (int64_t i : {1, 2, 3}) EXPECT_NEAR(f[static_cast<size_t>(i)], plain(i) / 4, 1e-8) << i;
}

TEST(Rotary, PairsAreTurned) {
  run_ranks(1, [](int) {
    const Layout l = Layout::over({})[0];
    const Rotary rotary(config(R"({"rope_type": "default"})"), kWidth, l);
    std::vector<float> values;
    for (int i = 0; i < 2 * 3 * 8; ++i) values.push_back(static_cast<float>(i % 7) - 3);
    const Tensor x = tensor(values, {1, 2, 3, 8}, {.placement = l.placement, .sbp = l.whole});
    const Tensor positions = tensor(std::vector<int64_t>{0, 5, 30}, {1, 3}, {.placement = l.placement, .sbp = l.whole});
    const auto y = to_vector<float>(rotate(x, rotary(positions)));
    const int64_t at[] = {0, 5, 30};
    for (size_t head = 0; head < 2; ++head)
      for (size_t t = 0; t < 3; ++t)
        for (size_t i = 0; i < 4; ++i) {
          const size_t first = (head * 3 + t) * 8 + i, second = first + 4;
          const double angle = static_cast<double>(at[t]) * plain(static_cast<int64_t>(i));
          EXPECT_NEAR(y[first], values[first] * std::cos(angle) - values[second] * std::sin(angle), 1e-5);
          EXPECT_NEAR(y[second], values[second] * std::cos(angle) + values[first] * std::sin(angle), 1e-5);
        }
  });
}

}  // namespace
}  // namespace holon::models
