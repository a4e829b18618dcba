#include "holon/kernels/cpu/loops.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"

namespace holon::kernels {

namespace {

constexpr int64_t kBlock = 512;    // elements that are converted at a time
constexpr int64_t kShortRow = 32;  // rows below this are gathered into blocks

template <class T>
void gather_as(const std::byte* src, int64_t stride, std::byte* dst, int64_t n) {
  T* out = reinterpret_cast<T*>(dst);
  if (stride == 0) {
    T v;
    std::memcpy(&v, src, sizeof v);
    std::fill_n(out, n, v);
    return;
  }
  for (int64_t i = 0; i < n; ++i) std::memcpy(out + i, src + i * stride, sizeof(T));
}
template <class T>
void scatter_as(const std::byte* src, std::byte* dst, int64_t stride, int64_t n) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(dst + i * stride, src + i * sizeof(T), sizeof(T));
}

}  // namespace

void LoopAxes::add(int64_t size, const int64_t* s) {
  shape[n] = size;
  for (int k = 0; k < operands; ++k) strides[n][k] = s[k];
  ++n;
}

void LoopAxes::simplify() {
  int m = 0;
  for (int i = 0; i < n; ++i) {
    if (shape[i] == 1) continue;
    // Insert by descending stride of the first operand; axes of equal stride stay in order.
    int64_t size = shape[i], s[kMaxOperands];
    std::copy_n(strides[i], operands, s);
    int j = m++;
    for (; j > 0 && std::llabs(strides[j - 1][0]) < std::llabs(s[0]); --j) {
      shape[j] = shape[j - 1];
      std::copy_n(strides[j - 1], operands, strides[j]);
    }
    shape[j] = size;
    std::copy_n(s, operands, strides[j]);
  }
  n = m;
  m = 0;
  for (int i = 1; i < n; ++i) {
    bool merge = true;
    for (int k = 0; k < operands; ++k) merge &= strides[m][k] == strides[i][k] * shape[i];
    if (merge) {
      shape[m] *= shape[i];
    } else {
      ++m;
      shape[m] = shape[i];
    }
    std::copy_n(strides[i], operands, strides[m]);
  }
  n = n == 0 ? 0 : m + 1;
  if (n == 0) {
    n = 1;
    shape[0] = 1;
    std::fill_n(strides[0], operands, 0);
  }
}

Number number_of(Scalar s) {
  if (!s.is_float()) return {s.as_double(), s.as_int()};
  const double d = s.as_double();
  if (d != d) return {d, 0};
  if (d >= 0x1p63) return {d, INT64_MAX};
  if (d < -0x1p63) return {d, INT64_MIN};
  return {d, static_cast<int64_t>(d)};
}

Compute compute_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return Compute::kF64;
    case DType::kInt64: return Compute::kI64;
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kBFloat16: return Compute::kF32;
    default: return Compute::kI32;
  }
}

DType dtype_of(Compute compute) {
  constexpr DType kOf[] = {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kInt64};
  return kOf[static_cast<int>(compute)];
}

void gather_elements(const std::byte* src, int64_t stride, size_t size, std::byte* dst, int64_t n) {
  if (stride == static_cast<int64_t>(size)) {
    std::memcpy(dst, src, size * to_size(n));
    return;
  }
  switch (size) {
    case 1: return gather_as<uint8_t>(src, stride, dst, n);
    case 2: return gather_as<uint16_t>(src, stride, dst, n);
    case 4: return gather_as<uint32_t>(src, stride, dst, n);
    case 8: return gather_as<uint64_t>(src, stride, dst, n);
    default:
      for (int64_t i = 0; i < n; ++i) std::memcpy(dst + i * static_cast<int64_t>(size), src + i * stride, size);
  }
}

void scatter_elements(const std::byte* src, std::byte* dst, int64_t stride, size_t size, int64_t n) {
  if (stride == static_cast<int64_t>(size)) {
    std::memcpy(dst, src, size * to_size(n));
    return;
  }
  switch (size) {
    case 1: return scatter_as<uint8_t>(src, dst, stride, n);
    case 2: return scatter_as<uint16_t>(src, dst, stride, n);
    case 4: return scatter_as<uint32_t>(src, dst, stride, n);
    case 8: return scatter_as<uint64_t>(src, dst, stride, n);
    default:
      for (int64_t i = 0; i < n; ++i) std::memcpy(dst + i * stride, src + i * static_cast<int64_t>(size), size);
  }
}

