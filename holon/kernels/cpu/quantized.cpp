#include "holon/kernels/quantized.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/build_choice.h"
#include "holon/kernels/cpu/quantized_loops.h"
#include "holon/kernels/cpu/quantized_vnni.h"
#include "holon/kernels/cpu/scratch.h"
#include "holon/kernels/device.h"
#include "holon/kernels/gemm.h"
#include "holon/kernels/half.h"

namespace holon::kernels {

namespace {

// Rows up to which dequantising in registers, once for every four rows, is faster than a product of what is
// dequantised in memory.
constexpr int64_t kFewRows = 8;
// Bytes of dequantised outputs, for many rows.
constexpr int64_t kBlockBytes = 2 << 20;
// Multiplications, or numbers, that are worth a thread.
constexpr int64_t kThreadWork = 1 << 16;

int64_t grain_of(int64_t work_of_one) { return std::max<int64_t>(1, kThreadWork / std::max<int64_t>(1, work_of_one)); }

Array floats(const Array& x) { return contiguous(is_half(x.dtype) ? to_float(x) : x); }

// One group's block. False: a number is not finite.
bool quantize_group(const float* x, int64_t size, QuantizedFormat format, uint8_t* to) {
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < size; ++i) {
    largest = std::max(largest, std::abs(x[i]));
    finite &= std::isfinite(x[i]);
  }
  if (!finite) return false;
  if (format == QuantizedFormat::kMxfp4) {
    const int e = mx_exponent(largest, kFloat4Exponent);
    auto code = [&](int64_t i) { return to_float4(std::ldexp(x[i], -e)); };
    for (int64_t i = 0; i < size / 2; ++i) to[i] = static_cast<uint8_t>(code(i) | code(i + size / 2) << 4);
    to[size / 2] = static_cast<uint8_t>(e + 127);
    return true;
  }
  const int64_t bits = quantized_bits(format);
  const float top = bits == 4 ? 7 : 127;
  const BFloat16 scale(largest / top);
  // Of the scale as it is kept: what it was rounded by is made up for by the integers.
  const float inverse = static_cast<float>(scale) > 0 ? 1 / static_cast<float>(scale) : 0;
  auto integer = [&](int64_t i) { return static_cast<int>(std::clamp(std::nearbyint(x[i] * inverse), -top, top)); };
  for (int64_t i = 0; bits == 8 && i < size; ++i) to[i] = static_cast<uint8_t>(integer(i));
  for (int64_t i = 0; bits == 4 && i < size / 2; ++i)
    to[i] = static_cast<uint8_t>((integer(i) + 8) | (integer(i + size / 2) + 8) << 4);
  uint8_t* end = to + size * bits / 8;
  end[0] = static_cast<uint8_t>(scale.bits), end[1] = static_cast<uint8_t>(scale.bits >> 8);
  return true;
}

// Whether rows of the dtype are multiplied by dot products of bytes.
bool by_bytes(const QuantizedWeight& w, DType dtype) {
#ifdef HOLON_HAVE_X86_LEVELS
  static const bool here = instruction_level() == 2 && __builtin_cpu_supports("avx512vnni");
  return here && dtype == DType::kBFloat16 && w.size == kMxGroup && w.format != QuantizedFormat::kInt8;
#else
  return false;
#endif
}

// The memory of a ByteRow.
struct RoundedRow {
  std::vector<int8_t> integers;
  std::vector<float> scales;
  std::vector<int32_t> starts;

