// Products with weights in groups of small numbers (holon/kernels/quantized.h has their form), which are not learned:
// gradients are those of the input and the bias. A group is never cut: inputs are divided by whole groups, which are an
// axis, and then the result is a partial sum.
#include "holon/internal_ops/quantized.h"

#include "holon/kernels/quantized.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/flops.h"
#include "holon/registry/op_def.h"

namespace holon::ops {
namespace {

kernels::QuantizedFormat format_of(const AttrReader& c) { return kernels::quantized_format(c.text("format"_attr)); }

}  // namespace

HOLON_OP(quantize_groups, "quantize_groups(Tensor x, str format) -> Tensor")
    .doc("The last axis of x in blocks of a format (int8, int4, mxfp4), of numbers and a scale: [..., size] becomes "
         "uint8 "
         "[..., bytes].")
    .hidden()
    .infer([](Infer& c) {
      c.require_floating(0);
      c.require(c.ndim(0) >= 1 && kernels::fits_format(c.shape(0).back(), format_of(c)),
                "the last axis is not a group of the format", "int8 takes 2 or more, int4 an even size, mxfp4 32.");
      Dims out = c.shape(0);
      out.back() = kernels::quantized_block_bytes(out.back(), format_of(c));
      c.out(out, uint8);
    })
    .rule("... S -> ... B")
    .kernel([](KernelCall& c) { kernels::quantize(c.in(0), format_of(c), c.out()); });

HOLON_OP(dequantize_groups, "dequantize_groups(Tensor x, str format, dtype dtype) -> Tensor")
    .doc("The numbers of blocks x [..., bytes] that quantize_groups made: [..., size].")
    .hidden()
    .infer([](Infer& c) {
      c.require_dtype(c.dtype_of(0) == uint8, "x is not uint8", "Give what quantize_groups returned.");
      c.require_dtype(is_floating(c.dtype("dtype"_attr)), "dtype is not floating point", "Choose one that is.");
      const auto format = format_of(c);
      Dims out = c.shape(0);
      if (!out.empty())
        out.back() = (out.back() - kernels::quantized_scale_bytes(format)) * 8 / kernels::quantized_bits(format);
      c.require(!out.empty() && kernels::fits_format(out.back(), format), "x has no blocks of the format",
                "Give what quantize_groups returned.");
      c.out(out, c.dtype("dtype"_attr));
    })
    .rule("... B -> ... S")
    .kernel([](KernelCall& c) { kernels::dequantize(c.in(0), format_of(c), c.out()); });

HOLON_OP(quantized_linear, "quantized_linear(Tensor x, Tensor weight, Tensor? bias, str format) -> Tensor")
    .doc("x [..., groups, size] times the transpose of weight [n, groups, bytes], which quantize_groups made of [n, "
         "groups, size], plus bias [n]: [..., n].")
    .hidden()
    .autocast(Autocast::kLower)
    .flops([](const CallShapes& c) {
      const Dims& x = c.in(0);
      return 2 * elements(c.out()) * static_cast<double>(x.back() * x[x.size() - 2]);
    })
    .infer([](Infer& c) {
      c.require_floating(0);
      c.require_dtype(c.dtype_of(1) == uint8, "weight is not uint8", "Give what quantize_groups returned.");
      c.require(c.ndim(0) >= 2 && c.ndim(1) == 3, "x needs two axes and weight three",
                "x is [..., groups, size], weight [n, groups, bytes].");
      const Dims &x = c.shape(0), &w = c.shape(1);
      c.require(x[x.size() - 2] == w[1] && kernels::fits_format(x.back(), format_of(c)) &&
                    kernels::quantized_block_bytes(x.back(), format_of(c)) == w[2],
                "the groups of x and weight differ", "x is [..., groups, size], weight [n, groups, bytes].");
      if (c.present(2)) {
        c.require(c.ndim(2) == 1 && c.shape(2)[0] == w[0], "bias is not [n]", "Give one value per row of weight.");
        c.require_dtype(c.dtype_of(2) == c.dtype_of(0), "the dtypes of x and bias differ", "Convert them by to().");
      }
      Dims out = x;
      out.resize(x.size() - 1);
      out.back() = w[0];
      c.out(out, c.dtype_of(0));
    })
    // As linear's.
    .rule("... g S, n g B, n -> ... n")
    .linear_in({0})
    .kernel([](KernelCall& c) {
      const Array* bias = c.present(2) && c.counts_once() ? &c.in(2) : nullptr;
      kernels::quantized_linear(c.in(0), c.in(1), bias, format_of(c), c.out());
    })
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, quantized_linear_input(g.dy(), g.x(1), g.text("format"_attr)));
      if (g.n_in() > 2 && g.needs(2)) g.dx(2, sum_to_size(g.dy(), g.in_shape(2)));
    });

HOLON_OP(quantized_linear_input, "quantized_linear_input(Tensor dy, Tensor weight, str format) -> Tensor")
    .doc(
        "dy [..., n] times weight [n, groups, bytes], which quantize_groups made: [..., groups, size], the gradient of "
        "quantized_linear's x.")
    .hidden()
    .flops([](const CallShapes& c) { return 2 * elements(c.out()) * static_cast<double>(c.in(0).back()); })
    .infer([](Infer& c) {
      c.require_floating(0);
      c.require_dtype(c.dtype_of(1) == uint8, "weight is not uint8", "Give what quantize_groups returned.");
      c.require(c.ndim(0) >= 1 && c.ndim(1) == 3 && c.shape(0).back() == c.shape(1)[0] && c.shape(1)[2] > 2,
                "dy and weight differ in n", "dy is [..., n], weight [n, groups, bytes].");
      Dims out = c.shape(0);
      out.back() = c.shape(1)[1];
      out.push_back(kernels::quantized_group_size(c.shape(1)[2], format_of(c)));
      c.out(out, c.dtype_of(0));
    })
    .rule("... n, n g B -> ... g S")
    .linear_in({0})
    .kernel([](KernelCall& c) { kernels::quantized_linear_input(c.in(0), c.in(1), format_of(c), c.out()); })
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, quantized_linear(g.dy(), g.x(1), {}, g.text("format"_attr)));
    });

}  // namespace holon::ops
