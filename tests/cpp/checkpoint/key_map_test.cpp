#include "holon/checkpoint/core/key_map.h"

#include <gtest/gtest.h>

#include <map>

#include "checkpoint/folder.h"
#include "error_of.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/create.h"
#include "holon/ops/shape.h"
#include "tests/cpp/checkpoint/same_bits.h"

namespace holon::checkpoint {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

Tensor numbers(const Dims& shape, int64_t first) { return (arange(shape.numel()) + first).reshape(shape).to(float32); }

// Two layers as Hugging Face has them.
nn::StateDict theirs() {
  nn::StateDict out{{"model.embed.weight", numbers({6, 4}, 0)}, {"lm_head.bias", numbers({3}, 7)}};
  for (int i = 0; i < 2; ++i) {
    const std::string layer = "model.layers." + std::to_string(i);
    out.emplace_back(layer + ".self_attn.q_proj.weight", numbers({8, 4}, 100));
    out.emplace_back(layer + ".self_attn.k_proj.weight", numbers({2, 4}, 200));
    out.emplace_back(layer + ".self_attn.v_proj.weight", numbers({2, 4}, 300));
    out.emplace_back(layer + ".mlp.up.weight", numbers({5, 4}, 400 + i));
    for (int e = 0; e < 11; ++e)
      out.emplace_back(layer + ".experts." + std::to_string(e) + ".w", numbers({2, 3}, 1000 * i + e));
  }
  return out;
}

KeyMap map() {
  const std::string layer = "model.layers.{i}.";
  return KeyMap({
      {{"wte"}, {"model.embed.weight"}},
      {{"head.{rest*}"}, {"lm_head.{rest*}"}},
      {{"blocks.{i}.qkv"},
       {layer + "self_attn.q_proj.weight", layer + "self_attn.k_proj.weight", layer + "self_attn.v_proj.weight"},
       {.kind = KeyRule::kJoin, .axis = 0, .parts = {4, 1, 1}}},
      {{"blocks.{i}.up"}, {layer + "mlp.up.weight"}, {.kind = KeyRule::kTranspose}},
      {{"blocks.{i}.experts"}, {layer + "experts.{e}.w"}, {.kind = KeyRule::kStack, .axis = 1}},
  });
}

void check_both_ways(const nn::StateDict& before) {
  const nn::StateDict ours = map().apply(before);
  std::map<std::string, Tensor> by_name(ours.begin(), ours.end());
  EXPECT_EQ(by_name.size(), 2u + 2 * 3);
  EXPECT_TRUE(by_name.contains("head.bias"));
  EXPECT_EQ(by_name.at("blocks.1.qkv").shape(), (Dims{12, 4}));
  EXPECT_EQ(by_name.at("blocks.0.up").shape(), (Dims{4, 5}));
  EXPECT_EQ(by_name.at("blocks.1.experts").shape(), (Dims{2, 11, 3}));
  Tensor experts = by_name.at("blocks.1.experts");
  experts = contiguous(experts.is_global() ? experts.full() : experts);
  EXPECT_EQ(experts.array().data<float>()[10 * 3 + 1], 1000 + 10 + 1);  // [0, 10, 1]
  Tensor up = by_name.at("blocks.1.up");
  up = contiguous(up.is_global() ? up.full() : up);
  EXPECT_EQ(up.array().data<float>()[1 * 5 + 3], 401 + 3 * 4 + 1);
  const nn::StateDict back = map().inverse().apply(ours);
  ASSERT_EQ(back.size(), before.size());
  std::map<std::string, Tensor> again(back.begin(), back.end());
  for (auto& [name, tensor] : before) {
    ASSERT_TRUE(again.contains(name)) << name;
    EXPECT_TRUE(same_bits(again.at(name), tensor)) << name;
  }
}

TEST(KeyMap, LeadsThereAndBack) { check_both_ways(theirs()); }

TEST(KeyMap, WorksOnGlobalTensors) {
  for (int n : {2, 3})
    comm::run_ranks(n, [&](int) {
      for (auto sbp : {sbp::split(0), sbp::broadcast()}) {
        nn::StateDict state;
        for (auto& [name, t] : theirs())
          state.emplace_back(
              name, t.to_global(Placement::all("cpu"), sbp::broadcast()).to_global(Placement::all("cpu"), sbp));
        check_both_ways(state);
      }
    });
}

// What load() makes of a file by a map is what the map makes of its tensors, and save() with the map leads back.
TEST(KeyMap, LoadsAndSaves) {
  Folder folder;
  save(theirs(), folder / "theirs", {.format = Format::kHuggingFace});
  const nn::StateDict wanted = map().apply(theirs());
  auto same = [](const Value& value, const nn::StateDict& state) {
    ASSERT_EQ(value.size(), state.size());
    for (auto& [name, tensor] : state) {
      Tensor t = value[name].tensor();
      EXPECT_TRUE(same_bits(t.is_global() ? t.full() : t, tensor)) << name;
    }
  };
  same(load(folder / "theirs", {.key_map = map()}), wanted);
  comm::run_ranks(3, [&](int) {
    const Placement all = Placement::all("cpu");
    for (auto sbp : {sbp::split(0), sbp::split(1), sbp::broadcast()}) {
      const Value ours = load(folder / "theirs", {.placement = all, .sbp = sbp, .key_map = map()});
      same(ours, wanted);
      save(ours, folder / "again", {.format = Format::kHuggingFace, .key_map = map()});
      same(load(folder / "again", {.placement = all}), theirs());
      // In Holon's own folder tensors have layouts, along the axes that the map makes of theirs.
      save({{"model", ours}}, folder / "own");
      const Value back = load(folder / "own", {.prefix = "model.", .key_map = map().inverse()});
      same(back, theirs());
      EXPECT_TRUE(back["model.embed.weight"].tensor().is_global());
    }
    const Value split = load(folder / "theirs",
                             {.placement = all,
                              .key_map = map(),
                              .select = [](const std::string& name) { return name == "blocks.1.up"; },
                              .sbp_of = [](const std::string&) { return NdSbp(sbp::split(1)); }});
    EXPECT_EQ(split.size(), 1u);
    EXPECT_EQ(split["blocks.1.up"].tensor().to_local().shape()[0], 4);
  });
  EXPECT_TRUE(contains(error_of(
                           [&] {
                             load(folder / "theirs", {.key_map = KeyMap({{{"wte"}, {"model.embed.weight"}}})});
                           },
                           ErrorKind::kValue),
                       "no rule has the name"));
}

// Each rank reads its bytes only, also where the file has them in another order.
TEST(KeyMap, ReadsLittleMoreThanItNeeds) {
  Folder folder;
  const Dims shape{1536, 1024};
  save({{"w", numbers(shape, 0)}, {"q", numbers(shape, 1)}, {"k", numbers(shape, 2)}}, folder / "file.safetensors");
  const KeyMap map({{{"up"}, {"w"}, {.kind = KeyRule::kTranspose}}, {{"qk"}, {"q", "k"}, {.kind = KeyRule::kJoin}}});
  comm::run_ranks(4, [&](int) {
    for (auto sbp : {sbp::split(0), sbp::split(1), sbp::broadcast()}) {
      comm::barrier();
      const uint64_t before = checkpoint::bytes_read();
      load(folder / "file.safetensors", {.placement = Placement::all("cpu"), .sbp = sbp, .key_map = map});
      const auto read = static_cast<double>(checkpoint::bytes_read() - before);
      EXPECT_LE(read, 1.05 * 3 * 4 * static_cast<double>(shape.numel()) / 4 + 4 * 65536) << NdSbp(sbp);
    }
  });
}

TEST(KeyMap, NamesOfNoRuleOrOfTwoAreErrors) {
  auto error = [](std::vector<KeyRule> rules, const nn::StateDict& state) {
    return error_of([&] { KeyMap(rules).apply(state); }, ErrorKind::kValue);
  };
  const Tensor t = ones({4, 4});
  EXPECT_TRUE(contains(error({{{"a"}, {"b"}}}, {{"c", t}}), "no rule has the name 'c'"));
  EXPECT_TRUE(contains(error({{{"a"}, {"b"}}, {{"c"}, {"{x*}"}}}, {{"b", t}}), "different places"));
  EXPECT_TRUE(contains(error({{{"a"}, {"b"}}, {{"c.{x*}"}, {"{x*}"}}}, {{"b", t}}), "two rules have the name 'b'"));
  EXPECT_TRUE(contains(error({{{"a.{i}"}, {"b.{i}"}}}, {{"b.x", t}}), "no rule has the name 'b.x'"));
  EXPECT_TRUE(contains(error({{{"a.{i}"}, {"b.{i}"}}}, {{"b.01", t}}), "no rule has the name 'b.01'"));
  EXPECT_TRUE(contains(error({{{"a.{i}"}, {"b.{i}.c.{i}"}}}, {{"b.1.c.2", t}}), "no rule"));
  EXPECT_TRUE(contains(error({{{"a"}, {"b"}}, {{"a"}, {"c"}}}, {{"b", t}, {"c", t}}), "two tensors get the name 'a'"));
  EXPECT_TRUE(contains(error({{{"a"}, {"b"}}}, {{"b", t}, {"b", t}}), "'b' is there twice"));
  const KeyRule::How join{.kind = KeyRule::kJoin}, stack{.kind = KeyRule::kStack};
  EXPECT_TRUE(contains(error({{{"a"}, {"b", "c"}, join}}, {{"b", t}}), "'a' needs 'c', which is not there"));
  EXPECT_TRUE(contains(error({{{"a"}, {"b", "c"}, join}}, {{"b", t}, {"c", ones({2, 4})}}), "are not as 1 to 1"));
  EXPECT_TRUE(contains(error({{{"a"}, {"b.{e}"}, stack}}, {{"b.0", t}, {"b.2", t}}), "'a' needs 'b.1'"));
  EXPECT_TRUE(contains(error({{{"a", "b", "c"}, {"d"}, {.kind = KeyRule::kSplit}}}, {{"d", t}}), "cannot be split"));
  EXPECT_TRUE(
      contains(error({{{"a"}, {"b"}, {.kind = KeyRule::kTranspose, .other = 2}}}, {{"b", t}}), "has no axis 2"));
}

TEST(KeyMap, RulesThatAreWrongAreErrors) {
  auto error = [](const KeyRule& rule) { return error_of([&] { KeyMap({rule}); }, ErrorKind::kValue); };
  EXPECT_TRUE(contains(error({{"a", "b"}, {"c"}}), "has several names"));
  EXPECT_TRUE(contains(error({{"a"}, {}}), "a side has no name"));
  EXPECT_TRUE(contains(error({{"a.{i}"}, {"b"}}), "different places for numbers"));
  EXPECT_TRUE(contains(error({{"a.{i"}, {"b"}}), "braces without a name"));
  EXPECT_TRUE(contains(error({{"a.{}"}, {"b"}}), "braces without a name"));
  EXPECT_TRUE(contains(error({{"a"}, {"b"}, {.kind = KeyRule::kStack}}), "needs a number"));
  EXPECT_TRUE(contains(error({{"{a*}{b*}"}, {"{a*}{b*}"}}), "more than one place for any text"));
  EXPECT_TRUE(contains(error({{"a"}, {"b", "c"}, {.kind = KeyRule::kJoin, .parts = {1}}}), "not one for each"));
  EXPECT_TRUE(contains(error({{"a"}, {"b", "c"}, {.kind = KeyRule::kJoin, .parts = {1, 0}}}), "less than 1"));
  // Their sum would be 0.
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_TRUE(contains(
      error({{"a", "b", "c", "d"}, {"e"}, {.kind = KeyRule::kSplit, .parts = {kHuge, kHuge, kHuge, kHuge}}}), "2^40"));
}

}  // namespace
}  // namespace holon::checkpoint
