#include "holon/checkpoint/formats/huggingface.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <set>
#include <thread>

#include "checkpoint/folder.h"
#include "checkpoint/other_files.h"
#include "error_of.h"
#include "holon/base/context.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/checkpoint/core/world.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/create.h"
#include "holon/ops/shape.h"
#include "tests/cpp/checkpoint/same_bits.h"

namespace holon::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> out;
  for (auto& entry : fs::directory_iterator(folder)) out.insert(entry.path().filename());
  return out;
}

RawTensor floats(const std::string& name, const std::vector<int64_t>& shape, float first) {
  std::vector<float> values;
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  for (int64_t i = 0; i < n; ++i) values.push_back(first + static_cast<float>(i));
  return {name, "F32", shape, bytes_of_numbers(values)};
}

// Two shards and their index, as transformers writes them.
void write_sharded(const fs::path& folder) {
  fs::create_directories(folder);
  write_text(folder / "model-00001-of-00002.safetensors",
             safetensors_of({floats("a", {6, 4}, 0), floats("b", {3}, 50)}));
  write_text(folder / "model-00002-of-00002.safetensors", safetensors_of({floats("c.w", {5, 2, 2}, 100)}));
  write_text(folder / kHuggingFaceIndex,
             json{{"metadata", {{"total_size", 188}, {"more", {1, 2}}}},
                  {"weight_map",
                   {{"a", "model-00001-of-00002.safetensors"},
                    {"b", "model-00001-of-00002.safetensors"},
                    {"c.w", "model-00002-of-00002.safetensors"}}}}
                 .dump());
}

TEST(HuggingFace, FoldersAndIndicesAreRead) {
  Folder folder;
  write_sharded(folder / "m");
  for (auto path : {folder / "m", folder / "m" / kHuggingFaceIndex}) {
    Value found = load(path);
    EXPECT_EQ(found.size(), 3u);
    EXPECT_TRUE(same_bits(found["a"].tensor(), arange(24).reshape({6, 4}).to(float32)));
    EXPECT_EQ(found["b"].tensor().array().data<float>()[2], 52);
    EXPECT_EQ(found["c.w"].tensor().array().data<float>()[19], 119);
  }
  // As transformers does: a single file goes before an index.
  write_text(folder / "m" / kHuggingFaceFile, safetensors_of({floats("x", {1}, 7)}));
  EXPECT_EQ(load(folder / "m").dict()[0].key.text(), "x");
  EXPECT_TRUE(contains(error_of([&] { load(folder.path); }), "is a folder without holon-index.json"));
}

TEST(HuggingFace, AnyLayoutReadsOnlyItsBytes) {
  Folder folder;
  fs::create_directory(folder / "m");
  const int64_t rows = 512, columns = 2048;
  write_text(folder / "m" / kHuggingFaceFile, safetensors_of({floats("w", {rows, columns}, 0)}));
  const Tensor whole = load(folder / "m")["w"].tensor();
  for (int n : {1, 2, 3, 4})
    comm::run_ranks(n, [&](int) {
      auto all = Placement::all("cpu");
      for (auto sbp : {sbp::split(0), sbp::split(1), sbp::broadcast()}) {
        Tensor t = load(folder / "m", {.placement = all, .sbp = sbp})["w"].tensor();
        EXPECT_EQ(t.spec(), intern_spec(all, sbp));
        EXPECT_TRUE(same_bits(t, whole));
      }
      if (n < 4) return;
      Placement grid("cpu", Dims{2, 2}, {3, 1, 0, 2});
      for (auto sbp : {NdSbp{sbp::split(1), sbp::split(0)}, NdSbp{sbp::broadcast(), sbp::split(1)}})
        EXPECT_TRUE(same_bits(load(folder / "m", {.placement = grid, .sbp = sbp})["w"].tensor(), whole));
    });
  std::atomic<uint64_t> read{0};
  comm::run_ranks(4, [&](int) {
    const uint64_t before = bytes_read();
    load(folder / "m", {.placement = Placement::all("cpu"), .sbp = sbp::split(0)});
    read += bytes_read() - before;
  });
  const uint64_t size = rows * columns * 4;
  EXPECT_LT(read, size + size / 20);
  EXPECT_GE(read, size);
}

