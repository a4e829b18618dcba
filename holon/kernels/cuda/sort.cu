// Sorting along the last axis: keys that compare as the elements do, their order (order.cu), and the elements in that
// order.
#include <algorithm>

#include "holon/base/error.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/order.h"
#include "holon/kernels/cuda/strides.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/index.h"
#include "holon/kernels/sort_keys.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
using KeyOf = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
// How many bits a key has. Integers of a byte and 16-bit floats leave out what all of theirs have in common.
template <class T>
constexpr int kKeyBits = sizeof(T) == 8 ? 64
    : sizeof(T) == 1                    ? 8
    : std::is_same_v<T, Float16>        ? 19
    : std::is_same_v<T, BFloat16>       ? 16
                                        : 32;

template <class T>
__device__ __forceinline__ KeyOf<T> key_of(T x) {
  if constexpr (std::is_same_v<T, int8_t>)
    return static_cast<uint32_t>(static_cast<int>(x) + 128);
  else if constexpr (sizeof(T) == 1)
    return static_cast<uint32_t>(x);
  else if constexpr (sizeof(T) == 2)
    return HOLON_ISA::f::sort_key(widen(x)) >> (32 - kKeyBits<T>);
  else
    return HOLON_ISA::f::sort_key(x);
}

// keys (row-major) of x; the index covers its rows and columns.
template <class T>
__global__ void __launch_bounds__(kThreads)
    make_keys(const T* x, Strided<1> index, int64_t begin, int64_t count, bool descending, KeyOf<T>* keys) {
  constexpr KeyOf<T> top = ~KeyOf<T>(0) >> (sizeof(KeyOf<T>) * 8 - kKeyBits<T>);
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += int64_t{kThreads} * gridDim.x) {
    const KeyOf<T> key = key_of(x[index.at(begin + i).v[0]]);
    keys[i] = descending ? top - key : key;
  }
}

// The first k columns of each row of the order: indices, and the elements there if values is given. rows: places of
// rows in x, values and indices.
template <class T>
__global__ void __launch_bounds__(kThreads)
    put_in_order(const uint32_t* order, int64_t n, int64_t k, int64_t first_row, int64_t count, Strided<3> rows,
                 const T* x, int64_t x_step, T* values, int64_t values_step, int64_t* indices, int64_t indices_step) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += int64_t{kThreads} * gridDim.x) {
    const int64_t r = i / k, j = i - r * k;
    const auto at = rows.at(first_row + r);
    const int64_t place = order[r * n + j] - r * n;
    indices[at.v[2] + j * indices_step] = place;
    if (values) values[at.v[1] + j * values_step] = x[at.v[0] + place * x_step];
  }
}

template <class F>
void visit_size(DType dtype, F&& f) {
  switch (size_bytes(dtype)) {
    case 1: return f(TypeTag<uint8_t>{});
    case 2: return f(TypeTag<uint16_t>{});
    case 4: return f(TypeTag<uint32_t>{});
    default: return f(TypeTag<uint64_t>{});
  }
}

Dims without_last(const Dims& dims) {
  Dims d = dims;
  d.erase(d.size() - 1);
  return d;
}

// Pre: n < 2^32; x has an axis.
void order_rows(const Array& x, int64_t k, bool descending, Array* values, Array& indices) {
  const int64_t n = x.shape.back(), rows = n ? x.numel() / n : 0;
  if (rows == 0 || k == 0) return;
  use_device_of(x);
  const Dims lead = without_last(x.shape);
  const Strided<1> index(x.shape, {x.strides});
  const Strided<3> places(lead,
                          {without_last(x.strides), without_last(values ? values->strides : indices.strides),
                           without_last(indices.strides)});
  // The rows of one turn: their keys and places take some hundred MiB at most, unless one row takes more.
  const int64_t turn = std::max<int64_t>(1, (int64_t{1} << 25) / n);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using K = KeyOf<T>;
    const Scratch memory(static_cast<size_t>(std::min(turn, rows) * n) * sizeof(K));
    for (int64_t r = 0; r < rows; r += turn) {
      const int64_t here = std::min(turn, rows - r);
      launch(make_keys<T>, blocks_for(here * n, kThreads), kThreads, 0, x.data<T>(), index, r * n, here * n, descending,
             memory.data<K>());
      const RowOrder<K> order = order_rows_by_bits(memory.data<K>(), here, n, kKeyBits<T>);
      visit_size(x.dtype, [&](auto bytes) {
        using B = typename decltype(bytes)::type;
        launch(put_in_order<B>, blocks_for(here * k, kThreads), kThreads, 0, order.places, n, k, r, here * k, places,
               x.data<B>(), x.strides.back(), values ? values->data<B>() : nullptr, values ? values->strides.back() : 0,
               indices.data<int64_t>(), indices.strides.back());
      });
    }
  });
}

// An array without axes is one row of one element.
Array with_axis(const Array& a) { return a.ndim() ? a : a.view({1}, {1}); }

void sort_or_select(const Array& given, int64_t k, bool descending, Array* values, Array& given_indices) {
  HOLON_CHECK(given_indices.dtype == DType::kInt64 && (!values || values->dtype == given.dtype),
              "sort: the indices are {}", name(given_indices.dtype));
  const Array x = with_axis(given);
  Array indices = with_axis(given_indices);
  if (!values) return order_rows(x, k, descending, nullptr, indices);
  Array to = with_axis(*values);
  if (values->storage != given.storage) return order_rows(x, k, descending, &to, indices);
  // They may be the same elements.
  Array apart = Array::empty(to.shape, to.dtype, to.device);
  order_rows(x, k, descending, &apart, indices);
  kernels::copy(apart, to);
}

constexpr int64_t kMostInRow = int64_t{1} << 32;

void sort(const Array& x, bool descending, Array* values, Array& indices) {
  HOLON_CHECK(indices.shape == x.shape && (!values || values->shape == x.shape), "sort: {} into {}", x.shape,
              indices.shape);
  if (x.ndim() && x.shape.back() >= kMostInRow)
    return run_on_host("sort", &kernels::sort, x, descending, values, indices);
  sort_or_select(x, x.ndim() == 0 ? 1 : x.shape.back(), descending, values, indices);
}

void topk(const Array& x, int64_t k, bool largest, Array& values, Array& indices) {
  const int64_t n = x.ndim() == 0 ? 1 : x.shape.back();
  if (k < 0 || k > n) fail_value("topk: {} of {} elements were requested (shape {}).", k, n, x.shape);
  HOLON_CHECK(values.shape == indices.shape && (x.ndim() == 0 || values.shape.back() == k), "topk: {} into {}", x.shape,
              values.shape);
  if (n >= kMostInRow) return run_on_host("topk", &kernels::topk, x, k, largest, values, indices);
  sort_or_select(x, k, largest, &values, indices);
}

HOLON_DEVICE_KERNEL(sort, sort);
HOLON_DEVICE_KERNEL(topk, topk);

}  // namespace
}  // namespace holon::kernels::cuda
