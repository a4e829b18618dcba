#include "holon/tensor/visualize.h"

#include <gtest/gtest.h>

#include <numeric>

#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/create.h"

namespace holon {
namespace {

const Dims kRow{4}, kGrid{2, 2}, kCube{2, 2, 2};  // grids of ranks

// Pre: called on a rank: a placement belongs to a world.
Placement grid_of(const Dims& hierarchy) {
  std::vector<int64_t> ranks(static_cast<size_t>(hierarchy.numel()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return {"cpu", hierarchy, std::move(ranks)};
}

const Sbp B = sbp::broadcast(), P = sbp::partial_sum();
Sbp S(int axis) { return sbp::split(axis); }

// The picture of a tensor of zeros, as rank 0 of `ranks` sees it while the others do nothing.
std::string seen(int ranks, const Dims& shape, const Dims& hierarchy, const NdSbp& nd_sbp, bool svg = false) {
  std::string text;
  comm::run_ranks(ranks, [&](int rank) {
    if (rank != 0) return;
    ZerosOptions o;
    o.placement = grid_of(hierarchy);
    o.sbp = nd_sbp;
    Tensor t = zeros(shape, o);
    auto before = comm::stats();
    text = svg ? visualize_svg(t) : visualize(t);
    EXPECT_EQ(comm::stats().calls, before.calls);
    EXPECT_EQ(comm::stats().bytes_read, 0u);
  });
  return svg ? text : text.substr(text.find('\n') + 1);
}

TEST(Visualize, Vectors) {
  EXPECT_EQ(seen(4, {7}, kRow, {S(0)}),
            "       0:2       2:4      4:6       6\n"
            "   | rank 0 * | rank 1 | rank 2 | rank 3 |\n"
            "* this rank\n");
  EXPECT_EQ(seen(4, {2}, kRow, {S(0)}),
            "        0         1\n"
            "   | rank 0 * | rank 1 |\n"
            "Ranks 2, 3 hold an empty part.\n"
            "* this rank\n");
  EXPECT_EQ(seen(4, {}, kRow, {P}),
            "   | ranks 0 + 1 + 2 + 3 * |\n"
            "* this rank\n");
}

TEST(Visualize, GridsAndCopiesAndAddends) {
  EXPECT_EQ(seen(4, {7, 5}, kGrid, {S(0), S(1)}),
            "          0:3       3:5\n"
            "  0:4 | rank 0 * | rank 1 |\n"
            "  4:7 |  rank 2  | rank 3 |\n"
            "* this rank\n");
  EXPECT_EQ(seen(4, {8, 5}, kGrid, {B, S(0)}),
            "            0:5\n"
            "  0:4 | ranks 0, 2 * |\n"
            "  4:8 |  ranks 1, 3  |\n"
            "* this rank\n");
  EXPECT_EQ(seen(4, {8, 5}, kGrid, {B, P}),
            "                 0:5\n"
            "  0:8 | ranks 0 + 1 = 2 + 3 * |\n"
            "* this rank\n");
  EXPECT_EQ(seen(4, {4, 4}, kGrid, {S(0), S(0)}),
            "        0:4\n"
            "  0 | rank 0 * |\n"
            "  1 |  rank 1  |\n"
            "  2 |  rank 2  |\n"
            "  3 |  rank 3  |\n"
            "* this rank\n");
}

TEST(Visualize, ThreeAxesOfTensorAndOfRanks) {
  EXPECT_EQ(seen(8, {4, 3, 6}, kCube, {S(0), S(2), P}),
            "[0:2, :, :]\n"
            "             0:3            3:6\n"
            "  0:3 | ranks 0 + 1 * | ranks 2 + 3 |\n"
            "[2:4, :, :]\n"
            "            0:3           3:6\n"
            "  0:3 | ranks 4 + 5 | ranks 6 + 7 |\n"
            "* this rank\n");
}

TEST(Visualize, ManyRanksAndNoElements) {
  const Dims many{16};
  EXPECT_EQ(seen(16, {2, 2}, many, {B}), "            0:2\n  0:2 | ranks 0-15 * |\n* this rank\n");
  EXPECT_NE(seen(16, {2, 2}, many, {P}).find("ranks 0 + 1 + 2 + ... + 15 *"), std::string::npos);
  EXPECT_EQ(seen(16, {0, 3}, many, {S(1)}), "The tensor has no elements.\n");
  // A part for each of 16 stretches of the first axis: twelve are shown.
  EXPECT_NE(seen(16, {16, 2, 2}, many, {S(0)}).find("4 more stretches of the first axes are not shown."),
            std::string::npos);
}

// Every element is in exactly one cell, and the ranks of the cell are those whose part it is in.
TEST(Visualize, AgreesWithTheSlices) {
  const Dims shape{5, 7, 6};
  const std::vector<Sbp> all = {S(0), S(1), S(2), B, P};
  comm::run_ranks(8, [&](int rank) {
    if (rank != 0) return;
    const Placement cube = grid_of(kCube);
    for (Sbp a : all)
      for (Sbp b : all)
        for (Sbp c : all) {
          NdSbp nd{a, b, c};
          ZerosOptions o;
          o.placement = cube;
          o.sbp = nd;
          Picture p = picture(zeros(shape, o));
          int64_t area = 0;
          size_t holders = 0, idle = 0;
          for (auto& plane : p.planes)
            for (size_t r = 0; r < plane.rows.size(); ++r)
              for (size_t k = 0; k < plane.columns.size(); ++k) {
                auto& cell = plane.cells[r * plane.columns.size() + k];
                ASSERT_FALSE(cell.copies.empty()) << nd.str();
                Region s = region_of(shape, cube, nd, cell.copies[0][0]);
                area += s.shape.numel();
                for (auto& copy : cell.copies)
                  for (int holder : copy) {
                    ++holders;
                    Region theirs = region_of(shape, cube, nd, holder);
                    EXPECT_EQ(theirs, s) << nd.str();
                    EXPECT_EQ(theirs.offset[1], plane.rows[r].begin);
                    EXPECT_EQ(theirs.shape[2], plane.columns[k].size);
                  }
              }
          for (int i = 0; i < 8; ++i) idle += region_of(shape, cube, nd, i).shape.numel() == 0;
          EXPECT_EQ(area, shape.numel()) << nd.str();
          EXPECT_EQ(holders + idle, 8u) << nd.str();
        }
  });
}

TEST(Visualize, Svg) {
  std::string svg = seen(4, {7, 5}, kGrid, {S(0), P}, true);
  EXPECT_TRUE(svg.starts_with("<svg xmlns=")) << svg;
  EXPECT_NE(svg.find(">ranks 2 + 3</text>"), std::string::npos);
  EXPECT_NE(svg.find("&quot;cpu&quot;"), std::string::npos);
}

}  // namespace
}  // namespace holon
