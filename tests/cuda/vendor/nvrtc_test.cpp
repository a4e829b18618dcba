// Kernels of chains as NVRTC compiles them, for which no device is needed: that it takes them, and what comes out.
#include <gtest/gtest.h>

#include <cstring>
#include <regex>
#include <string>
#include <vector>

#include "holon/base/error.h"
#include "holon/kernels/chain.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/chain_source.h"
#include "holon/kernels/cuda/rtc.h"
#include "holon/kernels/elementwise.h"

using namespace holon;
using kernels::BinaryOp;
using kernels::Chain;
using kernels::ChainAxis;
using kernels::ChainRecorder;
using kernels::TernaryOp;
using kernels::UnaryOp;
using kernels::cuda::ChainVariant;

namespace {

const Device kDevice{kFirstDeviceType, 0};

class Nvrtc : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kernels::cuda::why_no_compiler().empty()) GTEST_SKIP() << kernels::cuda::why_no_compiler();
  }
};

Array array(DType dtype, const Dims& shape = {64}) {
  return Array::placeholder(shape, contiguous_strides(shape), dtype, kDevice);
}

struct Recorder {
  ChainRecorder r;
  Array input(DType dtype) {
    Array a = array(dtype);
    r.add_input(a);
    return a;
  }
  Chain take(std::vector<Array> results) {
    auto chain = r.take(results);
    EXPECT_TRUE(chain.has_value());
    return chain.value_or(Chain{});
  }
};

// All arrays contiguous.
std::vector<ChainAxis> flat(const Chain& chain, int64_t n = 1 << 20) {
  ChainAxis axis{n, {}};
  for (size_t k = 0; k < chain.inputs.size() + chain.results.size(); ++k) axis.strides.push_back(1);
  return {axis};
}

std::string compiled(const Chain& chain, std::span<const ChainAxis> axes, bool aligned = true) {
  const std::string source = kernels::cuda::chain_source(chain, ChainVariant(chain, axes, aligned));
  std::string log;
  for (int capability : {80, 90}) {
    try {
      EXPECT_GT(kernels::cuda::machine_code(source, capability, "--ptxas-options=-v", &log).size(), 1000u);
    } catch (const Error& e) {
      ADD_FAILURE() << e.what() << "\n" << source;
    }
    EXPECT_TRUE(log.find("0 bytes spill stores, 0 bytes spill loads") != std::string::npos) << log << source;
  }
  return source;
}

// x gelu(x y + b) in one dtype.
Chain gated(DType dtype) {
  Recorder r;
  Array x = r.input(dtype), y = r.input(dtype), b = r.input(dtype), h = array(dtype), g = array(dtype),
        z = array(dtype);
  kernels::binary(BinaryOp::Mul, x, y, h);
  kernels::binary(BinaryOp::Add, h, b, h);
  kernels::unary(UnaryOp::Gelu, h, g);
  kernels::binary(BinaryOp::Mul, x, g, z);
  return r.take({z});
}

TEST_F(Nvrtc, TakesChainsOfAllFloats) {
  for (DType dtype : {float32, float64, float16, bfloat16}) {
    const Chain chain = gated(dtype);
    EXPECT_EQ(chain.steps.size(), 4u);
    compiled(chain, flat(chain));
    compiled(chain, flat(chain), false);
    // A row for b, and the columns of a transposed y.
    const std::vector<ChainAxis> axes{{512, {64, 1, 0, 64}}, {64, {1, 512, 1, 1}}};
    compiled(chain, axes);
    const std::vector<ChainAxis> odd{{7, {15, 5, 1, 15}}, {3, {5, 0, 0, 5}}, {5, {1, 1, 0, 1}}};
    compiled(chain, odd);
    const std::vector<ChainAxis> large{{1 << 20, {1 << 14, 0, 1 << 13, 1 << 14}}, {1 << 14, {1, 1, 0, 1}}};
    EXPECT_NE(compiled(chain, large).find("using Place = int64_t"), std::string::npos);
  }
}

// Instructions of an opcode that move 16 bytes, as compute capabilities from 7.0 to 9.0 encode them: 16 bytes each,
// with the opcode in bits 0 to 11 and the logarithm of the size, plus 2, in bits 73 to 75.
int of_16_bytes(const std::string& code, uint64_t opcode) {
  int n = 0;
  for (size_t at = 0; at + 16 <= code.size(); at += 16) {
    uint64_t word[2];
    std::memcpy(word, code.data() + at, sizeof word);
    n += (word[0] & 0xfff) == opcode && (word[1] >> 9 & 7) == 6;
  }
  return n;
}