TEST(HuggingFace, IndicesThatAreWrongAreErrors) {
  Folder folder;
  write_sharded(folder / "m");
  const fs::path index = folder / "m" / kHuggingFaceIndex;
  auto error = [&](const std::string& text) {
    write_text(index, text);
    std::string found = error_of([&] { load(folder / "m"); });
    EXPECT_TRUE(contains(found, index.string())) << found;
    return found;
  };
  auto map = [&](const std::string& tensor, const std::string& file) {
    return error(json{{"weight_map", {{tensor, file}}}}.dump());
  };
  EXPECT_TRUE(
      contains(map("a", "model-00003.safetensors"), "tensor 'a' should be in model-00003.safetensors: cannot open"));
  EXPECT_TRUE(contains(map("q", "model-00002-of-00002.safetensors"), "tensor 'q' should be in"));
  for (auto file : {"../x", "/etc/passwd", "a/b", "..", ".", ""})
    EXPECT_TRUE(contains(map("a", file), "not the name of a file in this folder")) << file;
  EXPECT_TRUE(contains(error("{"), "not a JSON document"));
  EXPECT_TRUE(contains(error("[]"), "not a JSON object"));
  EXPECT_TRUE(contains(error("{}"), "without 'weight_map'"));
  EXPECT_TRUE(contains(error(R"({"weight_map": 3})"), "without a JSON object"));
  EXPECT_TRUE(contains(error(R"({"weight_map": {"a": 3}})"), "the file of tensor 'a' is not text"));
  EXPECT_TRUE(contains(error(R"({"weight_map": {"a": {"b": "c"}}})"), "the file of tensor 'a' is not text"));
  EXPECT_TRUE(contains(error(R"({"weight_map": {"a": "x", "a": "x"}})"), "'a' appears twice"));
  EXPECT_TRUE(contains(error(R"({"weight_map": {}, "weight_map": {}})"), "twice"));
  EXPECT_TRUE(contains(error(R"({"x": )" + std::string(10'000'000, '[')), "more than 16 levels"));
  fs::remove(index);
  fs::create_directory(index);
  EXPECT_TRUE(contains(error_of([&] { load(folder / "m"); }), "is not a regular file"));
}

TEST(HuggingFace, SizesAreParsed) {
  EXPECT_EQ(parse_bytes("5GB"), 5'000'000'000u);
  EXPECT_EQ(parse_bytes("1.5 kb"), 1500u);
  EXPECT_EQ(parse_bytes("2GiB"), uint64_t{2} << 30);
  EXPECT_EQ(parse_bytes("17"), 17u);
  for (auto text : {"", "GB", "5XB", "-1GB", "0", "0.1B", "1e30TB", "nan", "inf", "5 G B"})
    EXPECT_TRUE(contains(error_of([&] { parse_bytes(text); }), "shard_size")) << text;
}

class HuggingFaceOnRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, HuggingFaceOnRanks, ::testing::Values(1, 2, 3, 4));

