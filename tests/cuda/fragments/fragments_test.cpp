// The emulator's tensor-core instructions against the words of the PTX ISA ("Matrix Fragments for mma.m16n8k16
// with floating point type", and "ldmatrix"): here fragments are filled and read by its formulas alone, so that both
// mma.h and what is tested with it would have to be wrong in the same way twice.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "holon/kernels/cuda/mma.h"

using namespace holon;
namespace cuda = holon::kernels::cuda;

namespace {

struct Place {
  int row, col;
};
// "groupID = %laneid >> 2, threadID_in_group = %laneid % 4"
// a: "row = groupID for ai where 0 <= i < 2 || 4 <= i < 6, groupID + 8 otherwise;
//     col = (threadID_in_group * 2) + (i & 0x1) for ai where i < 4, (threadID_in_group * 2) + (i & 0x1) + 8 otherwise"
Place place_a(int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  return {i < 2 || (4 <= i && i < 6) ? group : group + 8, thread * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}
// b: "row = (threadID_in_group * 2) + (i & 0x1) for bi where i < 2, ... + 8 otherwise; col = groupID"
Place place_b(int lane, int i) { return {lane % 4 * 2 + (i & 1) + (i < 2 ? 0 : 8), lane >> 2}; }
// c: "row = groupID for ci where i < 2, groupID + 8 otherwise; col = (threadID_in_group * 2) + (i & 0x1)"
Place place_c(int lane, int i) { return {(lane >> 2) + (i < 2 ? 0 : 8), lane % 4 * 2 + (i & 1)}; }

float value(int row, int col) { return static_cast<float>((row * 7 + col * 3) % 11 - 5); }
template <class T>
uint32_t pair(float low, float high) {
  return T(low).bits | static_cast<uint32_t>(T(high).bits) << 16;
}

void in_a_warp(const std::function<void(int)>& body) {
  emulator::run_grid(dim3(1), dim3(32), 0, [&] { body(static_cast<int>(threadIdx.x)); });
}

template <class T>
void products() {
  float c[16][8] = {};
  in_a_warp([&](int lane) {
    uint32_t a[4], b[2];
    float mine[4] = {1, 2, 3, 4};
    auto element_a = [&](int i) { return value(place_a(lane, i).row, place_a(lane, i).col); };
    auto element_b = [&](int i) { return value(place_b(lane, i).row + 20, place_b(lane, i).col); };
    for (int r = 0; r < 4; ++r) a[r] = pair<T>(element_a(2 * r), element_a(2 * r + 1));
    for (int r = 0; r < 2; ++r) b[r] = pair<T>(element_b(2 * r), element_b(2 * r + 1));
    cuda::mma<T>(mine, a, b[0], b[1]);
    for (int i = 0; i < 4; ++i) c[place_c(lane, i).row][place_c(lane, i).col] = mine[i];
  });
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      const auto [row, col] = place_c(lane, i);
      float want = static_cast<float>(i + 1);
      for (int k = 0; k < 16; ++k) want += value(row, k) * value(k + 20, col);
      EXPECT_EQ(c[row][col], want) << row << ' ' << col;
    }
}

TEST(Fragments, ProductsOfFloat16) { products<Float16>(); }
TEST(Fragments, ProductsOfBFloat16) { products<BFloat16>(); }

// "Each thread i holds row i / 4's elements 2 (i % 4) and 2 (i % 4) + 1" of each matrix, of which "threads 0-7 contain
// the addresses of the rows of the first, threads 8-15 of the second" and so on; .trans: "the matrix is loaded in
// column-major format".
TEST(Fragments, MatricesAreLoadedAsTheAddressesSay) {
  alignas(16) uint16_t matrices[4][8][8];
  for (int m = 0; m < 4; ++m)
    for (int r = 0; r < 8; ++r)
      for (int c = 0; c < 8; ++c) matrices[m][r][c] = static_cast<uint16_t>(m * 1000 + r * 10 + c);
  std::array<std::array<uint32_t, 4>, 32> plain, turned;
  in_a_warp([&](int lane) {
    uint32_t r[4];
    cuda::load_matrices(r, matrices[lane / 8][lane % 8]);
    for (size_t m = 0; m < 4; ++m) plain[static_cast<size_t>(lane)][m] = r[m];
    cuda::load_matrices_transposed(r, matrices[lane / 8][lane % 8]);
    for (size_t m = 0; m < 4; ++m) turned[static_cast<size_t>(lane)][m] = r[m];
  });
  for (int lane = 0; lane < 32; ++lane)
    for (int m = 0; m < 4; ++m) {
      const int row = lane / 4, col = 2 * (lane % 4);
      const auto of = [&](auto& all) { return all[static_cast<size_t>(lane)][static_cast<size_t>(m)]; };
      EXPECT_EQ(of(plain), matrices[m][row][col] | uint32_t{matrices[m][row][col + 1]} << 16);
      EXPECT_EQ(of(turned), matrices[m][col][row] | uint32_t{matrices[m][col + 1][row]} << 16);
    }
}

// "For .f16x2 and .bf16x2 the first operand goes to the upper half": low comes first in memory.
TEST(Fragments, PairsLieInTheOrderOfMemory) {
  EXPECT_EQ(cuda::pack_halves<Float16>(1, -2), pair<Float16>(1, -2));
  EXPECT_EQ(cuda::pack_halves<BFloat16>(1, -2), pair<BFloat16>(1, -2));
}

}  // namespace
