#include "holon/checkpoint/parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "checkpoint/folder.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/checkpoint/core/world.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/create.h"
#include "holon/ops/shape.h"
#include "tests/cpp/checkpoint/same_bits.h"
#include "tests/cpp/error_of.h"

namespace holon::checkpoint {
namespace {

SavedTensor tensor(const Dims& shape, const Placement& placement, const NdSbp& nd_sbp) {
  return {"t", float32, shape, intern_spec(placement, nd_sbp), {}};
}

TEST(ShareOut, EveryElementOnceAndAboutAsMuchForEachRank) {
  comm::run_ranks(4, [&](int) {
    auto all = Placement::all("cpu");
    Placement grid("cpu", Dims{2, 2}, {3, 1, 0, 2});
    std::vector<SavedTensor> tensors{tensor({1024, 1024}, all, sbp::broadcast()),
                                     tensor({1024, 1024}, all, sbp::split(1)),
                                     tensor({2, 1'000'000}, grid, {sbp::broadcast(), sbp::broadcast()}),
                                     tensor({2000, 1000}, grid, {sbp::broadcast(), sbp::split(0)}),
                                     tensor({2000, 1000}, grid, {sbp::split(1), sbp::broadcast()}),
                                     tensor({}, all, sbp::broadcast()),
                                     tensor({0, 3}, all, sbp::broadcast())};
    for (int i = 0; i < 40; ++i) tensors.push_back(tensor({100, 100}, all, sbp::broadcast()));
    const auto shares = share_out(tensors, 4);
    ASSERT_EQ(shares.size(), tensors.size());
    std::vector<int64_t> written(4);
    for (size_t i = 0; i < shares.size(); ++i) {
      std::vector<int> times(static_cast<size_t>(tensors[i].shape.numel()));
      const Dims strides = contiguous_strides(tensors[i].shape);
      for (auto& [rank, region] : shares[i]) {
        written[static_cast<size_t>(rank)] += region.shape.numel();
        // Inside what the rank holds.
        const GlobalSpec& spec = *tensors[i].spec;
        const Region held = region_of(tensors[i].shape, spec.placement, spec.nd_sbp, spec.placement.index_of(rank));
        for (int a = 0; a < region.shape.size(); ++a) {
          EXPECT_GE(region.offset[a], held.offset[a]);
          EXPECT_LE(region.offset[a] + region.shape[a], held.offset[a] + held.shape[a]);
        }
        for (int64_t k = 0; k < region.shape.numel(); ++k) {
          int64_t rest = k, at = 0;
          for (int a = region.shape.size() - 1; a >= 0; --a) {
            at += (region.offset[a] + rest % region.shape[a]) * strides[a];
            rest /= region.shape[a];
          }
          ++times[static_cast<size_t>(at)];
        }
      }
      EXPECT_TRUE(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; })) << i;
    }
    const auto [least, most] = std::minmax_element(written.begin(), written.end());
    EXPECT_LE(*most - *least, 20'000) << fmt::format("{} to {}", *least, *most);
    EXPECT_EQ(shares[0].size(), 4u);
    EXPECT_EQ(shares[5].size(), 1u);
    EXPECT_EQ(shares[6].size(), 0u);
  });
}

// Large tensors, in every layout in files and out of them: each byte is read once by all ranks together.
TEST(ReadLayout, ReadsLittleElseThanWhatIsNeeded) {
  Folder folder;
  comm::run_ranks(4, [&](int rank) {
    auto all = Placement::all("cpu");
    Placement grid("cpu", Dims{2, 2}, {0, 1, 2, 3});
    const Dims shape{2048, 2050};
    Tensor whole = arange(shape.numel()).reshape(shape).to(float32).to_global(all, sbp::broadcast());
    const std::vector<std::pair<Placement, NdSbp>> layouts{
        {all, sbp::split(0)},
        {all, sbp::split(1)},
        {all, sbp::broadcast()},
        {grid, {sbp::split(0), sbp::split(1)}},
        {grid, {sbp::broadcast(), sbp::split(1)}},
        {Placement("cpu", {2, 1}), sbp::split(1)},
    };
    for (size_t i = 0; i < layouts.size(); ++i) {
      const std::string name = fmt::format("x{}", i);
      save({{"t", whole.to_global(layouts[i].first, layouts[i].second)}}, folder / name);
      for (auto& [placement, nd_sbp] : layouts) {
        const uint64_t before = bytes_read();
        Tensor found = load(folder / name, {.placement = placement, .sbp = nd_sbp})["t"].tensor();
        double sum = 0;
        for (auto& text : share("test", std::to_string(bytes_read() - before))) sum += std::stod(text);
        EXPECT_EQ(found.placement(), placement);
        EXPECT_EQ(found.nd_sbp(), nd_sbp);
        EXPECT_TRUE(same_bits(found, whole));
        const double needed = static_cast<double>(shape.numel()) * 4;
        if (rank == 0) {
          EXPECT_LE(sum, 1.05 * needed) << i << " to " << nd_sbp.str();
          EXPECT_GE(sum, needed);
        }
      }
    }
  });
}

TEST(LoadOptions, PartsByName) {
  Folder folder;
  comm::run_ranks(2, [&](int) {
    auto all = Placement::all("cpu");
    auto make = [&](int64_t n) { return full({4, 4}, n, {.placement = all, .sbp = sbp::split(0)}); };
    save({{"model", Value{{"w", make(1)}, {"b", make(2)}}}, {"optimizer", Value{{"m", make(3)}}}, {"epoch", 3}},
         folder / "x");
    auto names = [](const Value& found) {
      std::string out;
      for (auto& [key, value] : found.dict()) out += key.text() + " ";
      return out;
    };
    const Value part = load(folder / "x", {.prefix = "model."});
    EXPECT_EQ(names(part), "b w ");
    EXPECT_TRUE(same_bits(part["w"].tensor(), make(1)));
    EXPECT_EQ(names(load(folder / "x", {.select = [](auto& name) { return name.ends_with("m"); }})), "optimizer.m ");
    EXPECT_EQ(names(load(folder / "x", {.prefix = "model.", .rename = [](auto& name) { return "net." + name; }})),
              "net.b net.w ");
    EXPECT_NE(error_of([&] { load(folder / "x", {.prefix = "none."}); }).find("is selected by the prefix 'none.'"),
              std::string::npos);
    EXPECT_EQ(load(folder / "x", {.prefix = "none.", .strict = false}).size(), 0u);
    EXPECT_NE(error_of([&] { load(folder / "x", {.rename = [](auto&) { return "same"; }}); }).find("the same name"),
              std::string::npos);
    const Value found = load(folder / "x", {.placement = all, .sbp_of = [](auto& name) {
                                              return name == "model.w" ? NdSbp(sbp::split(1)) : NdSbp(sbp::broadcast());
                                            }});
    EXPECT_EQ(found["model"]["w"].tensor().nd_sbp()[0], sbp::split(1));
    EXPECT_EQ(found["model"]["b"].tensor().nd_sbp()[0], sbp::broadcast());
    EXPECT_TRUE(same_bits(found["model"]["w"].tensor(), make(1)));
    EXPECT_EQ(found["epoch"].integer(), 3);
  });
}

}  // namespace
}  // namespace holon::checkpoint
