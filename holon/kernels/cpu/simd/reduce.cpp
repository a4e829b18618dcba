// Reductions of rows and of columns. Compiled for each instruction set.
//
// Sums stay accurate by their structure: at most kBlock elements are added up in a lane of T, blocks in double (int64).
#include "holon/kernels/cpu/table.h"
#include "holon/kernels/cpu/vectors.h"
#include "holon/kernels/functors.h"

namespace holon::kernels::HOLON_ISA {

namespace {

template <class T>
struct AccOf {
  using type = int64_t;
  HOLON_FN static int64_t& of(Accumulator& a) { return a.i; }
};
template <>
struct AccOf<float> {
  using type = double;
  HOLON_FN static double& of(Accumulator& a) { return a.d; }
};
template <>
struct AccOf<double> : AccOf<float> {};

// lane() folds an element into a lane, merge() two partial results. V is T, Acc, or a vector of either.
struct Sum {
  static constexpr bool exact = false;
  template <class T>
  static constexpr T start() {
    return T(0);
  }
  template <class V>
  HOLON_FN static V lane(V a, V x) {
    return a + x;
  }
  template <class V>
  HOLON_FN static V merge(V a, V b) {
    return a + b;
  }
};
struct SumSquares : Sum {
  template <class V>
  HOLON_FN static V lane(V a, V x) {
    return a + x * x;
  }
};
struct SumAbs : Sum {
  template <class V>
  HOLON_FN static V lane(V a, V x) {
    return a + (x < 0 ? -x : x);
  }
};
struct Prod {
  static constexpr bool exact = false;
  template <class T>
  static constexpr T start() {
    return T(1);
  }
  template <class V>
  HOLON_FN static V lane(V a, V x) {
    return a * x;
  }
  template <class V>
  HOLON_FN static V merge(V a, V b) {
    return a * b;
  }
};
template <class T>
constexpr T lowest() {
  if constexpr (f::IsFloat<T>::value)
    return static_cast<T>(-__builtin_inf());
  else
    return static_cast<T>(T(1) << (sizeof(T) * 8 - 1));
}
template <class T>
constexpr T highest() {
  if constexpr (f::IsFloat<T>::value)
    return static_cast<T>(__builtin_inf());
  else
    return static_cast<T>(~lowest<T>());
}
// A NaN replaces a number and is replaced by nothing.
struct Max {
  static constexpr bool exact = true;
  template <class T>
  static constexpr T start() {
    return lowest<T>();
  }
  template <class V>
  HOLON_FN static V lane(V a, V x) {
    return ((x > a) | (x != x)) ? x : a;
  }
  template <class V>
  HOLON_FN static V merge(V a, V b) {
    return lane(a, b);
  }
};
struct Min {
  static constexpr bool exact = true;
  template <class T>
  static constexpr T start() {
    return highest<T>();
  }
  template <class V>
  HOLON_FN static V lane(V a, V x) {
    return ((x < a) | (x != x)) ? x : a;
  }
  template <class V>
  HOLON_FN static V merge(V a, V b) {
    return lane(a, b);
  }
};
struct AbsMax : Max {
  template <class T>
  static constexpr T start() {
    return T(0);
  }
  template <class V>
  HOLON_FN static V lane(V a, V x) {
    return Max::lane(a, x < 0 ? -x : x);
  }
};

constexpr int64_t kBlock = 4096;

// Lanes: floats in T; int32 in int64, because sums and products must not wrap around at 32 bits.
template <class Op, class T>
void reduce_row(const void* p, int64_t n, Accumulator* out) {
  using Acc = typename AccOf<T>::type;
  const T* x = static_cast<const T*>(p);
  Acc total = AccOf<T>::of(*out);
  if constexpr (sizeof(T) == 4 && !f::IsFloat<T>::value && !Op::exact) {
    Acc acc = Op::template start<Acc>();
#pragma omp simd reduction(+ : acc)
    for (int64_t i = 0; i < n; ++i) acc = Op::lane(acc, static_cast<Acc>(x[i]));
    total = Op::merge(total, acc);
  } else {
    constexpr int w = Simd<T>::kWidth;
    for (; n >= w;) {
      const int64_t m = (n < kBlock ? n : kBlock) / w * w;
      Vec<T> a = same(Op::template start<T>()), b = a, c = a, d = a;
      int64_t i = 0;
      for (; i + 4 * w <= m; i += 4 * w) {
        a = Op::lane(a, load(x + i));
        b = Op::lane(b, load(x + i + w));
        c = Op::lane(c, load(x + i + 2 * w));
        d = Op::lane(d, load(x + i + 3 * w));
      }
      for (; i < m; i += w) a = Op::lane(a, load(x + i));
      a = Op::merge(Op::merge(a, b), Op::merge(c, d));
      if constexpr (Op::exact || f::IsFloat<T>::value)
        total = Op::merge(total,
                          static_cast<Acc>(fold_lanes<T>(
                              a, [](auto p, auto q) __attribute__((always_inline)) { return Op::merge(p, q); })));
      else
        for (int j = 0; j < w; ++j) total = Op::merge(total, static_cast<Acc>(a[j]));
      x += m;
      n -= m;
    }
    for (int64_t i = 0; i < n; ++i) total = Op::lane(total, static_cast<Acc>(x[i]));
  }
  AccOf<T>::of(*out) = total;
}
// omp's reduction wants the operator by name.
template <>
void reduce_row<Prod, int32_t>(const void* p, int64_t n, Accumulator* out) {
  const int32_t* x = static_cast<const int32_t*>(p);
  for (int64_t i = 0; i < n; ++i) out->i *= x[i];
}

constexpr int64_t kTile = 512, kRowsPerFlush = 128;

template <class Op, class T>
void reduce_columns(const void* p, int64_t row_stride, int64_t rows, int64_t cols, Accumulator* out) {
  using Acc = typename AccOf<T>::type;
  // int32 must be widened at once, and its products cannot wait; the others gather a few rows in T first.
  using Lane = __typeof__(sizeof(T) == 4 && !f::IsFloat<T>::value && !Op::exact ? Acc{} : T{});
  for (int64_t j0 = 0; j0 < cols; j0 += kTile) {
    const T* x = static_cast<const T*>(p) + j0;
    Accumulator* acc = out + j0;
    const int64_t m = cols - j0 < kTile ? cols - j0 : kTile;
    for (int64_t r = 0; r < rows;) {
      const int64_t end = rows - r < kRowsPerFlush ? rows : r + kRowsPerFlush;
      Lane part[kTile];
      for (int64_t j = 0; j < m; ++j) part[j] = Op::template start<Lane>();
      for (; r + 4 <= end; r += 4) {
        const T *a = x + r * row_stride, *b = a + row_stride, *c = b + row_stride, *d = c + row_stride;
#pragma omp simd
        for (int64_t j = 0; j < m; ++j) {
          Lane u = Op::lane(Op::lane(Op::template start<Lane>(), static_cast<Lane>(a[j])), static_cast<Lane>(b[j]));
          Lane v = Op::lane(Op::lane(Op::template start<Lane>(), static_cast<Lane>(c[j])), static_cast<Lane>(d[j]));
          part[j] = Op::merge(part[j], Op::merge(u, v));
        }
      }
      for (; r < end; ++r) {
        const T* a = x + r * row_stride;
#pragma omp simd
        for (int64_t j = 0; j < m; ++j) part[j] = Op::lane(part[j], static_cast<Lane>(a[j]));
      }
#pragma omp simd
      for (int64_t j = 0; j < m; ++j) AccOf<T>::of(acc[j]) = Op::merge(AccOf<T>::of(acc[j]), static_cast<Acc>(part[j]));
    }
  }
}

template <class Op, class T>
int64_t arg_reduce(const void* p, int64_t n) {
  const T* x = static_cast<const T*>(p);
  Accumulator best;
  AccOf<T>::of(best) = Op::template start<typename AccOf<T>::type>();
  reduce_row<Op, T>(x, n, &best);
  const T v = static_cast<T>(AccOf<T>::of(best));
  constexpr int64_t kStep = 64;
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    int found = 0;
#pragma omp simd reduction(+ : found)
    for (int64_t j = 0; j < kStep; ++j) found += (x[i + j] == v) | ((x[i + j] != x[i + j]) & (v != v));
    if (found != 0) break;
  }
  for (; i < n; ++i)
    if (x[i] == v || (x[i] != x[i] && v != v)) return i;
  return 0;
}

template <class Op>
void fill(Table& t, ReduceOp op) {
  ReduceRowFn* row = t.reduce_row[static_cast<int>(op)];
  row[0] = reduce_row<Op, float>;
  row[1] = reduce_row<Op, double>;
  row[2] = reduce_row<Op, int32_t>;
  row[3] = reduce_row<Op, int64_t>;
  ReduceColumnsFn* columns = t.reduce_columns[static_cast<int>(op)];
  columns[0] = reduce_columns<Op, float>;
  columns[1] = reduce_columns<Op, double>;
  columns[2] = reduce_columns<Op, int32_t>;
  columns[3] = reduce_columns<Op, int64_t>;
}
template <class Op>
void fill(ArgReduceFn* arg) {
  arg[0] = arg_reduce<Op, float>;
  arg[1] = arg_reduce<Op, double>;
  arg[2] = arg_reduce<Op, int32_t>;
  arg[3] = arg_reduce<Op, int64_t>;
}

}  // namespace

void fill_reduce(Table& t) {
  fill<Sum>(t, ReduceOp::Sum);
  fill<Prod>(t, ReduceOp::Prod);
  fill<Max>(t, ReduceOp::Max);
  fill<Min>(t, ReduceOp::Min);
  fill<SumSquares>(t, ReduceOp::SumSquares);
  fill<AbsMax>(t, ReduceOp::AbsMax);
  fill<SumAbs>(t, ReduceOp::SumAbs);
  fill<Max>(t.argmax);
  fill<Min>(t.argmin);
}

}  // namespace holon::kernels::HOLON_ISA