  // False: a number is not finite.
  bool fill(const float* x, const QuantizedWeight& w) {
    constexpr size_t kLanes = 8;
    const ByteCodes codes = byte_codes(w.format);
    const auto groups = to_size(w.groups), size = to_size(w.size), even = groups + groups % 2;
    integers.resize(even * size), scales.resize(even * kLanes), starts.resize(even * kLanes);
    for (size_t g = 0; g < groups; ++g, x += size) {
      float largest = 0;
      bool finite = true;
      for (size_t i = 0; i < size; ++i) {
        largest = std::max(largest, std::abs(x[i]));
        finite &= std::isfinite(x[i]);
      }
      if (!finite) return false;
      // Of smaller numbers the inverse would be infinite.
      const float inverse = largest > 1e-36f ? 127 / largest : 0;
      int32_t sum = 0;
      for (size_t i = 0; i < size; ++i) {
        integers[g * size + i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
        sum += integers[g * size + i];
      }
      std::fill_n(scales.begin() + static_cast<std::ptrdiff_t>(g * kLanes), kLanes, largest / 127 * codes.factor);
      starts[g * kLanes] = -sum * codes.offset;
    }
    return true;
  }
};

#ifdef HOLON_HAVE_X86_LEVELS
// As few_rows(). False, with nothing done: a number is not finite.
bool few_rows_by_bytes(const float* x, const QuantizedWeight& w, int64_t n, int64_t rows, float* y) {
  const int64_t k = w.groups * w.size;
  std::vector<RoundedRow> rounded(to_size(rows));
  for (int64_t r = 0; r < rows; ++r)
    if (!at_index(rounded, r).fill(x + r * k, w)) return false;
  constexpr int64_t kTile = 8;
  parallel_for((n + kTile - 1) / kTile, grain_of(rows * k * kTile), [&](int64_t begin, int64_t end) {
    // The rows share a tile's weights while they are in the cache.
    for (int64_t t = begin; t < end; ++t)
      for (int64_t r = 0; r < rows; ++r) {
        const RoundedRow& row = at_index(rounded, r);
        byte_products(w, {row.integers.data(), row.scales.data(), row.starts.data()}, t * kTile,
                      std::min(n, (t + 1) * kTile), y + r * n);
      }
  });
  return true;
}
#endif

// y[rows, n], contiguous, of x[rows, groups * size].
void few_rows(const Array& x, const Array& w, QuantizedFormat format, int64_t rows, float* y) {
  const Array from = floats(x);
  const int64_t n = w.shape[0], groups = w.shape[1], size = x.shape.back(), k = groups * size;
  const QuantizedWeight weight{w.data<uint8_t>(), groups, size, format};
#ifdef HOLON_HAVE_X86_LEVELS
  if (by_bytes(weight, x.dtype) && few_rows_by_bytes(from.data<float>(), weight, n, rows, y)) return;
#endif
  const QuantizedLoops& loops = quantized_loops();
  // In parts of which each tile of outputs is whole.
  constexpr int64_t kTile = 8;
  parallel_for((n + kTile - 1) / kTile, grain_of(rows * k * kTile), [&](int64_t begin, int64_t end) {
    loops.rows(weight, from.data<float>(), k, rows, begin * kTile, std::min(n, end * kTile), y, n);
  });
}

// Outputs [begin, begin + count) of w as a matrix [count, k] of dtype.
Array numbers_of(const Array& w, int64_t size, QuantizedFormat format, int64_t begin, int64_t count, DType dtype) {
  const int64_t groups = w.shape[1], k = groups * size, row = groups * w.shape[2];
  const bool same = dtype == DType::kFloat32, bf16 = dtype == DType::kBFloat16;
  Array out = Array::empty({count, k}, dtype);
  const QuantizedLoops& loops = quantized_loops();
  parallel_for(count, grain_of(k), [&](int64_t first, int64_t last) {
    Scratch scratch(same || bf16 ? 0 : static_cast<size_t>(k) * sizeof(float));
    for (int64_t j = first; j < last; ++j) {
      const uint8_t* blocks = w.data<uint8_t>() + (begin + j) * row;
      if (bf16) {
        auto* to = reinterpret_cast<uint16_t*>(out.data<BFloat16>() + j * k);
        loops.bf16_numbers(blocks, groups, size, format, to);
        continue;
      }
      float* to = same ? out.data<float>() + j * k : scratch.as<float>();
      loops.numbers(blocks, groups, size, format, to);
      if (same) continue;
      visit_floating(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        std::transform(to, to + k, out.data<T>() + j * k, [](float v) { return static_cast<T>(v); });
      });
    }
  });
  return out;
}

// How many outputs of a weight with k inputs are dequantised at a time.
int64_t outputs_at_once(int64_t k, int64_t n, DType dtype) {
  return std::min(n, std::max<int64_t>(16, kBlockBytes / (k * static_cast<int64_t>(size_bytes(dtype))) / 16 * 16));
}

void many_rows(const Array& x, const Array& w, const Array* bias, QuantizedFormat format, int64_t rows, Array& out) {
  const Array from = contiguous(x);
  const int64_t n = w.shape[0], size = x.shape.back(), k = w.shape[1] * size;
  const Array matrix = from.view({rows, k}, {k, 1});
  const int64_t block = outputs_at_once(k, n, x.dtype);
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t count = std::min(block, n - begin);
    const Array numbers = numbers_of(w, size, format, begin, count, x.dtype);
    Array part, to = out.view({rows, count}, {n, 1}, begin);
    if (bias) part = bias->view({count}, bias->strides, begin * bias->strides[0]);
    linear(matrix, numbers, bias ? &part : nullptr, to);
  }
}

}  // namespace

QuantizedFormat quantized_format(std::string_view text) {
  for (QuantizedFormat f : {QuantizedFormat::kInt8, QuantizedFormat::kInt4, QuantizedFormat::kMxfp4})
    if (text == name(f)) return f;
  fail_value("the format of quantised weights is '{}'; it must be int8, int4 or mxfp4.", text);
}

const char* name(QuantizedFormat format) {
  return format == QuantizedFormat::kInt8 ? "int8" : format == QuantizedFormat::kInt4 ? "int4" : "mxfp4";
}

QuantizedFormat format_of_blocks(int64_t size, int64_t bytes) {
  for (QuantizedFormat f : {QuantizedFormat::kInt8, QuantizedFormat::kInt4, QuantizedFormat::kMxfp4})
    if (fits_format(size, f) && quantized_block_bytes(size, f) == bytes) return f;
  fail_value("no quantised weight has {} bytes for groups of {}.", bytes, size);
}

