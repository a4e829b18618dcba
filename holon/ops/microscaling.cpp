// The microscaling formats of OCP (OCP Microscaling Formats 1.0): groups of 32 numbers of 8 or 4 bits, which have a
// power of two for a scale.
#include <algorithm>
#include <cmath>

#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/float8.h"
#include "holon/kernels/quantized.h"
#include "holon/registry/op_def.h"

namespace holon::ops {
namespace {

// In float32, row-major.
Array floats_of(const Array& x) { return kernels::converted(x, float32); }

constexpr int64_t kGroup = kernels::kMxGroup;  // numbers with one scale
constexpr int64_t kPacked = kGroup / 2;        // their bytes in MXFP4

// Axes of x, or of values, in groups: each factor is one of the scales', too, whose last axis has the groups.
void groups_rule(RuleCall& r, size_t scales_in, size_t scales_out) {
  const Dims& shape = r.in[0].shape;
  for (int a = 0; a < shape.size(); ++a) {
    const int f = r.rule.factor(false, a + 1 == shape.size() ? shape[a] / kGroup : 0);
    r.rule.in(0, a, f), r.rule.out(0, a, f);
    if (scales_in) r.rule.in(scales_in, a, f);
    if (scales_out) r.rule.out(scales_out, a, f);
  }
}

// The largest magnitude of a group, and whether all of its numbers are finite.
struct Extent {
  float largest = 0;
  bool finite = true;
  explicit Extent(const float* p) {
    for (int64_t i = 0; i < kGroup; ++i) {
      finite &= std::isfinite(p[i]);
      largest = std::max(largest, std::abs(p[i]));
    }
  }
};

// Blocks [..., groups, 16] and scales [..., groups] of x [..., n].
void packed_rule(RuleCall& r, size_t blocks, size_t scales, bool made) {
  const Dims& shape = made ? r.in[0].shape : r.out[0].shape;
  auto operand = [&](bool packed, size_t i, int axis, int f) {
    packed == made ? r.rule.out(i, axis, f) : r.rule.in(i, axis, f);
  };
  for (int a = 0; a < shape.size(); ++a) {
    const int f = r.rule.factor(false, a + 1 == shape.size() ? shape[a] / kGroup : 0);
    operand(false, 0, a, f);
    operand(true, blocks, a, f);
    operand(true, scales, a, f);
  }
}

}  // namespace

HOLON_OP(quantize_mx, "quantize_mx(Tensor x, dtype dtype) -> (Tensor values, Tensor scales)")
    .doc("x [..., n] in the microscaling formats MXFP8 (OCP Microscaling Formats 1.0): values [..., n] of "
         "float8_e4m3fn or "
         "float8_e5m2, and scales [..., n / 32] of float8_e8m0fnu, by which 32 neighbours are multiplied. Values are "
         "rounded to nearest even, and beyond the largest number to it. There is no gradient.",
         "quantize_mx(rand(2, 32), float8_e4m3fn)")
    .function_only()
    .takes_float8()
    .on_host()
    .infer([](Infer& c) {
      c.require_floating(0);
      const DType to = c.dtype("dtype"_attr);
      c.require_dtype(to == float8_e4m3fn || to == float8_e5m2, "the dtype is neither float8_e4m3fn nor float8_e5m2",
                      "Choose one of them; quantize_mxfp4() has numbers of 4 bits.");
      c.require(c.ndim(0) >= 1 && c.shape(0).back() % kGroup == 0, "the last axis is not a multiple of 32",
                "Pad x with zeros.");
      Dims groups = c.shape(0);
      groups.back() /= kGroup;
      c.out(c.shape(0), c.dtype("dtype"_attr));
      c.out(groups, float8_e8m0fnu);
    })
    .rule([](RuleCall& r) { groups_rule(r, 0, 1); })
    .kernel([](KernelCall& c) {
      const DType dtype = c.dtype("dtype"_attr);
      const float limit = kernels::float8_limit(dtype);
      Array x = floats_of(c.in(0)), scales = Array::empty(c.out(1).shape, float8_e8m0fnu);
      parallel_for(x.numel() / kGroup, 256, [&](int64_t begin, int64_t end) {
        for (int64_t g = begin; g < end; ++g) {
          float* p = x.data<float>() + g * kGroup;
          const Extent extent(p);
          const int e = extent.finite ? kernels::mx_exponent(extent.largest, dtype == float8_e4m3fn ? 8 : 15) : 0;
          scales.data<uint8_t>()[g] = static_cast<uint8_t>(extent.finite ? e + 127 : 255);
          for (int64_t i = 0; i < kGroup; ++i) p[i] = std::clamp(std::ldexp(p[i], -e), -limit, limit);
        }
      });
      kernels::copy(x, c.out(0));
      kernels::copy(scales, c.out(1));
    });

HOLON_OP(dequantize_mx, "dequantize_mx(Tensor values, Tensor scales, dtype dtype) -> Tensor")
    .doc("values [..., n] and scales [..., n / 32] of quantize_mx() as numbers [..., n] of a wider dtype.",
         "dequantize_mx(zeros(2, 32, dtype=float8_e5m2), ones(2, 1, dtype=float8_e8m0fnu), float32)")
    .function_only()
    .takes_float8()
    .on_host()
    .infer([](Infer& c) {
      const DType from = c.dtype_of(0), to = c.dtype("dtype"_attr);
      c.require_dtype((from == float8_e4m3fn || from == float8_e5m2) && c.dtype_of(1) == float8_e8m0fnu,
                      "values are not float8_e4m3fn or float8_e5m2, or scales not float8_e8m0fnu",
                      "Pass the two tensors of quantize_mx().");
      c.require_dtype(is_floating(to) && !is_float8(to), "the requested dtype is not a wider floating point one",
                      "Choose float32, bfloat16, float16 or float64.");
      Dims groups = c.shape(0);
      const bool fits = groups.size() >= 1 && groups.back() % kGroup == 0;
      if (fits) groups.back() /= kGroup;
      c.require(fits && c.shape(1) == groups, "scales are not one for each 32 values along the last axis",
                "Pass the two tensors of quantize_mx().");
      c.out(c.shape(0), to);
    })
    .rule([](RuleCall& r) { groups_rule(r, 1, 0); })
    .kernel([](KernelCall& c) {
      Array x = floats_of(c.in(0));
      const Array scales = floats_of(c.in(1));
      parallel_for(x.numel() / kGroup, 256, [&](int64_t begin, int64_t end) {
        for (int64_t g = begin; g < end; ++g)
          for (int64_t i = 0; i < kGroup; ++i) x.data<float>()[g * kGroup + i] *= scales.data<float>()[g];
      });
      kernels::copy(x, c.out());
    });

HOLON_OP(quantize_mxfp4, "quantize_mxfp4(Tensor x) -> (Tensor blocks, Tensor scales)")
    .doc("x [..., n] in the microscaling format MXFP4: blocks [..., n / 32, 16] of uint8, in each byte two neighbours "
         "as "
         "numbers of 4 bits (E2M1), the first in the lower half, and scales [..., n / 32] of float8_e8m0fnu, by which "
         "32 "
         "neighbours are multiplied. Numbers are rounded to nearest even, and beyond 6 to it. There is no gradient.",
         "quantize_mxfp4(rand(2, 32))")
    .function_only()
    .takes_float8()
    .on_host()
    .infer([](Infer& c) {
      c.require_floating(0);
      c.require(c.ndim(0) >= 1 && c.shape(0).back() % kGroup == 0, "the last axis is not a multiple of 32",
                "Pad x with zeros.");
      Dims groups = c.shape(0);
      groups.back() /= kGroup;
      Dims blocks = groups;
      blocks.push_back(kPacked);
      c.out(blocks, uint8);
      c.out(groups, float8_e8m0fnu);
    })
    .rule([](RuleCall& r) { packed_rule(r, 0, 1, true); })
    .kernel([](KernelCall& c) {
      const Array x = floats_of(c.in(0));
      Array blocks = Array::empty(c.out(0).shape, uint8), scales = Array::empty(c.out(1).shape, float8_e8m0fnu);
      parallel_for(x.numel() / kGroup, 256, [&](int64_t begin, int64_t end) {
        for (int64_t g = begin; g < end; ++g) {
          const float* p = x.data<float>() + g * kGroup;
          uint8_t* to = blocks.data<uint8_t>() + g * kPacked;
          const Extent extent(p);
          const int e = extent.finite ? kernels::mx_exponent(extent.largest, kernels::kFloat4Exponent) : 0;
          scales.data<uint8_t>()[g] = static_cast<uint8_t>(extent.finite ? e + 127 : 255);
          auto code = [&](int64_t i) { return kernels::to_float4(std::ldexp(p[i], -e)); };
          for (int64_t i = 0; i < kPacked; ++i) to[i] = static_cast<uint8_t>(code(2 * i) | code(2 * i + 1) << 4);
        }
      });
      kernels::copy(blocks, c.out(0));
      kernels::copy(scales, c.out(1));
    });

HOLON_OP(dequantize_mxfp4, "dequantize_mxfp4(Tensor blocks, Tensor scales, dtype dtype) -> Tensor")
    .doc("blocks [..., groups, 16] and scales [..., groups] of quantize_mxfp4() as numbers [..., groups * 32] of a "
         "wider "
         "dtype. Scales may be uint8, as in the checkpoints of gpt-oss.",
         "dequantize_mxfp4(zeros(2, 1, 16, dtype=uint8), ones(2, 1, dtype=float8_e8m0fnu), float32)")
    .function_only()
    .takes_float8()
    .on_host()
    .infer([](Infer& c) {
      const DType to = c.dtype("dtype"_attr);
      c.require_dtype(c.dtype_of(0) == uint8 && (c.dtype_of(1) == float8_e8m0fnu || c.dtype_of(1) == uint8),
                      "blocks are not uint8, or scales neither float8_e8m0fnu nor uint8",
                      "Pass the two tensors of quantize_mxfp4().");
      c.require_dtype(is_floating(to) && !is_float8(to), "the requested dtype is not a wider floating point one",
                      "Choose float32, bfloat16, float16 or float64.");
      Dims groups = c.shape(0);
      const bool fits = groups.size() >= 2 && groups.back() == kPacked;
      if (fits) groups.erase(groups.size() - 1);
      c.require(fits && c.shape(1) == groups, "blocks are not [..., groups, 16], or scales not [..., groups]",
                "Pass the two tensors of quantize_mxfp4().");
      groups.back() *= kGroup;
      c.out(groups, to);
    })
    .rule([](RuleCall& r) { packed_rule(r, 0, 1, false); })
    .kernel([](KernelCall& c) {
      const Array blocks = kernels::contiguous(c.in(0));
      Array exponents = kernels::contiguous(c.in(1));
      exponents.dtype = float8_e8m0fnu;
      const Array scales = floats_of(exponents);
      Array x = Array::empty(c.out().shape, float32);
      parallel_for(x.numel() / kGroup, 256, [&](int64_t begin, int64_t end) {
        for (int64_t g = begin; g < end; ++g) {
          const float scale = scales.data<float>()[g];
          for (int64_t i = 0; i < kPacked; ++i) {
            const uint8_t byte = blocks.data<uint8_t>()[g * kPacked + i];
            x.data<float>()[g * kGroup + 2 * i] = kernels::from_float4(byte & 15) * scale;
            x.data<float>()[g * kGroup + 2 * i + 1] = kernels::from_float4(byte >> 4) * scale;
          }
        }
      });
      kernels::copy(x, c.out());
    });

}  // namespace holon::ops
