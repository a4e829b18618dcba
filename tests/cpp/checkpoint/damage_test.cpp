// Files that are damaged, old, or something else.
#include <filesystem>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "checkpoint/folder.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/checkpoint/core/json.h"
#include "holon/checkpoint/formats/folder.h"
#include "holon/checkpoint/formats/other_formats.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/create.h"
#include "tests/cpp/error_of.h"

namespace holon::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

// The bytes of a dict of tensors and numbers, to compare.
std::string bits(const Value& value) {
  std::string out;
  for (auto& [key, v] : value.dict()) {
    out += key.text();
    if (auto* t = v.get_if<Tensor>())
      out += fmt::format("{} {}", t->shape(), name(t->dtype())) +
          std::string(reinterpret_cast<const char*>(t->array().bytes()), t->array().nbytes());
    else
      out += std::to_string(v.number());
  }
  return out;
}

void save_parts(const fs::path& path) {
  comm::run_ranks(2, [&](int) {
    Tensor t = arange(40).reshape({4, 10}).to_global(Placement::all("cpu"), sbp::broadcast());
    save({{"rows", t.to_global(Placement::all("cpu"), sbp::split(0))},
          {"columns", t.to(int8).to_global(Placement::all("cpu"), sbp::split(1))},
          {"lr", 0.125}},
         path);
  });
}

TEST(Damage, OfAnyByteOfAFolderIsFoundOrHarmless) {
  Folder folder;
  save_parts(folder / "x");
  const std::string whole = bits(load(folder / "x", {.device = Device()}));
  int refused = 0, harmless = 0;
  for (auto& entry : fs::directory_iterator(folder / "x")) {
    const std::string text = read_text(entry.path());
    for (size_t i = 0; i < text.size(); ++i) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
      write_text(entry.path(), damaged);
      try {
        EXPECT_EQ(bits(load(folder / "x", {.device = Device()})), whole) << entry.path() << " " << i;
        ++harmless;
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find(folder.path.string()), std::string::npos) << e.what();
        ++refused;
      }
    }
    write_text(entry.path(), text);
  }
  EXPECT_GT(refused, 1500);
  EXPECT_LT(harmless, 50);
}

TEST(Damage, OfATensorInOneFileIsFound) {
  Folder folder;
  // Several blocks, which tensors do not keep to.
  save({{"a", arange(3)}, {"big", arange(40000).to(int32)}, {"columns", arange(30000).reshape({100, 300})}},
       folder / "x");
  const std::string text = read_text(folder / "x");
  uint64_t header = 0;
  std::memcpy(&header, text.data(), sizeof header);
  const std::string whole = bits(load(folder / "x"));
  for (size_t at = 8 + header; at < text.size(); at += 4999) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    write_text(folder / "x", damaged);
    EXPECT_NE(error_of([&] { load(folder / "x"); }).find("their checksum differs"), std::string::npos) << at;
  }
  write_text(folder / "x", text);
  EXPECT_EQ(bits(load(folder / "x")), whole);
  // Regions are compared, too: those of a block that is damaged are refused, others are not.
  SafetensorsFile before(folder / "x");
  const size_t last = before.header().bytes + before.find("columns")->end - 1;
  std::string damaged = text;
  damaged[last] = static_cast<char>(damaged[last] ^ 4);
  write_text(folder / "x", damaged);
  SafetensorsFile file(folder / "x");
  const auto& columns = *file.find("columns");
  Array out = Array::empty({100, 1}, int64);
  EXPECT_EQ(error_of([&] { file.read(columns, {0, 7}, {50, 1}, out, {0, 0}); }), "no error");
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(out.data<int64_t>()[i], 300 * i + 7);
  EXPECT_NE(error_of([&] { file.read(columns, {0, 7}, {100, 1}, out, {0, 0}); }).find("checksum"), std::string::npos);
}

// Another program may keep the metadata with tensors that it has changed: the checksums are not theirs.
TEST(Damage, ChecksumsOfAHeaderThatWasWrittenAnewDoNotCount) {
  Folder folder;
  save({{"a", arange(3)}}, folder / "x");
  std::string text = read_text(folder / "x");
  uint64_t size = 0;
  std::memcpy(&size, text.data(), sizeof size);
  std::string header = text.substr(8, size), data = text.substr(8 + size);
  // As another program orders the members.
  const std::string ours = R"("data_offsets":[0,24],"dtype":"I64","shape":[3])";
  ASSERT_NE(header.find(ours), std::string::npos) << header;
  header.replace(header.find(ours), ours.size(), R"("dtype":"I64","shape":[3],"data_offsets":[0,24])");
  data[0] = 5;
  write_text(folder / "x", text.substr(0, 8) + header + data);
  EXPECT_EQ(load(folder / "x")["a"].tensor().array().data<int64_t>()[0], 5);
}

