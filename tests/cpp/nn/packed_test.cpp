// Packed sequences: what recurrent layers give for each is what they give for it alone.
#include "holon/nn/packed.h"

#include <gtest/gtest.h>

#include "holon/base/error.h"
#include "holon/nn/rnn.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/operators.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"
#include "holon/ops/values.h"
#include "tests/cpp/error_of.h"

namespace holon::nn {
namespace {

using utils::rnn::pack_sequence;
using utils::rnn::pad_packed_sequence;

double difference(const Tensor& a, const Tensor& b) { return amax(abs(sub(a, b))).item<double>(); }

std::vector<Tensor> sequences() { return {randn({2, 3}), randn({5, 3}), randn({1, 3}), randn({4, 3})}; }

TEST(Packed, ThereAndBack) {
  auto parts = sequences();
  PackedSequence packed = pack_sequence(parts, false);
  EXPECT_EQ(to_vector<int64_t>(packed.batch_sizes), (std::vector<int64_t>{4, 3, 2, 2, 1}));
  EXPECT_EQ(to_vector<int64_t>(packed.sorted_indices), (std::vector<int64_t>{1, 3, 0, 2}));
  EXPECT_EQ(to_vector<int64_t>(lengths_of(packed)), (std::vector<int64_t>{5, 4, 2, 1}));
  auto [padded, lengths] = pad_packed_sequence(packed, true, -1.0, 6);
  EXPECT_EQ(padded.shape(), (Dims{4, 6, 3}));
  EXPECT_EQ(to_vector<int64_t>(lengths), (std::vector<int64_t>{2, 5, 1, 4}));
  for (size_t k = 0; k < parts.size(); ++k) {
    Tensor row = select(padded, 0, static_cast<int64_t>(k));
    EXPECT_EQ(difference(slice(row, 0, 0, parts[k].size(0)), parts[k]), 0);
    EXPECT_EQ(amax(slice(row, 0, parts[k].size(0), 6)).item<double>(), -1);
  }
  EXPECT_NE(error_of([&] { pack_sequence(parts); }).find("enforce_sorted"), std::string::npos);
  EXPECT_NE(error_of([&] { utils::rnn::pad_sequence({}); }).find("no sequences"), std::string::npos);
}

TEST(Packed, InRecurrentLayers) {
  auto parts = sequences();
  PackedSequence packed = pack_sequence(parts, false);
  LSTM lstm(3, 4, {.num_layers = 2, .bidirectional = true});
  GRU gru(3, 4, {.bidirectional = true});
  RNN rnn(3, 4, {}, "relu");
  Tensor h0 = randn({4, 4, 4}), c0 = randn({4, 4, 4});
  auto [y, h, c] = lstm(packed, h0, c0);
  auto [gy, gh] = gru(packed);
  auto [ry, rh] = rnn(packed);
  const Tensor padded = pad_packed_sequence(y).first, g_padded = pad_packed_sequence(gy).first,
               r_padded = pad_packed_sequence(ry).first;
  for (int64_t k = 0; k < 4; ++k) {
    const Tensor& part = parts[static_cast<size_t>(k)];
    auto of = [&](const Tensor& t) { return slice(select(t, 1, k), 0, 0, part.size(0)); };
    auto [own, own_h, own_c] = lstm(unsqueeze(part, 1), slice(h0, 1, k, k + 1), slice(c0, 1, k, k + 1));
    EXPECT_LT(difference(of(padded), select(own, 1, 0)), 1e-6);
    EXPECT_LT(difference(select(h, 1, k), select(own_h, 1, 0)), 1e-6);
    EXPECT_LT(difference(select(c, 1, k), select(own_c, 1, 0)), 1e-6);
    auto [g, g_h] = gru(unsqueeze(part, 1));
    EXPECT_LT(difference(of(g_padded), select(g, 1, 0)), 1e-6);
    EXPECT_LT(difference(select(gh, 1, k), select(g_h, 1, 0)), 1e-6);
    auto [r, r_h] = rnn(unsqueeze(part, 1));
    EXPECT_LT(difference(of(r_padded), select(r, 1, 0)), 1e-6);
    EXPECT_LT(difference(select(rh, 1, k), select(r_h, 1, 0)), 1e-6);
  }
}

}  // namespace
}  // namespace holon::nn