void load_elements(const std::byte* src, int64_t stride, DType from, DType to, void* dst, int64_t n,
                   std::byte* scratch) {
  const size_t size = size_bytes(from);
  if (from == to) {
    gather_elements(src, stride, size, static_cast<std::byte*>(dst), n);
    return;
  }
  const std::byte* row = src;
  if (stride != static_cast<int64_t>(size)) {
    gather_elements(src, stride, size, scratch, n);
    row = scratch;
  }
  table().convert[static_cast<int>(from)][static_cast<int>(to)](row, dst, n);
}

void store_elements(const void* src, DType from, DType to, std::byte* dst, int64_t stride, int64_t n,
                    std::byte* scratch) {
  const size_t size = size_bytes(to);
  if (from == to) {
    scatter_elements(static_cast<const std::byte*>(src), dst, stride, size, n);
    return;
  }
  const bool contiguous = stride == static_cast<int64_t>(size);
  table().convert[static_cast<int>(from)][static_cast<int>(to)](src, contiguous ? dst : scratch, n);
  if (!contiguous) scatter_elements(scratch, dst, stride, size, n);
}

namespace {

// One operand's part in a loop: 0 is the output, k + 1 is input k.
struct Operand {
  std::byte* data = nullptr;
  DType dtype = DType::kFloat32, compute = DType::kFloat32;
  enum Way { kDirect, kOneElement, kBlockwise } way = kDirect;
};

struct Runner {
  const Loop& loop;
  LoopAxes axes;
  Operand operands[kMaxOperands];
  RowFn fn;
  bool across_rows = false;  // blocks may span several rows
  bool blockwise = false;
  bool converts_one = false;  // an operand that is one element in each row

  explicit Runner(const Loop& l) : loop(l), fn(l.rows) {
    build_axes();
    choose_ways();
  }

  void build_axes() {
    const Array& out = *loop.out;
    axes.operands = loop.inputs + 1;
    operands[0] = {out.bytes(), out.dtype, loop.out_compute, Operand::kDirect};
    for (int k = 0; k < loop.inputs; ++k) {
      const LoopInput& in = loop.in[k];
      operands[k + 1] = {const_cast<std::byte*>(in.data), in.dtype, in.compute, Operand::kDirect};
      HOLON_CHECK(in.shape->size() <= out.ndim(), "an input of shape {} does not broadcast to {}", *in.shape,
                  out.shape);
    }
    for (int i = 0; i < out.ndim(); ++i) {
      int64_t s[kMaxOperands];
      s[0] = out.strides[i] * static_cast<int64_t>(size_bytes(out.dtype));
      for (int k = 0; k < loop.inputs; ++k) {
        const LoopInput& in = loop.in[k];
        const int j = i - (out.ndim() - in.shape->size());
        const int64_t size = j < 0 ? 1 : (*in.shape)[j];
        HOLON_CHECK(size == 1 || size == out.shape[i], "an input of shape {} does not broadcast to {}", *in.shape,
                    out.shape);
        s[k + 1] = size == 1 ? 0 : (*in.strides)[j] * static_cast<int64_t>(size_bytes(in.dtype));
      }
      axes.add(out.shape[i], s);
    }
    axes.simplify();
  }

  bool is_flat(int k) const {
    int64_t step = static_cast<int64_t>(size_bytes(operands[k].dtype));
    for (int i = axes.n - 1; i >= 0; --i) {
      if (axes.strides[i][k] != step) return false;
      step *= axes.shape[i];
    }
    return true;
  }