TEST(Damage, CheckpointsWithoutChecksumsStillLoad) {
  Folder folder;
  save_parts(folder / "x");
  const std::string whole = bits(load(folder / "x", {.device = Device()}));
  // As before there were any: in the index, and in the parts.
  auto index = nlohmann::json::parse(read_text(folder / "x" / kIndexFile));
  index.erase("crc32c");
  index.erase("files");
  write_text(folder / "x" / kIndexFile, index.dump(1) + "\n");
  for (auto& entry : fs::directory_iterator(folder / "x")) {
    if (entry.path().filename() == kIndexFile) continue;
    const std::string text = read_text(entry.path());
    uint64_t size = 0;
    std::memcpy(&size, text.data(), sizeof size);
    const std::string data = text.substr(8 + size);
    auto header = nlohmann::json::parse(text.substr(8, size));
    header.erase("__metadata__");
    std::string changed = header.dump();
    changed.append((8 - changed.size() % 8) % 8, ' ');
    size = changed.size();
    write_text(entry.path(), std::string(reinterpret_cast<char*>(&size), 8) + changed + data);
  }
  EXPECT_EQ(bits(load(folder / "x", {.device = Device()})), whole);
}

TEST(Damage, AFileThatIsCutOffWhileItIsReadIsAnError) {
  Folder folder;
  save({{"a", arange(100000)}}, folder / "x");
  SafetensorsFile file(folder / "x");
  fs::resize_file(folder / "x", 5000);
  EXPECT_NE(error_of([&] { file.read(*file.find("a")); }).find("Another program has truncated it"), std::string::npos);
}

TEST(Damage, ManyLevelsAreRefusedAtTheFirstThatIsTooDeep) {
  Folder folder;
  auto file = [&](std::string header) {
    uint64_t size = header.size();
    write_text(folder / "x", std::string(reinterpret_cast<char*>(&size), 8) + header);
    return error_of([&] { load(folder / "x"); });
  };
  const std::string deep(20'000'000, '[');
  EXPECT_NE(file(deep).find("not a JSON object"), std::string::npos);
  EXPECT_NE(file("{\"a\":{\"more\":" + deep).find("of more than 16 levels"), std::string::npos);
  EXPECT_NE(file("{\"a\":{\"shape\":" + deep).find("its shape is not a list of sizes"), std::string::npos);
  EXPECT_NE(file("{\"__metadata__\":{\"holon\":\"" + deep + "\"}}").find("levels deep"), std::string::npos);
  fs::create_directory(folder / "parts");
  write_text(folder / "parts" / kIndexFile, "{\"tree\": " + deep);
  EXPECT_NE(error_of([&] { load(folder / "parts"); }).find("nested more than 16 levels deep"), std::string::npos);
  EXPECT_TRUE(deeper_than(2, "[[[]]]") && !deeper_than(3, "[[[]]]") && !deeper_than(1, "[\"[[\\\"[[\", 1]"));
}

TEST(Damage, WhatIsNoRegularFileIsRefusedAtOnce) {
  Folder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_NE(error_of([&] { load(folder / "pipe"); }).find("is not a regular file"), std::string::npos);
  EXPECT_NE(error_of([] { load("/dev/zero"); }).find("is not a regular file"), std::string::npos);
  EXPECT_NE(error_of([&] { save({{"a", 1}}, folder / "pipe"); }).find("not a regular file"), std::string::npos);
  fs::create_directory(folder / "parts");
  ASSERT_EQ(::mkfifo((folder / "parts" / kIndexFile).c_str(), 0600), 0);
  EXPECT_NE(error_of([&] { load(folder / "parts"); }).find("is not a regular file"), std::string::npos);
}

TEST(OtherFormats, AreKnownByTheirFirstBytes) {
  Folder folder;
  const std::pair<std::string, std::string> files[] = {
      {"PK\3\4\0\0\10\10 archive/data.pkl and so on"s, "The zip archive is truncated or damaged"},
      {"PK\5\6\0\0\0\0\0\0 more"s, "an empty zip archive"},
      {"\x80\2\x8a\nl\xfc\x9c\x46\xf9 \x6a"s, "a pickle, as older torch.save()"},
      {"\x80\4\x95\x10\0\0\0\0\0\0\0 dict"s, "a pickle"},
      {"\x93NUMPY\1\0v\0{'descr'"s, "an array of NumPy"},
      {"GGUF\3\0\0\0\x23\1"s, "a GGUF file"},
      {"\x1f\x8b\10\0\0\0\0\0"s + std::string(700000, 'x'), "compressed by gzip. Unpack it first"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:1"s, "git lfs pull"},
      {"<!DOCTYPE html><html>not found</html>"s, "an HTML page"},
      {"{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\"}}"s, "text, perhaps JSON"},
  };
  for (auto& [text, known] : files) {
    write_text(folder / "model.bin", text);
    const std::string found = error_of([&] { load(folder / "model.bin"); });
    EXPECT_NE(found.find(known), std::string::npos) << found;
    EXPECT_EQ(found.find((folder / "model.bin").string()), 0u) << found;
    EXPECT_EQ(found.find("its header should have"), std::string::npos) << found;
  }
  write_text(folder / "model.safetensors.index.json", files[9].first);
  EXPECT_NE(
      error_of([&] { load(folder / "model.safetensors.index.json"); }).find("tensor 'a' should be in model-00001"),
      std::string::npos);
  save_parts(folder / "x");
  EXPECT_NE(error_of([&] { load(folder / "x" / kIndexFile); }).find("Load the folder"), std::string::npos);
  // Plain damage is told as before.
  write_text(folder / "x.safetensors", "\xff\xff\xff\xff\xff\xff\xff\xff{}");
  EXPECT_NE(error_of([&] { load(folder / "x.safetensors"); }).find("its header should have 18446744073709551615 bytes"),
            std::string::npos);
}

}  // namespace
}  // namespace holon::checkpoint