TEST_F(Nvrtc, MovesSixteenBytesAtATime) {
  for (DType dtype : {float32, float64, float16, bfloat16, int32, int8}) {
    Recorder r;
    Array x = r.input(dtype), y = r.input(dtype), z = array(dtype);
    kernels::binary(BinaryOp::Mul, x, y, z);
    kernels::binary(BinaryOp::Add, x, z, z);
    const Chain chain = r.take({z});
    const std::string source = kernels::cuda::chain_source(chain, ChainVariant(chain, flat(chain), true));
    std::string log;
    const std::string code = kernels::cuda::machine_code(source, 90, "--ptxas-options=-v", &log);
    EXPECT_GE(of_16_bytes(code, 0x981), 2) << "LDG.128";
    EXPECT_GE(of_16_bytes(code, 0x986), 1) << "STG.128";
    std::smatch found;
    ASSERT_TRUE(std::regex_search(log, found, std::regex("Used ([0-9]+) registers"))) << log;
    EXPECT_LE(std::stoi(found[1]), dtype == float64 ? 128 : 64);
    EXPECT_NE(source.find("load<" + std::to_string(16 / size_bytes(dtype)) + ">"), std::string::npos) << source;
  }
}

// Every operation in every type that it has: the headers hold nothing that NVRTC does not know.
TEST_F(Nvrtc, TakesEveryOperation) {
  for (DType dtype : {float32, float64, bfloat16, int32, int64}) {
    Recorder r;
    Array x = r.input(dtype), y = r.input(dtype), z = r.input(dtype);
    std::vector<Array> results;
    const auto fits = [&](auto run) {  // else the operation is not defined for the dtype
      try {
        run();
        return true;
      } catch (const Error&) {
        return false;
      }
    };
    int count = 0;
    for (int op = 0; op < static_cast<int>(UnaryOp::kCount); ++op) {
      const auto u = static_cast<UnaryOp>(op);
      Array out = array(gives_bool(u) ? boolean : dtype);
      count += fits([&] { kernels::unary(u, x, out, {1, 2, 3}); });
    }
    for (int op = 0; op < static_cast<int>(BinaryOp::kCount); ++op) {
      const auto b = static_cast<BinaryOp>(op);
      Array out = array(gives_bool(b) ? boolean : dtype), other = array(gives_bool(b) ? boolean : dtype);
      const bool plain = is_floating(dtype) || !divides(b);
      count += fits([&] { kernels::binary(b, x, y, out, plain ? kernels::Params{1, 2} : kernels::Params{}); });
      count += fits([&] { kernels::binary_scalar(b, x, 3, other, true); });
    }
    for (int op = 0; op < static_cast<int>(TernaryOp::kCount); ++op) {
      Array out = array(dtype);
      count += fits([&] { kernels::ternary(static_cast<TernaryOp>(op), x, y, z, out, {1}); });
    }
    for (DType to : {boolean, uint8, int8, int32, int64, float16, bfloat16, float32, float64}) {
      Array out = array(to), back = array(dtype), chosen = array(dtype);
      kernels::copy(x, out);
      kernels::copy(out, back);
      if (to != boolean) continue;
      kernels::where(out, x, y, chosen);
      kernels::masked_fill(chosen, out, 2, chosen);
      results.push_back(chosen);
    }
    EXPECT_GT(count, is_floating(dtype) ? 150 : 70);
    const Chain chain = r.take(results);
    const std::string source = kernels::cuda::chain_source(chain, ChainVariant(chain, flat(chain), true));
    EXPECT_NO_THROW(kernels::cuda::machine_code(source, 90));
  }
}

TEST_F(Nvrtc, SaysWhatIsWrong) {
  try {
    kernels::cuda::machine_code("#include \"holon/kernels/cuda/chain_device.h\"\nint nonsense = no_such_name;\n", 90);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("no_such_name"), std::string::npos) << e.what();
  }
}

TEST(ChainRecorder, TakesNothingButElementWiseKernels) {
  Recorder r;
  Array x = r.input(float32), y = array(float32);
  kernels::fill(y, 1);
  EXPECT_FALSE(r.r.take(std::vector<Array>{y}).has_value());
}

}  // namespace