  void choose_ways() {
    const int last = axes.n - 1;
    across_rows = axes.n > 1 && axes.shape[last] < kShortRow;
    for (int k = 0; k <= loop.inputs; ++k) {
      Operand& o = operands[k];
      const bool plain = axes.shape[last] == 1 && axes.n == 1;
      const bool direct =
          across_rows ? is_flat(k) : plain || axes.strides[last][k] == static_cast<int64_t>(size_bytes(o.dtype));
      if (!direct || o.dtype != o.compute) o.way = Operand::kBlockwise;
    }
    if (!across_rows && loop.inputs == 2 && loop.vector_scalar && axes.shape[last] > 1) {
      const bool first = axes.strides[last][1] == 0, second = axes.strides[last][2] == 0;
      if (second || first) {
        Operand& scalar = operands[second ? 2 : 1];
        scalar.way = scalar.dtype == scalar.compute ? Operand::kDirect : Operand::kOneElement;
        fn = second ? loop.vector_scalar : loop.scalar_vector;
      }
    }
    for (int k = 0; k <= loop.inputs; ++k) {
      blockwise |= operands[k].way == Operand::kBlockwise;
      converts_one |= operands[k].way == Operand::kOneElement;
    }
  }

  // Visits the row pieces that m elements from index on consist of: f(byte offset, stride, number, elements before).
  template <class F>
  void pieces(int k, const int64_t* index, int64_t m, F&& f) const {
    int64_t at[kMaxAxes];
    std::copy_n(index, axes.n, at);
    const int last = axes.n - 1;
    for (int64_t done = 0; done < m;) {
      const int64_t take = std::min(m - done, axes.shape[last] - at[last]);
      f(offset(k, at), axes.strides[last][k], take, done);
      done += take;
      advance(at, take);
    }
  }

  int64_t offset(int k, const int64_t* index) const {
    int64_t bytes = 0;
    for (int i = 0; i < axes.n; ++i) bytes += index[i] * axes.strides[i][k];
    return bytes;
  }

  void advance(int64_t* index, int64_t by) const {
    index[axes.n - 1] += by;
    for (int i = axes.n - 1; i > 0 && index[i] >= axes.shape[i]; --i) {
      index[i - 1] += index[i] / axes.shape[i];
      index[i] %= axes.shape[i];
    }
  }

  // Rows as they are, of one plane after the other: on the way from row to row only their addresses are computed.
  template <int kInputs>
  void run_rows(int64_t begin, int64_t end) const {
    const int last = axes.n - 1;
    const int64_t length = axes.shape[last], rows = last > 0 ? axes.shape[last - 1] : 1;
    int64_t step[kInputs + 1];
    for (int k = 0; k <= kInputs; ++k) step[k] = last > 0 ? axes.strides[last - 1][k] : 0;
    while (begin < end) {
      int64_t index[kMaxAxes], rest = begin;
      for (int i = last; i >= 0; --i) {
        index[i] = rest % axes.shape[i];
        rest /= axes.shape[i];
      }
      std::byte* at[kInputs + 1];
      for (int k = 0; k <= kInputs; ++k) at[k] = operands[k].data + offset(k, index);
      // What is left of a row that was begun, or whole rows.
      const int64_t m = std::min(end - begin, length - index[last]);
      const int64_t count = m < length ? 1 : std::min((end - begin) / length, rows - (last > 0 ? index[last - 1] : 0));
      for (int64_t r = 0; r < count; ++r) {
        const void* in[kInputs];
        for (int k = 0; k < kInputs; ++k) in[k] = at[k + 1] + r * step[k + 1];
        fn(in, at[0] + r * step[0], m, loop.params);
      }
      begin += count * m;
    }
  }

