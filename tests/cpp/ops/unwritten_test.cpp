// Kernels write all of what infer promises, for every dtype that infer lets through.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "cases.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"

namespace holon::testing {
namespace {

constexpr unsigned char kPatterns[] = {0x55, 0xaa};

// What is in the outputs, which were full of a pattern; nothing where the kernel refuses the call.
std::optional<std::vector<Array>> run(const OpDef& op, const Attrs& attrs, const std::vector<Array>& in,
                                      std::span<const Meta> outs, unsigned char pattern) {
  std::vector<Array> own, out;
  std::vector<const Array*> in_pointers;
  std::vector<Array*> out_pointers;
  for (auto& a : in) own.push_back(a.defined() ? on_device(a, {}) : Array());
  for (auto& meta : outs) {
    out.push_back(Array::empty(meta.shape, meta.dtype));
    std::memset(out.back().bytes(), pattern, out.back().nbytes());
  }
  for (auto& a : own) in_pointers.push_back(&a);
  for (auto& a : out) out_pointers.push_back(&a);
  KernelCall call(op, attrs, in_pointers, out_pointers);
  try {
    op.kernel(call);
  } catch (const Error&) {
    return {};
  }
  return out;
}

// Empty if the outputs hold what the kernel computed and nothing else, or infer or the kernel refuse the call.
std::string unwritten(const OpDef& op, const Attrs& attrs, const std::vector<Array>& in) {
  SmallVec<Meta, 3> metas;
  uint32_t present = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    metas.push_back({in[i].shape, in[i].dtype});
    present |= static_cast<uint32_t>(in[i].defined()) << std::min<size_t>(i, 31);
  }
  Infer infer(op, attrs, metas, present);
  try {
    op.infer(infer);
  } catch (const Error&) {
    return {};
  }
  const auto a = run(op, attrs, in, infer.out_, kPatterns[0]), b = run(op, attrs, in, infer.out_, kPatterns[1]);
  if (!a || !b) return {};
  for (size_t o = 0; o < a->size(); ++o) {
    const size_t n = (*a)[o].nbytes(), unit = size_bytes((*a)[o].dtype);
    if (std::memcmp((*a)[o].bytes(), (*b)[o].bytes(), n) == 0) continue;
    for (size_t e = 0; e < n; e += unit) {
      const std::byte *x = (*a)[o].bytes() + e, *y = (*b)[o].bytes() + e;
      if (std::memcmp(x, y, unit) == 0) continue;
      const bool untouched = std::all_of(x, x + unit, [](std::byte v) { return v == std::byte{kPatterns[0]}; });
      return fmt::format("element {} of output {}, {} {}, {}", e / unit, o, name((*a)[o].dtype), (*a)[o].shape,
                         untouched ? "is not written" : "depends on what was in its memory");
    }
  }
  return {};
}

// Dispatch would have brought these inputs to one dtype first.
bool would_be_cast(const OpDef& op, const Attrs& attrs, const std::vector<Array>& in) {
  if (!op.promotes) return false;
  std::optional<DType> first;
  for (size_t i = 0; i < in.size(); ++i) {
    if (!in[i].defined() || !(op.promoted_inputs >> std::min<size_t>(i, 31) & 1)) continue;
    if (!first) first = in[i].dtype;
    if (in[i].dtype != *first) return true;
  }
  if (!first) return false;
  if (op.promotes_to_float && !is_floating(*first)) return true;
  return std::any_of(op.promote_attrs.begin(), op.promote_attrs.end(),
                     [&](int at) { return attrs.has(at) && attrs.as_scalar(at).promote_with(*first) != *first; });
}

std::vector<Array> inputs_of(const Case& c) {
  std::vector<Array> in;
  for (size_t i = 0; i < c.in.size(); ++i) {
    if (c.in[i].fill == Input::Fill::kAbsent) {
      in.emplace_back();
      continue;
    }
    auto values = input_values(c, i);
    if (!is_floating(c.in[i].dtype) && c.in[i].fill != Input::Fill::kInts)
      for (double& v : values) v = std::abs(std::round(v));  // whole numbers that an unsigned type has, too
    in.push_back(array_of(values, c.in[i].shape, c.in[i].dtype));
  }
  return in;
}

TEST(Kernels, WriteAllThatInferLetsThrough) {
  int runs = 0;
  for (const Case& given : cases()) {
    const OpDef& op = find_op(given.op);
    if (!op.kernel || !op.infer || op.random || is_composed(given)) continue;
    for (int d = 0; d < kComputedDTypeCount; ++d) {
      Case c = given;
      const auto dtype = static_cast<DType>(d);
      bool has_one = false;
      for (Input& in : c.in)
        if (in.dtype == float32 && in.fill != Input::Fill::kAbsent) in.dtype = dtype, has_one = true;
      if (!has_one && dtype != float32) continue;
      const Attrs attrs = make_attrs(c);
      const auto in = inputs_of(c);
      if (would_be_cast(op, attrs, in)) continue;
      ++runs;
      if (std::string wrong = unwritten(op, attrs, in); !wrong.empty()) ADD_FAILURE() << c.name() << ": " << wrong;
    }
  }
  EXPECT_GT(runs, 1000);
}

TEST(Kernels, OnesThatSkipADtypeAreFound) {
  OpDef skips = find_op("exp");
  skips.kernel = [](KernelCall& c) {
    visit_dtype(c.in(0).dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (std::is_floating_point_v<T>)
        for (int64_t i = 0; i < c.out().numel(); ++i) c.out().data<T>()[i] = std::exp(c.in(0).data<T>()[i]);
    });
  };
  auto wrong = [&](DType dtype) {
    return unwritten(skips, make_attrs(skips.schema, {}), {array_of({1, 2, 3}, {3}, dtype)});
  };
  for (DType dtype : {float32, float64}) EXPECT_EQ(wrong(dtype), "");
  for (DType dtype : {float16, bfloat16}) EXPECT_NE(wrong(dtype).find("is not written"), std::string::npos);
  skips.kernel = [](KernelCall& c) { c.out().data<float>()[0] = 1; };
  EXPECT_NE(wrong(float32).find("element 1 of output 0"), std::string::npos) << wrong(float32);
  skips.kernel = [](KernelCall& c) {
    for (int i = 0; i < 3; ++i) c.out().data<float>()[i] *= 2;
  };
  EXPECT_NE(wrong(float32).find("depends on"), std::string::npos) << wrong(float32);
}

}  // namespace
}  // namespace holon::testing
