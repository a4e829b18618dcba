#include "holon/checkpoint/formats/pickle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "checkpoint/folder.h"
#include "checkpoint/other_files.h"
#include "error_of.h"
#include "holon/base/fmt.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/checkpoint/formats/torch_file.h"
#include "holon/checkpoint/formats/zip.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/create.h"
#include "holon/ops/shape.h"

namespace holon::checkpoint {
namespace {

using namespace std::string_literals;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

std::vector<float> counted(int n) {
  std::vector<float> out;
  for (int i = 0; i < n; ++i) out.push_back(static_cast<float>(i));
  return out;
}

// An archive as torch.save() writes it, with one storage of floats, "0".
std::string archive(const PickleText& pickle, int n = 24) {
  return zip_of({{"archive/data.pkl", pickle.str()},
                 {"archive/byteorder", "little"},
                 {"archive/data/0", bytes_of_numbers(counted(n))},
                 {"archive/version", "3\n"}});
}

Value load_bytes(const std::string& bytes) {
  Folder folder;
  write_text(folder / "x.pt", bytes);
  return load(folder / "x.pt");
}

std::string refused(const PickleText& pickle) {
  return error_of([&] { load_bytes(archive(pickle)); });
}

TEST(Pickle, PlainContainersComeBack) {
  PickleText p;
  p.raw("}(").text("i").integer(-5).text("t").raw("K\1M\2\1\x86").text("l").raw("](NK\3e").text("b").raw("\x88");
  p.text("f").raw("G" + std::string("\x40\x09\x21\xfb\x54\x44\x2d\x18")).text("big").raw("\x8a\10\0\0\0\0\0\0\0\x80"s);
  p.raw("K\7").text("seven").text("dtype").name("torch", "bfloat16").text("nan");
  p.raw("G\x7f\xf8\0\0\0\0\0\0"s).text("size").name("torch", "Size").sizes({2, 3}).raw("\x85R").raw("u");
  Value v = load_bytes(archive(p));
  EXPECT_EQ(v["i"].integer(), -5);
  EXPECT_TRUE(v["t"].get_if<Value::Tuple>());
  EXPECT_EQ(v["t"][1].integer(), 258);
  EXPECT_TRUE(v["l"][size_t{0}].is_null());
  EXPECT_EQ(v["l"][1].integer(), 3);
  EXPECT_TRUE(v["b"].boolean());
  EXPECT_EQ(v["f"].number(), M_PI);
  EXPECT_EQ(v["big"].integer(), INT64_MIN);
  EXPECT_EQ(v.dict()[6].key.integer(), 7);
  EXPECT_EQ(v["dtype"].text(), "torch.bfloat16");
  EXPECT_TRUE(std::isnan(v["nan"].number()));
  EXPECT_EQ(v["size"][1].integer(), 3);
}

TEST(Pickle, ViewsOfOneStorageAreRead) {
  PickleText p;
  p.raw("}(");
  p.text("rows").tensor("FloatStorage", "0", 24, 0, {4, 6}, {6, 1});
  p.text("turned").tensor("FloatStorage", "0", 24, 0, {6, 4}, {1, 6});
  p.text("every second").tensor("FloatStorage", "0", 24, 1, {4, 3}, {6, 2});
  p.text("repeated").tensor("FloatStorage", "0", 24, 3, {2, 5, 2}, {0, 4, 1});
  p.text("overlapping").tensor("FloatStorage", "0", 24, 0, {5, 3}, {1, 1});
  p.text("scalar").tensor("FloatStorage", "0", 24, 23, {}, {});
  p.text("empty").tensor("FloatStorage", "0", 24, 24, {0, 3}, {3, 1});
  p.text("one").tensor("FloatStorage", "0", 24, 7, {1, 1}, {99, 99});
  p.raw("u");
  const std::string bytes = archive(p);
  Value v = load_bytes(bytes);
  const Tensor flat = arange(24).to(float32);
  auto expect = [&](const char* name, const Dims& shape, const Dims& strides, int64_t offset) {
    const Tensor& t = v[name].tensor();
    ASSERT_EQ(t.shape(), shape) << name;
    ASSERT_TRUE(t.array().is_contiguous()) << name;
    for (int64_t i = 0; i < t.numel(); ++i) {
      int64_t at = offset, rest = i;
      for (int a = shape.size() - 1; a >= 0; --a) at += rest % shape[a] * strides[a], rest /= shape[a];
      EXPECT_EQ(t.array().data<float>()[i], static_cast<float>(at)) << name << " " << i;
    }
  };
  expect("rows", {4, 6}, {6, 1}, 0);
  expect("turned", {6, 4}, {1, 6}, 0);
  expect("every second", {4, 3}, {6, 2}, 1);
  expect("repeated", {2, 5, 2}, {0, 4, 1}, 3);
  expect("overlapping", {5, 3}, {1, 1}, 0);
  expect("scalar", {}, {}, 23);
  expect("one", {1, 1}, {0, 0}, 7);
  EXPECT_EQ(v["empty"].tensor().shape(), (Dims{0, 3}));

  // Regions, as ranks read them.
  Folder folder;
  write_text(folder / "x.pt", bytes);
  comm::run_ranks(3, [&](int) {
    for (int axis : {0, 1}) {
      Value parts = load(folder / "x.pt", {.placement = Placement::all("cpu"), .sbp = sbp::split(axis)});
      for (auto name : {"rows", "turned", "every second", "repeated", "overlapping"}) {
        Tensor whole = parts[name].tensor().full();
        EXPECT_EQ(std::memcmp(contiguous(whole).array().bytes(), v[name].tensor().array().bytes(),
                              v[name].tensor().array().nbytes()),
                  0)
            << name << axis;
      }
    }
  });
}

TEST(Pickle, LargeViewsAreReadInPieces) {
  // Runs that are far from each other, and near.
  const int n = 300000;
  PickleText p;
  p.raw("}(").text("near").tensor("FloatStorage", "0", n, 0, {1000, 100}, {300, 1});
  p.text("far").tensor("FloatStorage", "0", n, 2, {6, 3}, {50000, 1}).text("column");
  p.tensor("FloatStorage", "0", n, 2, {100000}, {3}).raw("u");
  Value v = load_bytes(archive(p, n));
  for (int64_t i = 0; i < 100000; ++i) {
    ASSERT_EQ(v["near"].tensor().array().data<float>()[i], static_cast<float>(i / 100 * 300 + i % 100));
    ASSERT_EQ(v["column"].tensor().array().data<float>()[i], static_cast<float>(2 + 3 * i));
  }
  for (int64_t i = 0; i < 18; ++i)
    EXPECT_EQ(v["far"].tensor().array().data<float>()[i], static_cast<float>(2 + i / 3 * 50000 + i % 3));
}

TEST(Pickle, ParametersAttributesAndFloat8) {
  PickleText p;
  // An OrderedDict with attributes, in it a Parameter, and a tensor of a storage of bytes.
  p.name("collections", "OrderedDict").raw(")R(").text("w").name("torch._utils", "_rebuild_parameter").raw("(");
  p.tensor("FloatStorage", "0", 24, 0, {3}, {1}).raw("\x88").name("collections", "OrderedDict").raw(")RtR");
  p.text("f8").name("torch._utils", "_rebuild_tensor_v3").raw("(").storage("UntypedStorage", "0", 96).integer(2);
  p.sizes({2}).sizes({1}).raw("\x89").name("collections", "OrderedDict").raw(")R").name("torch", "float8_e4m3fn");
  p.raw("tRu}").text("_metadata").raw("Nsb");
  Value v = load_bytes(archive(p));
  EXPECT_EQ(v.size(), 2u);
  EXPECT_EQ(v["w"].tensor().array().data<float>()[2], 2.0f);
  EXPECT_EQ(v["f8"].tensor().dtype(), float8_e4m3fn);  // bytes 0x00 0x00 of 0.0f
  EXPECT_EQ(v["f8"].tensor().to(float32).array().data<float>()[0], 0.0f);
}

TEST(Pickle, WhatItWouldCallIsNamed) {
  Folder folder;
  const std::string marker = (folder / "made").string();
  auto call = [&](const std::string& module, const std::string& name) {
    return refused(PickleText().name(module, name).raw("(").text("touch " + marker).raw("tR"));
  };
  EXPECT_TRUE(contains(call("os", "system"), "this file would call os.system; it is not read"));
  EXPECT_TRUE(contains(call("builtins", "eval"), "would call builtins.eval"));
  EXPECT_TRUE(contains(call("torch", "load"), "would call torch.load"));
  EXPECT_TRUE(contains(call("__main__", "Net"), "would call __main__.Net"));
  EXPECT_TRUE(contains(refused(PickleText().text("posix").text("system").raw("\x93")), "would call posix.system"));
  EXPECT_TRUE(contains(refused(PickleText().raw("(").text("x").raw("ios\nsystem\n")), "would call os.system"));
  EXPECT_TRUE(contains(refused(PickleText().name("torch", "FloatStorage").raw("(tR")), "would call FloatStorage"));
  EXPECT_TRUE(contains(refused(PickleText().name("torch", "Tensor").raw(")\x81")), "would call Tensor"));
  EXPECT_TRUE(contains(refused(PickleText().tensor("FloatStorage", "0", 24, 0, {1}, {1}).raw("}b")), "__setstate__"));
  EXPECT_FALSE(std::filesystem::exists(marker));
}

TEST(Pickle, ObjectsThatAValueCannotHoldAreNamed) {
  EXPECT_TRUE(contains(refused(PickleText().raw("}").text("a").raw("C\1xs")), "a bytes object at the top['a']"));
  EXPECT_TRUE(contains(refused(PickleText().raw("})K\1s")), "a key that is a tuple"));
  EXPECT_TRUE(contains(refused(PickleText().raw("}").text("a").tensor("ShortStorage", "0", 2, 0, {2}, {1}).raw("s")),
                       "top['a'] has dtype torch.int16"));
  EXPECT_TRUE(contains(refused(PickleText().raw("\x8a\11"
                                                "000000000"s)),
                       "an integer of 9 bytes"));
  EXPECT_TRUE(contains(refused(PickleText().text("\xff")), "not UTF-8"));
  EXPECT_TRUE(contains(refused(PickleText().raw("\x8f")), "the opcode 0x8f"));
}

TEST(Pickle, TensorsThatDoNotFitAreRefused) {
  auto tensor = [](int32_t n, int32_t offset, const std::vector<int32_t>& shape, const std::vector<int32_t>& strides) {
    return refused(PickleText().raw("}").text("w").tensor("FloatStorage", "0", n, offset, shape, strides).raw("s"));
  };
  EXPECT_EQ(tensor(24, 0, {4, 6}, {6, 1}), "no error");
  EXPECT_TRUE(contains(tensor(24, 1, {4, 6}, {6, 1}), "a tensor of storage '0' is beyond its end"));
  EXPECT_TRUE(contains(tensor(24, -1, {4}, {1}), "beyond its end"));
  EXPECT_TRUE(contains(tensor(24, 0, {4}, {-1}), "negative size or stride"));
  EXPECT_TRUE(contains(tensor(24, 0, {-4}, {1}), "negative size or stride"));
  EXPECT_TRUE(contains(tensor(24, 0, {4}, {1, 1}), "not one stride for each axis"));
  EXPECT_TRUE(contains(tensor(24, 0, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 1}), "9 axes"));
  EXPECT_TRUE(contains(tensor(24, 0, {INT32_MAX, INT32_MAX}, {INT32_MAX, INT32_MAX}), "beyond its end"));
  EXPECT_TRUE(contains(tensor(24, 0, {INT32_MAX, INT32_MAX, INT32_MAX}, {0, 0, 0}), "larger than any memory"));
  EXPECT_TRUE(contains(tensor(24, 0, {INT32_MAX}, {0}), "repeat the same elements"));
  EXPECT_TRUE(contains(tensor(25, 0, {4}, {1}), "tensor 'w': its storage '0' should have 100 bytes, and has 96"));
  EXPECT_TRUE(contains(refused(PickleText().tensor("FloatStorage", "../../x", 1, 0, {1}, {1})), "'../../x' should"));
  EXPECT_TRUE(contains(refused(PickleText().tensor("FloatStorage", "0", -1, 0, {1}, {1})), "negative size"));
}

TEST(Pickle, ProgramsThatGrowAreRefused) {
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += "]";
  for (int i = 0; i < 999; ++i) deep += "a";
  EXPECT_TRUE(contains(refused(PickleText().raw(deep)), "more than 100 levels"));
  EXPECT_TRUE(contains(refused(PickleText().raw("]q\1h\1a")), "more than 100 levels"));  // it contains itself
  // Each list contains the one before twice: 2^40 elements.
  PickleText doubling;
  doubling.raw("]q").raw(std::string(1, '\0'));
  for (int i = 1; i < 40; ++i)
    doubling.raw("](h")
        .raw(std::string(1, static_cast<char>(i - 1)))
        .raw("h")
        .raw(std::string(1, static_cast<char>(i - 1)))
        .raw("eq")
        .raw(std::string(1, static_cast<char>(i)));
  doubling.raw("q\x64").raw(std::string(0, ' '));
  std::string text = doubling.str();
  EXPECT_TRUE(contains(error_of([&] { unpickle("\x80\2" + ("(" + text.substr(2, text.size() - 3)) + "l.", "x"); }),
                       "they do not fit in memory"));
  const std::string marks = "\x80\2" + std::string(20'000'000, '(') + ".";
  EXPECT_TRUE(contains(error_of([&] { unpickle(marks, "x"); }), "on its stack"));
  const std::string lists = "\x80\2" + std::string(20'000'000, ']') + ".";
  EXPECT_TRUE(contains(error_of([&] { unpickle(lists, "x"); }), "objects"));
  EXPECT_TRUE(contains(error_of([&] {
                         unpickle("\x80\2X\xff\xff\xff\xff"
                                  "abc",
                                  "x");
                       }),
                       "truncated"));
  for (auto wrong :
       {""s, "\x80\2"s, "\x80\2."s, "\x80\2NN."s, "\x80\1N."s, "\x80\2R."s, "\x80\2h\3."s, "\x80\2u."s, "\x80\2(Nu."s,
        "\x80\2}(Nu."s, "\x80\2Na."s, "\x80\2NQ."s, "\x80\2)Q."s, "\x80\2t."s, "\x80\2\xff."s})
    EXPECT_TRUE(contains(error_of([&] { unpickle(wrong, "the file"); }), "the file: its pickle cannot be read"));
}

TEST(Zip, ArchivesThatAreSomethingElse) {
  auto error = [](const std::string& bytes) { return error_of([&] { load_bytes(bytes); }); };
  const PickleText none = PickleText().raw("N");
  EXPECT_TRUE(contains(error(zip_of({{"a.npy", "x"}})), "not one that torch.save() wrote"));
  EXPECT_TRUE(contains(error(zip_of({{"net/data.pkl", none.str()}, {"net/constants.pkl", ""}})), "TorchScript"));
  EXPECT_TRUE(contains(error(zip_of({{"a/data.pkl", none.str()}, {"a/byteorder", "big"}})), "big-endian"));
  EXPECT_TRUE(contains(error(zip_of({{"a/data.pkl", none.str()}}, 8)), "'a/data.pkl' is compressed or"));
  EXPECT_TRUE(contains(error(zip_of({{"a/data.pkl", none.str()}, {"a/data.pkl", none.str()}})), "appears twice"));
  EXPECT_TRUE(contains(error("PK\3\4 and nothing more"), "directory cannot be found"));
  const std::string good =
      archive(PickleText().raw("}").text("w").tensor("FloatStorage", "0", 24, 0, {4}, {1}).raw("s"));
  EXPECT_EQ(error(good), "no error");
  for (size_t n = 4; n < good.size(); n += 7) EXPECT_NE(error(good.substr(0, n)), "no error") << n;
}

TEST(Zip, EveryByteThatIsChangedIsAnErrorOrHarmless) {
  const std::string good = archive(PickleText()
                                       .raw("}(")
                                       .text("w")
                                       .tensor("FloatStorage", "0", 24, 0, {4, 6}, {1, 4})
                                       .text("v")
                                       .tensor("FloatStorage", "0", 24, 8, {2}, {1})
                                       .raw("u"));
  Folder folder;
  int refused = 0, read = 0;
  for (size_t i = 0; i < good.size(); ++i)
    for (int bit : {0, 5, 7}) {
      std::string damaged = good;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      write_text(folder / "x.pt", damaged);
      const std::string error = error_of([&] { load(folder / "x.pt"); });
      ++(error == "no error" ? read : refused);
      EXPECT_TRUE(error == "no error" || contains(error, (folder / "x.pt").string())) << error;
    }
  EXPECT_GT(refused, 300);
  EXPECT_GT(read, 300);  // a flip in a tensor is not noticed: the format has no checksum that is sure to be there
}

}  // namespace
}  // namespace holon::checkpoint