Value::Dict tensors_of(int n) {
  auto all = Placement::all("cpu");
  std::vector<std::pair<Placement, NdSbp>> layouts{{all, sbp::split(0)},
                                                   {all, sbp::split(1)},
                                                   {all, sbp::broadcast()},
                                                   {all, sbp::partial_sum()},
                                                   {Placement("cpu", {n - 1}), sbp::broadcast()}};
  if (n == 4) {
    Placement grid("cpu", Dims{2, 2}, {3, 1, 0, 2});
    layouts.push_back({grid, {sbp::split(1), sbp::split(1)}});
    layouts.push_back({grid, {sbp::broadcast(), sbp::split(2)}});
    layouts.push_back({grid, {sbp::split(2), sbp::partial_sum()}});
  }
  Value::Dict dict;
  for (auto& [placement, nd_sbp] : layouts)
    for (DType dtype : {float32, bfloat16, uint8}) {
      Tensor t = arange(7 * 3 * 5).reshape({7, 3, 5}).to(dtype).to_global(all, sbp::broadcast());
      dict.push_back({fmt::format("layer.{}.w", dict.size()), t.to_global(placement, nd_sbp)});
    }
  dict.push_back({"inner",
                  Value::Dict{{"scalar", ones({}).to_global(all, sbp::broadcast())},
                              {"empty", ones({0, 3}).to_global(all, sbp::split(0))},
                              {"local", arange(4)}}});
  return dict;
}

TEST_P(HuggingFaceOnRanks, EveryLayoutIsWrittenIntoSharedFilesAndReadUnderEveryOther) {
  Folder folder;
  const int n = GetParam();
  for (uint64_t shard : {uint64_t{1} << 30, uint64_t{1000}, uint64_t{1}}) {
    const fs::path path = folder / std::to_string(shard);
    comm::run_ranks(n, [&](int) {
      Value::Dict saved = tensors_of(n);
      save(saved, path, {.format = Format::kHuggingFace, .shard_bytes = shard});
      auto check = [&](const Value& found) {
        for (auto& [key, value] : saved)
          if (value.get_if<Tensor>()) {
            EXPECT_TRUE(same_bits(found[key.text()].tensor(), value.tensor())) << key.text();
          }
        EXPECT_EQ(found["inner.scalar"].tensor().shape(), Dims());
        EXPECT_EQ(found["inner.empty"].tensor().shape(), (Dims{0, 3}));
        EXPECT_TRUE(same_bits(found["inner.local"].tensor(), arange(4)));
      };
      check(load(path));
      check(load(path, {.placement = Placement::all("cpu"), .sbp = sbp::split(0)}));
      check(load(path, {.placement = Placement::all("cpu"), .sbp = sbp::split(1)}));
      check(load(path, {.global_src_rank = n - 1}));
    });
    const auto files = files_in(path);
    if (shard > 1000000) {
      EXPECT_EQ(files, std::set<std::string>{kHuggingFaceFile});
      continue;
    }
    const auto index = json::parse(read_text(path / kHuggingFaceIndex));
    uint64_t total = 0;
    size_t tensors = 0;
    for (auto& file : files) {
      if (file == kHuggingFaceIndex) continue;
      SafetensorsFile one(path / file);  // whose tensors cover it
      EXPECT_EQ(one.header().metadata.at("format"), "pt");
      uint64_t here = 0;
      for (auto& t : one.header().tensors) {
        EXPECT_EQ(index["weight_map"][t.name], file);
        here += t.end - t.begin;
      }
      EXPECT_TRUE(here <= shard || one.header().tensors.size() == 1) << here;
      total += here;
      tensors += one.header().tensors.size();
    }
    EXPECT_EQ(index["metadata"]["total_size"], total);
    EXPECT_EQ(index["weight_map"].size(), tensors);
    const auto count = files.size() - 1;
    EXPECT_TRUE(files.contains(fmt::format("model-00001-of-{:05}.safetensors", count)));
  }
}

TEST(HuggingFace, OneRankWritesAlone) {
  Folder folder;
  save({{"w", arange(6).reshape({2, 3})}, {"b", ones({3}).to(bfloat16)}}, folder / "m",
       {.format = Format::kHuggingFace});
  EXPECT_EQ(files_in(folder / "m"), std::set<std::string>{kHuggingFaceFile});
  EXPECT_TRUE(same_bits(load(folder / "m")["w"].tensor(), arange(6).reshape({2, 3})));
  // A transposed view, in order.
  save({{"t", arange(6).reshape({2, 3}).transpose(0, 1)}}, folder / "m", {.format = Format::kHuggingFace});
  EXPECT_TRUE(same_bits(load(folder / "m")["t"].tensor(), contiguous(arange(6).reshape({2, 3}).transpose(0, 1))));
  save(Value::Dict{}, folder / "none", {.format = Format::kHuggingFace});
  EXPECT_EQ(load(folder / "none").size(), 0u);
}

