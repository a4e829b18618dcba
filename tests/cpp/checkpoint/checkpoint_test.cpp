#include "holon/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "checkpoint/folder.h"
#include "holon/array/storage.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/formats/folder.h"
#include "holon/comm/run_ranks.h"
#include "holon/nn/layers.h"
#include "holon/ops/create.h"
#include "holon/ops/random.h"
#include "holon/ops/shape.h"
#include "holon/optim/optimizer.h"
#include "tests/cpp/checkpoint/same_bits.h"
#include "tests/cpp/error_of.h"

namespace holon::checkpoint {
namespace {

namespace fs = std::filesystem;

TEST(Value, SaysWhatItHolds) {
  Value v{{"epoch", 3}, {"lr", 0.5}, {"name", "net"}, {"list", Value::List{1, nullptr, true}}, {"w", ones({2})}};
  EXPECT_EQ(v["epoch"].integer(), 3);
  EXPECT_EQ(v["epoch"].number(), 3.0);
  EXPECT_EQ(v["lr"].number(), 0.5);
  EXPECT_EQ(v["name"].text(), "net");
  EXPECT_TRUE(v["list"][1].is_null() && v["list"][2].boolean());
  EXPECT_EQ(v["w"].tensor().numel(), 2);
  EXPECT_TRUE(v.contains("lr") && !v.contains("x"));
  EXPECT_EQ(v.size(), 5u);
  EXPECT_NE(error_of([&] { v["x"]; }).find("it has epoch, lr, name, list, w"), std::string::npos);
  EXPECT_NE(error_of([&] { v["epoch"].text(); }).find("a text was requested; the value is a integer"),
            std::string::npos);
  EXPECT_NE(error_of([&] { v["list"][3]; }).find("element 3 of 3"), std::string::npos);
  EXPECT_NE(error_of([&] { v.state_dict(); }).find("'epoch' is a integer"), std::string::npos);
}

TEST(Checkpoint, ValuesComeBack) {
  Folder folder;
  Value::Dict mixed{{1, "a"}, {nullptr, 2.5}, {"1", INT64_MIN}};
  save({{"mixed", mixed},
        {"inf", -INFINITY},
        {"tuple", Value::Tuple{{1, Value::List{}}}},
        {"t", arange(6).reshape({2, 3}).transpose(0, 1)}},
       folder / "x");
  Value found = load(folder / "x");
  EXPECT_EQ(found["mixed"].dict()[0].key.integer(), 1);
  EXPECT_TRUE(found["mixed"].dict()[1].key.is_null());
  EXPECT_EQ(found["mixed"]["1"].integer(), INT64_MIN);
  EXPECT_EQ(found["inf"].number(), -INFINITY);
  EXPECT_TRUE(found["tuple"].get_if<Value::Tuple>());
  EXPECT_TRUE(same_bits(found["t"].tensor(), arange(6).reshape({2, 3}).transpose(0, 1)));
  EXPECT_NE(error_of([&] {
              save(Value::Dict{{"a", Value::List{Tensor()}}}, folder / "y");
            }).find("['a'][0] is undefined"),
            std::string::npos);
  EXPECT_NE(error_of([&] { save("\xff", folder / "y"); }).find("not UTF-8"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder / "y"));
}

Tensor train(const nn::Linear& model, optim::Optimizer& optimizer, const Tensor& x, int steps) {
  Tensor loss;
  for (int i = 0; i < steps; ++i) {
    Tensor y = model(x);
    loss = (y * y).mean();
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  return loss.detach();
}

TEST(Checkpoint, TrainingGoesOn) {
  Folder folder;
  Tensor x = randn({5, 4});
  nn::Linear model(4, 3), other(4, 3);
  optim::AdamW optimizer(model.parameters(), {.lr = 0.1}), other_optimizer(other.parameters(), {.lr = 0.3});
  train(model, optimizer, x, 3);
  save({{"model", model.state_dict()}, {"optimizer", optimizer.state_dict()}}, folder / "run");
  Value run = load(folder / "run");
  other.load_state_dict(run["model"].state_dict());
  other_optimizer.load_state_dict(run["optimizer"].optimizer_state());
  EXPECT_TRUE(same_bits(train(model, optimizer, x, 3), train(other, other_optimizer, x, 3)));
}

class OnRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, OnRanks, ::testing::Values(1, 2, 3, 4));

std::vector<std::pair<Placement, NdSbp>> layouts(int n) {
  auto all = Placement::all("cpu");
  std::vector<std::pair<Placement, NdSbp>> out{{all, sbp::split(0)},
                                               {all, sbp::split(1)},
                                               {all, sbp::broadcast()},
                                               {Placement("cpu", {n - 1}), sbp::broadcast()}};
  if (n == 4) {
    Placement grid("cpu", Dims{2, 2}, {3, 1, 0, 2});
    out.push_back({grid, {sbp::split(1), sbp::split(1)}});
    out.push_back({grid, {sbp::broadcast(), sbp::split(0)}});
    out.push_back({grid, {sbp::split(0), sbp::partial_sum()}});
  }
  return out;
}

TEST_P(OnRanks, EveryLayoutInEitherFormUnderEveryOther) {
  Folder folder;
  const int n = GetParam();
  comm::run_ranks(n, [&](int) {
    Tensor whole = arange(33).reshape({11, 3}).to(float32);
    Value::Dict dict;
    std::vector<Tensor> expected;
    for (auto& [placement, nd_sbp] : layouts(n)) {
      for (DType dtype : {float32, bfloat16, boolean, int64}) {
        Tensor t = whole.to(dtype == boolean && nd_sbp.has_partial() ? uint8 : dtype)
                       .to_global(Placement::all("cpu"), sbp::broadcast());
        dict.push_back({fmt::format("t{}", dict.size()), t.to_global(placement, nd_sbp)});
        expected.push_back(t.full());
      }
    }
    save(dict, folder / "file", {.global_dst_rank = n - 1});
    save(dict, folder / "parts");
    auto check = [&](const Value& found) {
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(same_bits(found[fmt::format("t{}", i)].tensor(), expected[i])) << i;
    };
    for (auto& name : {"file", "parts"}) {
      check(load(folder / name));
      check(load(folder / name, {.global_src_rank = 0}));
      check(load(folder / name, {.device = Device()}));
      for (auto& [placement, nd_sbp] : layouts(n)) {
        if (nd_sbp.has_partial()) continue;
        Value found = load(folder / name, {.placement = placement, .sbp = nd_sbp});
        EXPECT_EQ(found["t0"].tensor().spec(), intern_spec(placement, nd_sbp));
        check(found);
      }
    }
  });
}

TEST_P(OnRanks, PartsAreReadByOtherWorlds) {
  Folder folder;
  comm::run_ranks(GetParam(), [&](int) {
    Tensor t = arange(10).to_global(Placement::all("cpu"), sbp::broadcast());
    save({{"t", t.to_global(Placement::all("cpu"), sbp::split(0))}, {"local", ones({2})}, {"step", 7}}, folder / "x");
  });
  for (int n : {1, 2, 5})
    comm::run_ranks(n, [&](int) {
      Value found = load(folder / "x");
      EXPECT_EQ(found["step"].integer(), 7);
      EXPECT_TRUE(found["local"].tensor().is_local());
      EXPECT_TRUE(found["t"].tensor().is_global());
      EXPECT_TRUE(same_bits(found["t"].tensor(), arange(10)));
    });
}

TEST_P(OnRanks, IntoTheLayoutsOfAStateDict) {
  Folder folder;
  const int n = GetParam();
  comm::run_ranks(n, [&](int rank) {
    auto all = Placement::all("cpu");
    Tensor w = arange(12).reshape({4, 3}).to_global(all, sbp::broadcast());
    save({{"model", Value({{"w", w.to_global(all, sbp::split(1))}, {"b", ones({5})}})}, {"step", 3}}, folder / "parts");
    if (rank == 0) save({{"model.w", arange(12).reshape({4, 3})}, {"model.b", ones({5})}}, folder / "file");
    comm::barrier();
    const nn::StateDict like{{"w", w.to_global(all, sbp::split(0))}, {"b", zeros({5})}};
    for (auto& name : {"file", "parts"}) {
      Value found = load(folder / name, {.prefix = "model.", .like = like});
      EXPECT_EQ(found["w"].tensor().spec(), like[0].second.spec());
      EXPECT_TRUE(same_bits(found["w"].tensor(), arange(12).reshape({4, 3})));
      EXPECT_TRUE(found["b"].tensor().is_local() && same_bits(found["b"].tensor(), ones({5})));
      // Names and shapes are compared before anything is read.
      const std::string other = value_error_of([&] {
        load(folder / name, {.prefix = "model.", .like = {{"w", zeros({4, 4})}, {"c", zeros({1})}}});
      });
      for (auto& text : {"'w' is [4, 3], and [4, 4] is expected", "'b' is not expected", "'c' is missing"})
        EXPECT_NE(other.find(text), std::string::npos) << other;
      found =
          load(folder / name, {.prefix = "model.", .strict = false, .like = {{"b", zeros({5})}, {"c", zeros({1})}}});
      EXPECT_EQ(found.size(), 1u);
      EXPECT_NE(value_error_of([&] {
                  load(folder / name, {.placement = all, .like = like});
                }).find("the state dict says where each tensor goes"),
                std::string::npos);
      EXPECT_NE(value_error_of([&] {
                  load(folder / name, {.like = {{"w", Tensor()}}});
                }).find("'w' of the state dict is undefined"),
                std::string::npos);
    }
  });
}

TEST(Checkpoint, LoadingTakesTheMemoryOfThePartsAndOfOneTensor) {
  // Blocks of 16 MiB, in which there is room for what AddressSanitizer has around each.
  constexpr size_t kMiB = 1 << 20, kTensors = 4, kTensorBytes = 16 * kMiB;
  Folder folder;
  comm::run_ranks(4, [&](int rank) {
    const Placement all("cpu", {0, 1, 2, 3});
    Value::Dict parts;
    for (size_t i = 0; i < kTensors; ++i)
      parts.push_back({fmt::format("w{}", i),
                       full({2048, 2032}, static_cast<double>(i), {.placement = all, .sbp = sbp::split(0)})});
    save(parts, folder / "parts");
    save(parts, folder / "shared", {.format = Format::kHuggingFace, .shard_bytes = 40 * kMiB});
    save(parts, folder / "one", {.global_dst_rank = 0});
    parts.clear();
    for (const char* name : {"parts", "shared", "one"})
      for (const Sbp sbp : {sbp::split(0), sbp::split(1), sbp::broadcast()}) {
        SCOPED_TRACE(fmt::format("{} as {}", name, sbp.str()));
        comm::barrier();
        if (rank == 0) reset_peak_memory();
        comm::barrier();
        const size_t before = memory_stats().in_use_bytes;
        comm::barrier();
        const Value loaded = load(folder / name, {.placement = all, .sbp = sbp});
        comm::barrier();
        const MemoryStats after = memory_stats();
        comm::barrier();
        const size_t copies = sbp.is_split() ? 1 : 4;
        EXPECT_LE(after.in_use_bytes - before, copies * kTensors * kTensorBytes + kMiB);
        EXPECT_LE(after.peak_bytes, after.in_use_bytes + kTensorBytes + kMiB);
        EXPECT_EQ(std::as_const(loaded)["w3"].tensor().to_local().array().data<const float>()[0], 3);
        comm::barrier();
      }
  });
}

TEST(Checkpoint, RanksOfSeveralHosts) {
  Folder folder;
  const int host_of_rank[] = {0, 0, 1};
  comm::run_ranks(host_of_rank, [&](int) {
    Tensor t = arange(10).to_global(Placement::all("cpu"), sbp::broadcast());
    Tensor split = t.to_global(Placement::all("cpu"), sbp::split(0));
    save({{"t", split}}, folder / "file", {.global_dst_rank = 2});
    save({{"t", split}}, folder / "parts");
    for (auto& name : {"file", "parts"})
      EXPECT_TRUE(same_bits(load(folder / name, {.global_src_rank = 1})["t"].tensor(), arange(10)));
    EXPECT_TRUE(same_bits(load(folder / "parts")["t"].tensor(), arange(10)));
    EXPECT_NE(error_of([&] {
                save({{"t", split}}, folder / "none/x");
              }).find("rank 0: cannot create"),
              std::string::npos);
  });
}

TEST(Checkpoint, OnlyTheNewFilesStay) {
  Folder folder;
  comm::run_ranks(3, [&](int) {
    for (int i = 0; i < 3; ++i)
      save(ones({9}, {.placement = Placement::all("cpu"), .sbp = sbp::split(0)}), folder / "x");
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "x"), {}), 4);
}

TEST(Checkpoint, AnErrorOfOneRankIsEverybodys) {
  Folder folder;
  comm::run_ranks(3, [&](int rank) {
    Tensor t = ones({9}, {.placement = Placement::all("cpu"), .sbp = sbp::split(0)});
    EXPECT_NE(error_of([&] { save(t, folder / "none/x", {.global_dst_rank = 2}); }).find("rank 2: cannot write"),
              std::string::npos);
    EXPECT_NE(error_of([&] { save(t, folder / "none/x"); }).find("rank 0: cannot create the folder"),
              std::string::npos);
    EXPECT_NE(error_of([&] { load(folder / "none", {.global_src_rank = 1}); }).find("rank 1: cannot open"),
              std::string::npos);
    EXPECT_NE(error_of([&] {
                save({{rank == 1 ? "a" : "b", t}}, folder / "x");
              }).find("rank 0 b: float32 [9] S(0)"),
              std::string::npos);
    EXPECT_FALSE(fs::exists(folder / "x"));
  });
}

// A part that is missing or was exchanged for that of another save.
TEST(Checkpoint, PartsMustBelongTogether) {
  Folder folder;
  auto save_as = [&](const std::string& name, const Dims& shape) {
    comm::run_ranks(2, [&](int) {
      save({{"t", ones(shape, {.placement = Placement::all("cpu"), .sbp = sbp::split(0)})}}, folder / name);
    });
  };
  save_as("a", {8});
  save_as("b", {10});
  auto part = [&](const std::string& name) {
    for (auto& entry : fs::directory_iterator(folder / name))
      if (entry.path().string().find("-1-of-2") != std::string::npos) return entry.path();
    return fs::path();
  };
  fs::path there = part("a");
  fs::remove(there);
  comm::run_ranks(2, [&](int) {
    EXPECT_NE(error_of([&] { load(folder / "a"); }).find("rank 1: cannot open " + there.string()), std::string::npos);
  });
  fs::rename(part("b"), there);
  EXPECT_NE(error_of([&] { load(folder / "a"); }).find("It is damaged, or from another save"), std::string::npos);
}

TEST(Index, IsChecked) {
  auto index = [](const std::string& tensor) {
    return R"({"format":"holon-folder","version":1,"tree":"null","tensors":{"t":)" + tensor + "}}";
  };
  auto parse = [&](const std::string& tensor) { return error_of([&] { parse_index(index(tensor), "I"); }); };
  auto parts = [](const std::string& list) { return R"({"dtype":"F32","shape":[4,3],"parts":[)" + list + "]}"; };
  EXPECT_EQ(parse(parts(R"({"file":"f","offset":[0,0],"shape":[4,2]},{"file":"g","offset":[0,2],"shape":[4,1]})")),
            "no error");
  EXPECT_NE(parse(parts(R"({"file":"f","offset":[0,0],"shape":[4,2]})")).find("incomplete: 8 of 12"),
            std::string::npos);
  EXPECT_NE(parse(parts(R"({"file":"f","offset":[0,0],"shape":[4,2]},{"file":"g","offset":[0,1],"shape":[4,1]})"))
                .find("overlap"),
            std::string::npos);
  EXPECT_NE(parse(parts(R"({"file":"f","offset":[0,1],"shape":[4,3]})")).find("outside"), std::string::npos);
  EXPECT_NE(parse(parts(R"({"file":"f","offset":[9223372036854775807,0],"shape":[4,3]})")).find("outside"),
            std::string::npos);
  EXPECT_NE(parse(parts(R"({"file":"f","offset":[0],"shape":[12]})")).find("outside"), std::string::npos);
  EXPECT_NE(parse(parts(R"({"file":"../f","offset":[0,0],"shape":[4,3]})")).find("not a file name"), std::string::npos);
  EXPECT_NE(parse(parts(R"({"file":"..","offset":[0,0],"shape":[4,3]})")).find("not a file name"), std::string::npos);
  EXPECT_NE(parse(R"({"dtype":"F32","shape":[4611686018427387904,4],"parts":[]})").find("larger than any memory"),
            std::string::npos);
  EXPECT_NE(parse(R"({"dtype":"F3","shape":[],"parts":[]})").find("unknown dtype"), std::string::npos);
  EXPECT_NE(parse("3").find("no 'dtype'"), std::string::npos);
  EXPECT_NE(error_of([] { parse_index(R"({"format":"holon-folder","version":2})", "I"); }).find("version 2"),
            std::string::npos);
  EXPECT_NE(error_of([] { parse_index("[]", "I"); }).find("no 'format'"), std::string::npos);
  EXPECT_NE(error_of([] { parse_index("", "I"); }).find("I: "), std::string::npos);
}

}  // namespace
}  // namespace holon::checkpoint