  void run(int64_t begin, int64_t end) const {
    if (!blockwise && !across_rows && !converts_one && loop.inputs > 0) {
      if (loop.inputs == 1) return run_rows<1>(begin, end);
      if (loop.inputs == 2) return run_rows<2>(begin, end);
      return run_rows<3>(begin, end);
    }
    alignas(64) std::byte blocks[kMaxOperands][kBlock * 8];
    alignas(64) std::byte scratch[kBlock * 8];
    int64_t index[kMaxAxes];
    int64_t rest = begin;
    for (int i = axes.n - 1; i >= 0; --i) {
      index[i] = rest % axes.shape[i];
      rest /= axes.shape[i];
    }
    const int last = axes.n - 1;
    while (begin < end) {
      int64_t m = end - begin;
      if (!across_rows) m = std::min(m, axes.shape[last] - index[last]);
      if (blockwise) m = std::min(m, kBlock);
      const void* in[kMaxOperands - 1];
      for (int k = 1; k <= loop.inputs; ++k) {
        const Operand& o = operands[k];
        if (o.way == Operand::kDirect) {
          in[k - 1] = o.data + offset(k, index);
          continue;
        }
        in[k - 1] = blocks[k];
        if (o.way == Operand::kOneElement) {
          load_elements(o.data + offset(k, index), static_cast<int64_t>(size_bytes(o.dtype)), o.dtype, o.compute,
                        blocks[k], 1, scratch);
          continue;
        }
        const int64_t size = static_cast<int64_t>(size_bytes(o.compute));
        if (across_rows && o.dtype != o.compute) {
          // Short pieces are put together first and converted once.
          const int64_t raw = static_cast<int64_t>(size_bytes(o.dtype));
          pieces(k, index, m, [&](int64_t at, int64_t stride, int64_t take, int64_t done) {
            gather_elements(o.data + at, stride, to_size(raw), scratch + done * raw, take);
          });
          load_elements(scratch, raw, o.dtype, o.compute, blocks[k], m, nullptr);
        } else {
          pieces(k, index, m, [&](int64_t at, int64_t stride, int64_t take, int64_t done) {
            load_elements(o.data + at, stride, o.dtype, o.compute, blocks[k] + done * size, take, scratch);
          });
        }
      }
      const Operand& o = operands[0];
      void* out = o.way == Operand::kDirect ? o.data + offset(0, index) : blocks[0];
      fn(in, out, m, loop.params);
      if (o.way != Operand::kDirect) {
        const int64_t size = static_cast<int64_t>(size_bytes(o.compute));
        pieces(0, index, m, [&](int64_t at, int64_t stride, int64_t take, int64_t done) {
          store_elements(blocks[0] + done * size, o.compute, o.dtype, o.data + at, stride, take, scratch);
        });
      }
      begin += m;
      advance(index, m);
    }
  }
};

}  // namespace

namespace {

// Whether a large input runs across the output's memory, so that reading it along would touch a cache line per element.
bool is_transposed(const LoopInput& in, const Array& out) {
  if (in.shape->size() != out.ndim() || !(*in.shape == out.shape)) return false;
  int inner = -1;
  for (int i = 0; i < out.ndim(); ++i)
    if (out.shape[i] > 1 && out.strides[i] == 1) inner = i;
  if (inner < 0 || out.shape[inner] < 16 || (*in.strides)[inner] < 16) return false;
  for (int i = 0; i < out.ndim(); ++i)
    if (out.shape[i] >= 16 && (*in.strides)[i] == 1) return true;
  return false;
}

}  // namespace

void run_loop(const Loop& original) {
  const int64_t n = original.out->numel();
  if (n == 0) return;
  Loop loop = original;
  // Such inputs are copied by tiles first.
  Array turned[kMaxOperands - 1];
  constexpr int64_t kWorthIt = 16384;
  for (int k = 0; n >= kWorthIt && k < loop.inputs; ++k) {
    LoopInput& in = loop.in[k];
    if (!is_transposed(in, *loop.out)) continue;
    turned[k] = Array::empty_strided(*in.shape, loop.out->strides, in.dtype);
    if (!turned[k].is_dense()) turned[k].strides = contiguous_strides(*in.shape);
    Dims from = *in.strides, to = turned[k].strides;
    const int64_t size = static_cast<int64_t>(size_bytes(in.dtype));
    for (int i = 0; i < from.size(); ++i) {
      from[i] *= size;
      to[i] *= size;
    }
    copy_bytes_strided(turned[k].bytes(), to, in.data, from, *in.shape, to_size(size));
    in.data = turned[k].bytes();
    in.strides = &turned[k].strides;
  }
  const Runner runner(loop);
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) { runner.run(begin, end); });
}

}  // namespace holon::kernels