// One state after the other, of one file and of several: only the last remains, and whatever is there is whole.
TEST(HuggingFace, AStateIsReplacedByTheNext) {
  Folder folder;
  const fs::path path = folder / "m";
  auto save_state = [&](int64_t value, uint64_t shard) {
    save({{"a", ones({100}) * value}, {"b", ones({100}) * value}}, path,
         {.format = Format::kHuggingFace, .shard_bytes = shard});
  };
  const std::set<std::string> sharded{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                      kHuggingFaceIndex};
  int64_t state = 0;
  for (uint64_t shard : {1000, 400, 400, 400, 1000, 400, 1000, 1000}) {
    save_state(++state, shard);
    Value found = load(path);
    for (auto name : {"a", "b"}) EXPECT_EQ(found[name].tensor().array().data<float>()[99], static_cast<float>(state));
    EXPECT_EQ(files_in(path), shard == 1000 ? std::set<std::string>{kHuggingFaceFile} : sharded) << state;
  }
  // What was saved in Holon's own format goes, too.
  comm::run_ranks(2, [&](int) {
    save({{"x", ones({4}, {.placement = Placement::all("cpu"), .sbp = sbp::split(0)})}}, path);
  });
  EXPECT_EQ(load(path).dict()[0].key.text(), "x");
  save_state(9, 400);
  EXPECT_EQ(load(path)["a"].tensor().array().data<float>()[0], 9);
  EXPECT_EQ(files_in(path).size(), 3u);
}

// States whose indices have the same text, while they are replaced: what is loaded is of one of them, on all ranks.
TEST(HuggingFace, AReaderNeverGetsTwoStates) {
  Folder folder;
  const fs::path path = folder / "m";
  auto save_state = [&](int64_t value) {
    Value::Dict dict;
    for (int i = 0; i < 6; ++i) dict.push_back({fmt::format("t{}", i), ones({200}) * value});
    save(dict, path, {.format = Format::kHuggingFace, .shard_bytes = value % 7 == 0 ? 100000u : 1600u});
  };
  save_state(0);
  std::atomic<bool> over = false;
  std::thread writer([&] {
    comm::run_ranks(1, [&](int) {
      for (int64_t i = 1; i < 60; ++i) save_state(i);
    });
    over = true;
  });
  std::set<float> seen;
  comm::run_ranks(2, [&](int rank) {
    for (;;) {
      Value v = rank == 0 ? load(path) : Value();
      Value both = load(path, {.placement = Placement::all("cpu"), .sbp = sbp::split(0)});
      for (auto* found : {&v, &both}) {
        if (found->is_null()) continue;
        std::set<float> values;
        for (auto& [key, t] : found->dict()) {
          const Array part = contiguous(found == &both ? t.tensor().full() : t.tensor()).array();
          values.insert({part.data<float>()[0], part.data<float>()[199]});
        }
        EXPECT_EQ(values.size(), 1u);
        if (rank == 0) seen.insert(values.begin(), values.end());
      }
      if (share("stop", over ? "1" : "0")[0] == "1") return;
    }
  });
  writer.join();
  EXPECT_FALSE(seen.empty());
}