void quantize(const Array& x, QuantizedFormat format, Array& out) {
  HOLON_ON_DEVICE(out, quantize, x, format, out);
  const int64_t size = x.shape.back(), groups = size ? x.numel() / size : 0,
                bytes = quantized_block_bytes(size, format);
  HOLON_CHECK(out.shape.back() == bytes && out.dtype == DType::kUInt8 && out.is_contiguous(),
              "quantize: {} does not fit {} of {}", out.shape, x.shape, name(format));
  Array from = contiguous(x);
  if (x.dtype != DType::kFloat32) {
    from = Array::empty(x.shape, DType::kFloat32);
    copy(x, from);
  }
  std::atomic<bool> finite = true;
  parallel_for(groups, grain_of(size), [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g)
      if (!quantize_group(from.data<float>() + g * size, size, format, out.data<uint8_t>() + g * bytes)) finite = false;
  });
  if (!finite) fail_value("quantize: the weights hold numbers that are infinite or NaN. Check the checkpoint.");
}

void dequantize(const Array& x, QuantizedFormat format, Array& out) {
  HOLON_ON_DEVICE(out, dequantize, x, format, out);
  const int64_t size = out.shape.back(), groups = size ? out.numel() / size : 0;
  HOLON_CHECK(x.shape.back() == quantized_block_bytes(size, format) && x.dtype == DType::kUInt8 && out.is_contiguous(),
              "dequantize: {} does not fit {} of {}", x.shape, out.shape, name(format));
  if (groups == 0) return;
  const Array blocks = contiguous(x).view({1, groups, x.shape.back()}, {groups * x.shape.back(), x.shape.back(), 1});
  const Array made = numbers_of(blocks, size, format, 0, 1, out.dtype);
  Array to = out.view({1, groups * size}, {groups * size, 1});
  copy(made, to);
}

void quantized_linear(const Array& x, const Array& w, const Array* bias, QuantizedFormat format, Array& out) {
  HOLON_ON_DEVICE(out, quantized_linear, x, w, bias, format, out);
  const int64_t n = w.shape[0], groups = w.shape[1], size = x.shape.back();
  HOLON_CHECK(w.ndim() == 3 && x.ndim() == out.ndim() + 1 && x.shape[x.ndim() - 2] == groups && out.shape.back() == n &&
                  w.shape[2] == quantized_block_bytes(size, format) && w.dtype == DType::kUInt8 && out.is_contiguous(),
              "quantized_linear: {} and a weight {} of {} do not give {}", x.shape, w.shape, name(format), out.shape);
  if (out.numel() == 0) return;
  const int64_t rows = out.numel() / n;
  const Array weight = contiguous(w);
  if (groups == 0) {
    fill(out, 0);
    if (!bias) return;
    Array matrix = out.view({rows, n}, {n, 1});
    copy(bias->view({rows, n}, {0, bias->strides[0]}), matrix);
  } else if (rows > kFewRows || x.dtype == DType::kFloat64) {
    many_rows(x, weight, bias, format, rows, out);
  } else {
    Array y = is_half(x.dtype) ? Array::empty(out.shape, DType::kFloat32) : out;
    few_rows(x, weight, format, rows, y.data<float>());
    const Array added = bias ? floats(*bias) : Array();
    for (int64_t r = 0; bias && r < rows; ++r)
      for (int64_t j = 0; j < n; ++j) y.data<float>()[r * n + j] += added.data<float>()[j];
    if (is_half(x.dtype)) from_float(y, out);
  }
}

void quantized_linear_input(const Array& dy, const Array& w, QuantizedFormat format, Array& out) {
  HOLON_ON_DEVICE(out, quantized_linear_input, dy, w, format, out);
  const int64_t n = w.shape[0], groups = w.shape[1], size = out.shape.back(), k = groups * size;
  HOLON_CHECK(w.ndim() == 3 && out.ndim() == dy.ndim() + 1 && out.shape[out.ndim() - 2] == groups &&
                  dy.shape.back() == n && w.shape[2] == quantized_block_bytes(size, format) &&
                  w.dtype == DType::kUInt8 && out.is_contiguous(),
              "quantized_linear_input: {} and a weight {} of {} do not give {}", dy.shape, w.shape, name(format),
              out.shape);
  if (out.numel() == 0) return;
  if (n == 0) return fill(out, 0);
  const int64_t rows = out.numel() / k;
  const Array from = contiguous(dy), weight = contiguous(w);
  // Blocks are added up, in float32 where numbers have 16 bits.
  const bool half = is_half(out.dtype);
  const Array given = half ? to_float(from) : from;
  Array sums = half ? Array::empty({rows, k}, DType::kFloat32) : out.view({rows, k}, {k, 1});
  const int64_t block = outputs_at_once(k, n, sums.dtype);
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t count = std::min(block, n - begin);
    matmul(given.view({rows, count}, {n, 1}, begin), numbers_of(weight, size, format, begin, count, sums.dtype), sums,
           1, begin == 0 ? 0 : 1);
  }
  if (half) from_float(sums.view(out.shape, out.strides), out);
}

}  // namespace holon::kernels
