// The body of pooling's inner loops, compiled once per instruction set.
#include <utility>

#include "holon/kernels/cpu/pool_loops.h"
#include "holon/kernels/cpu/vectors.h"

namespace holon::kernels::HOLON_ISA {
namespace {

template <int kLanes>
struct Lanes;
template <>
struct Lanes<1> {
  typedef float F;
  typedef int32_t I;
  static F get(const float* p) { return *p; }
  static void put(float* p, F v) { *p = v; }
  static I get(const uint8_t* p) { return *p; }
  static void put(uint8_t* p, I v) { *p = static_cast<uint8_t>(v); }
};
// GCC drops a vector_size that depends on a template's argument.
#define HOLON_LANES(N)                                                                              \
  template <>                                                                                       \
  struct Lanes<N> {                                                                                 \
    typedef float F __attribute__((vector_size(N * 4)));                                            \
    typedef float FU __attribute__((vector_size(N * 4), aligned(4), may_alias));                    \
    typedef int32_t I __attribute__((vector_size(N * 4)));                                          \
    typedef uint8_t B __attribute__((vector_size(N)));                                              \
    typedef uint8_t BU __attribute__((vector_size(N), aligned(1), may_alias));                      \
    static F get(const float* p) { return *reinterpret_cast<const FU*>(p); }                        \
    static void put(float* p, F v) { *reinterpret_cast<FU*>(p) = v; }                               \
    static I get(const uint8_t* p) {                                                                \
      return __builtin_convertvector(static_cast<B>(*reinterpret_cast<const BU*>(p)), I);           \
    }                                                                                               \
    static void put(uint8_t* p, I v) { *reinterpret_cast<BU*>(p) = __builtin_convertvector(v, B); } \
  };
HOLON_LANES(4)
#if HOLON_VECTOR_BYTES >= 32
HOLON_LANES(8)
#endif
#if HOLON_VECTOR_BYTES >= 64
HOLON_LANES(16)
#endif
// A page ahead: the hardware's own prefetch stops at its end.
constexpr int kAhead = 1024;
constexpr int kFull = kVectorBytes / 4;

// Calls f(offset, lanes) until n elements are covered: whole vectors, the last one moved back to end at n, narrower
// vectors where n is short. Elements may be visited twice.
template <class F>
HOLON_INLINE void cover(int64_t n, F&& f) {
  if (n >= kFull) {
    int64_t j = 0;
    for (; j + kFull <= n; j += kFull) f(j, Lanes<kFull>{});
    if (j < n) f(n - kFull, Lanes<kFull>{});
    return;
  }
#if HOLON_VECTOR_BYTES > 32
  if (n >= 8) {
    f(0, Lanes<8>{});
    if (n > 8) f(n - 8, Lanes<8>{});
    return;
  }
#endif
#if HOLON_VECTOR_BYTES > 16
  if (n >= 4) {
    f(0, Lanes<4>{});
    if (n > 4) f(n - 4, Lanes<4>{});
    return;
  }
#endif
  for (int64_t j = 0; j < n; ++j) f(j, Lanes<1>{});
}

// As cover, but each element once.
template <class F>
HOLON_INLINE void partition(int64_t n, F&& f) {
  int64_t j = 0;
  for (; j + kFull <= n; j += kFull) f(j, Lanes<kFull>{});
  for (; j + 4 <= n; j += 4) f(j, Lanes<4>{});
  for (; j < n; ++j) f(j, Lanes<1>{});
}

template <bool kIndex>
void max_channels_any(const WindowRun& w, const float* x, float* out, uint8_t* index) {
  for (int64_t q = 0; q < w.count; ++q, x += w.x_step, out += w.out_step, index += kIndex ? w.index_step : 0)
    cover(
        w.channels, [&](int64_t c, auto lanes) __attribute__((always_inline)) {
          using L = decltype(lanes);
          typename L::F best = L::get(x + c);
          typename L::I where = w.place - typename L::I{};
          for (int i = 0; i < w.rows; ++i)
            for (int j = 0; j < w.cols; ++j) {
              __builtin_prefetch(x + i * w.row_step + j * w.col_step + c + kAhead, 0, 2);
              const typename L::F v = L::get(x + i * w.row_step + j * w.col_step + c);
              const typename L::I take = (v > best) | (v != v);
              best = take ? v : best;
              if constexpr (kIndex) where = take ? w.place + i * w.places_per_row + j - typename L::I{} : where;
            }
          L::put(out + c, best);
          if constexpr (kIndex) L::put(index + c, where);
        });
}

void max_channels(const WindowRun& w, const float* x, float* out, uint8_t* index) {
  if (index)
    max_channels_any<true>(w, x, out, index);
  else
    max_channels_any<false>(w, x, out, nullptr);
}

template <bool kSet>
void max_channels_backward_any(const WindowRun& w, const float* dy, const uint8_t* index, float* dx) {
  for (int64_t q = 0; q < w.count; ++q, dx += w.x_step, dy += w.out_step, index += w.index_step)
    partition(
        w.channels, [&](int64_t c, auto lanes) __attribute__((always_inline)) {
          using L = decltype(lanes);
          const typename L::F v = L::get(dy + c);
          const typename L::I where = L::get(index + c);
          for (int i = 0; i < w.rows; ++i)
            for (int j = 0; j < w.cols; ++j) {
              float* to = dx + i * w.row_step + j * w.col_step + c;
              const typename L::F part =
                  where == w.place + i * w.places_per_row + j - typename L::I{} ? v : typename L::F{};
              L::put(to, kSet ? part : L::get(to) + part);
            }
        });
}

void max_channels_backward(const WindowRun& w, const float* dy, const uint8_t* index, float* dx, bool set) {
  if (set)
    max_channels_backward_any<true>(w, dy, index, dx);
  else
    max_channels_backward_any<false>(w, dy, index, dx);
}

void sum_channels(const WindowRun& w, float scale, const float* x, float* out) {
  for (int64_t q = 0; q < w.count; ++q, x += w.x_step, out += w.out_step)
    cover(
        w.channels, [&](int64_t c, auto lanes) __attribute__((always_inline)) {
          using L = decltype(lanes);
          typename L::F sum = {};
          for (int i = 0; i < w.rows; ++i)
            for (int j = 0; j < w.cols; ++j) sum += L::get(x + i * w.row_step + j * w.col_step + c);
          L::put(out + c, sum * scale);
        });
}

void sum_channels_backward(const WindowRun& w, float scale, const float* dy, float* dx, bool set) {
  for (int64_t q = 0; q < w.count; ++q, dx += w.x_step, dy += w.out_step)
    partition(
        w.channels, [&](int64_t c, auto lanes) __attribute__((always_inline)) {
          using L = decltype(lanes);
          const typename L::F v = L::get(dy + c) * scale;
          for (int i = 0; i < w.rows; ++i)
            for (int j = 0; j < w.cols; ++j) {
              float* to = dx + i * w.row_step + j * w.col_step + c;
              L::put(to, set ? v : L::get(to) + v);
            }
        });
}

// Even and odd elements of 2n, and their interleaving.
template <class F, int... i>
HOLON_INLINE F every_second(F a, F b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(a, b, (2 * i)...);
}
template <class F, int... i>
HOLON_INLINE F every_other(F a, F b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(a, b, (2 * i + 1)...);
}
template <int from, class F, int... i>
HOLON_INLINE F interleaved(F a, F b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(a, b, (from + i / 2 + i % 2 * static_cast<int>(sizeof...(i)))...);
}

template <int n, class F>
HOLON_INLINE void split_pairs(F a, F b, F* even, F* odd) {
  if constexpr (n == 1) {
    *even = a;
    *odd = b;
  } else {
    *even = every_second(a, b, std::make_integer_sequence<int, n>());
    *odd = every_other(a, b, std::make_integer_sequence<int, n>());
  }
}

template <bool kIndex>
void max_planes_any(const PlaneRun& w, const float* x, float* out, uint8_t* index) {
  for (int64_t r = 0; r < w.rows; ++r, x += 2 * w.x_row, out += w.out_row, index += kIndex ? w.index_row : 0)
    cover(
        w.cols, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
          using L = decltype(lanes);
          using F = typename L::F;
          using I = typename L::I;
          constexpr int n = sizeof(F) / 4;
          F v[4];
          split_pairs<n, F>(L::get(x + 2 * j), L::get(x + 2 * j + n), &v[0], &v[1]);
          split_pairs<n, F>(L::get(x + w.x_row + 2 * j), L::get(x + w.x_row + 2 * j + n), &v[2], &v[3]);
          F best = v[0];
          I where = {};
          HOLON_UNROLL for (int i = 1; i < 4; ++i) {
            const I take = (v[i] > best) | (v[i] != v[i]);
            best = take ? v[i] : best;
            if constexpr (kIndex) where = take ? i - I{} : where;
          }
          L::put(out + j, best);
          if constexpr (kIndex) L::put(index + j, where);
        });
}

void max_planes(const PlaneRun& w, const float* x, float* out, uint8_t* index) {
  if (index)
    max_planes_any<true>(w, x, out, index);
  else
    max_planes_any<false>(w, x, out, nullptr);
}

void max_planes_backward(const PlaneRun& w, const float* dy, const uint8_t* index, float* dx) {
  for (int64_t r = 0; r < w.rows; ++r, dx += 2 * w.x_row, dy += w.out_row, index += w.index_row)
    cover(
        w.cols, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
          using L = decltype(lanes);
          using F = typename L::F;
          using I = typename L::I;
          constexpr int n = sizeof(F) / 4;
          const F v = L::get(dy + j);
          const I where = L::get(index + j);
          HOLON_UNROLL for (int i = 0; i < 2; ++i) {
            const F even = where == 2 * i - I{} ? v : F{}, odd = where == 2 * i + 1 - I{} ? v : F{};
            float* to = dx + i * w.x_row + 2 * j;
            if constexpr (n == 1) {
              L::put(to, even);
              L::put(to + 1, odd);
            } else {
              const auto all = std::make_integer_sequence<int, n>();
              L::put(to, interleaved<0>(even, odd, all));
              L::put(to + n, interleaved<n / 2>(even, odd, all));
            }
          }
        });
}

}  // namespace

PoolLoops pool_loops() {
  return {max_channels, max_channels_backward, sum_channels, sum_channels_backward, max_planes, max_planes_backward};
}

}  // namespace holon::kernels::HOLON_ISA