TEST(HuggingFace, ASaveThatFailsLeavesWhatWasThere) {
  Folder folder;
  const fs::path path = folder / "m";
  auto save_state = [&](float value) {
    save({{"a", ones({100}) * value}, {"b", ones({100}) * value}}, path,
         {.format = Format::kHuggingFace, .shard_bytes = 400});
  };
  save_state(1);
  // The second shard cannot get its name, after the first has; then the index cannot.
  const std::string blocked[] = {"model-00002-of-00002.safetensors", kHuggingFaceIndex};
  for (auto& name : blocked) {
    fs::create_directory(folder / "other");
    fs::create_directory(folder / "other" / name);
    EXPECT_NE(error_of([&] {
                save({{"a", ones({100})}, {"b", ones({100})}}, folder / "other",
                     {.format = Format::kHuggingFace, .shard_bytes = 400});
              }),
              "no error");
    EXPECT_EQ(files_in(folder / "other"), std::set<std::string>{name});
    fs::remove_all(folder / "other");
  }
  comm::run_ranks(2, [&](int rank) {
    Tensor t = ones({9}, {.placement = Placement::all("cpu"), .sbp = sbp::split(0)});
    SaveOptions options{.format = Format::kHuggingFace};
    EXPECT_TRUE(contains(error_of([&] { save({{"t", t}}, folder / "none/x", options); }), "rank 0: cannot create"));
    EXPECT_TRUE(contains(error_of([&] {
                           save({{rank == 0 ? "t" : "u", t}}, path, options);
                         }),
                         "save different global"));
    EXPECT_TRUE(contains(error_of([&] { save({{"t", t}, {"l", ones({rank + 1})}}, path, options); }), "local float32"));
  });
  EXPECT_EQ(load(path)["b"].tensor().array().data<float>()[0], 1);
  EXPECT_EQ(files_in(path).size(), 3u);
}

TEST(HuggingFace, OnlyTensorsAreSaved) {
  Folder folder;
  SaveOptions options{.format = Format::kHuggingFace};
  auto error = [&](const Value& value) { return error_of([&] { save(value, folder / "m", options); }); };
  EXPECT_TRUE(contains(error({{"model", Value::Dict{{"epoch", 3}}}}), "top['model']['epoch'] is a integer"));
  EXPECT_TRUE(contains(error({{"list", Value::List{ones({1})}}}), "top['list'] is a list"));
  EXPECT_TRUE(contains(error(ones({1})), "not a single one"));
  EXPECT_TRUE(contains(error(Value::Dict{{1, ones({1})}}), "a key of the dict at the top is integer"));
  EXPECT_TRUE(contains(error({{"a.b", ones({1})}, {"a", Value::Dict{{"b", ones({1})}}}}), "two tensors are 'a.b'"));
  EXPECT_TRUE(contains(error({{"__metadata__", ones({1})}}), "reserved"));
  EXPECT_FALSE(fs::exists(folder / "m"));
  EXPECT_TRUE(contains(error_of([&] {
                         save({{"a", ones({1})}}, folder / "m.safetensors", options);
                       }),
                       "Name a folder"));
  options.shard_bytes = 0;
  EXPECT_TRUE(contains(error({{"a", ones({1})}}), "0 bytes"));
  options = {.global_dst_rank = 0, .format = Format::kHuggingFace};
  EXPECT_TRUE(contains(error({{"a", ones({1})}}), "Leave global_dst_rank out"));
}

TEST(HuggingFace, EveryByteOfAnIndexThatIsChangedIsAnErrorOrHarmless) {
  Folder folder;
  write_sharded(folder / "m");
  const fs::path index = folder / "m" / kHuggingFaceIndex;
  const std::string text = read_text(index);
  int refused = 0;
  for (size_t i = 0; i < text.size(); ++i)
    for (int bit : {0, 3, 7}) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      write_text(index, damaged);
      const std::string error = error_of([&] { load(folder / "m"); });
      refused += error != "no error";
      EXPECT_TRUE(error == "no error" || contains(error, index.string())) << error;
    }
  EXPECT_GT(refused, static_cast<int>(text.size()));
}

}  // namespace
}  // namespace holon::checkpoint
