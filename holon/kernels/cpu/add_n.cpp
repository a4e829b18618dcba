#include "holon/kernels/add_n.h"

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstring>
#include <type_traits>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/base/small_vec.h"
#include "holon/kernels/cpu/stream.h"

namespace holon::kernels {

namespace {

// Sources are added a block at a time, so that the running sum of many sources stays in the first-level cache.
constexpr int64_t kBlock = 512;
constexpr int kLevels = 31;

#if defined(__x86_64__)
// The compiler's half type converts by one instruction where the processor has it; the bits equal holon::Float16's.
using Half = _Float16;
#else
using Half = Float16;
#endif

// Integers are added as unsigned ones, whose wrap-around is defined.
template <class T>
struct AccOf {
  using type = T;
};
template <std::integral T>
struct AccOf<T> {
  using type = std::make_unsigned_t<T>;
};

template <class T>
struct Sum {
  using Acc = typename AccOf<T>::type;
  static inline __attribute__((always_inline)) Acc load(T v) { return static_cast<Acc>(v); }
  static inline __attribute__((always_inline)) Acc add(Acc a, Acc b) { return static_cast<Acc>(a + b); }
  static inline __attribute__((always_inline)) T store(Acc v) { return static_cast<T>(v); }
};

struct Bool {
  uint8_t value;
};
template <>
struct Sum<Bool> {
  using Acc = uint8_t;
  static inline __attribute__((always_inline)) Acc load(Bool v) { return v.value; }
  static inline __attribute__((always_inline)) Acc add(Acc a, Acc b) { return a | b; }
  static inline __attribute__((always_inline)) Bool store(Acc v) { return {v}; }
};

template <>
struct Sum<Half> {
  using Acc = float;
  static inline __attribute__((always_inline)) Acc load(Half v) { return static_cast<float>(v); }
  static inline __attribute__((always_inline)) Acc add(Acc a, Acc b) { return a + b; }
  static inline __attribute__((always_inline)) Half store(Acc v) { return static_cast<Half>(v); }
};

template <>
struct Sum<BFloat16> {
  using Acc = float;
  static inline __attribute__((always_inline)) Acc load(BFloat16 v) {
    return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16);
  }
  static inline __attribute__((always_inline)) Acc add(Acc a, Acc b) { return a + b; }
  static inline __attribute__((always_inline)) BFloat16 store(Acc v) {
    // BFloat16's own rounding, written without a branch so that it becomes vector code.
    uint32_t u = std::bit_cast<uint32_t>(v);
    uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16, quiet = (u >> 16) | 0x40;
    BFloat16 r;
    r.bits = static_cast<uint16_t>((u & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
    return r;
  }
};

template <class T>
inline __attribute__((always_inline)) void sum(void* dst_bytes, const void* const* src_bytes, int n, int64_t count) {
  using S = Sum<T>;
  using Acc = typename S::Acc;
  T* dst = static_cast<T*>(dst_bytes);
  auto src = [&](int k) { return static_cast<const T*>(src_bytes[k]); };
  // ivdep holds because a source either is dst or does not touch it.
  if (n == 2) {
    const T *a = src(0), *b = src(1);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) dst[i] = S::store(S::add(S::load(a[i]), S::load(b[i])));
    return;
  }
  if (n == 3) {
    const T *a = src(0), *b = src(1), *c = src(2);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) dst[i] = S::store(S::add(S::add(S::load(a[i]), S::load(b[i])), S::load(c[i])));
    return;
  }
  if (n == 4) {
    const T *a = src(0), *b = src(1), *c = src(2), *d = src(3);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i)
      dst[i] = S::store(S::add(S::add(S::load(a[i]), S::load(b[i])), S::add(S::load(c[i]), S::load(d[i]))));
    return;
  }
  if (n == 8) {
    const T* at[] = {src(0), src(1), src(2), src(3), src(4), src(5), src(6), src(7)};
    auto four = [&](int k, int64_t i) {
      return S::add(S::add(S::load(at[k][i]), S::load(at[k + 1][i])),
                    S::add(S::load(at[k + 2][i]), S::load(at[k + 3][i])));
    };
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) dst[i] = S::store(S::add(four(0, i), four(4, i)));
    return;
  }
  // What is pending: one sum for each bit of the number of pairs.
  alignas(64) Acc levels[kLevels][kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t m = std::min(kBlock, count - begin);
    int pairs = 0;
    for (int k = 0; k < n; k += 2, ++pairs) {
      const int level = std::countr_one(static_cast<unsigned>(pairs));
      Acc* sums = levels[level];
      const T* a = src(k) + begin;
      if (k + 1 < n) {
        const T* b = src(k + 1) + begin;
        for (int64_t i = 0; i < m; ++i) sums[i] = S::add(S::load(a[i]), S::load(b[i]));
      } else {
        for (int64_t i = 0; i < m; ++i) sums[i] = S::load(a[i]);
      }
      for (int l = 0; l < level; ++l)
        for (int64_t i = 0; i < m; ++i) sums[i] = S::add(levels[l][i], sums[i]);
    }
    int level = std::countr_zero(static_cast<unsigned>(pairs));
    for (int l = level + 1; pairs >> l; ++l) {
      if (!(pairs >> l & 1)) continue;
      for (int64_t i = 0; i < m; ++i) levels[l][i] = S::add(levels[l][i], levels[level][i]);
      level = l;
    }
    for (int64_t i = 0; i < m; ++i) dst[begin + i] = S::store(levels[level][i]);
  }
}

using Function = void (*)(void*, const void* const*, int, int64_t);
using Table = Function[kComputedDTypeCount];

// One copy of every loop per instruction set. target_clones would do the same by ifunc, which sanitizers cannot start.
#define HOLON_SUMS(NAME, TARGET)                                                                       \
  struct NAME {                                                                                        \
    template <class T>                                                                                 \
    TARGET static void run(void* dst, const void* const* src, int n, int64_t count) {                  \
      sum<T>(dst, src, n, count);                                                                      \
    }                                                                                                  \
    static constexpr Table table = {run<Bool>, run<uint8_t>,  run<int8_t>, run<int32_t>, run<int64_t>, \
                                    run<Half>, run<BFloat16>, run<float>,  run<double>};               \
  };

HOLON_SUMS(Plain, )
#if defined(__x86_64__)
HOLON_SUMS(Avx2, __attribute__((target("avx2,f16c"))))
HOLON_SUMS(Avx512, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c,prefer-vector-width=512"))))
#endif

const Table& choose() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    return Avx512::table;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return Avx2::table;
#endif
  return Plain::table;
}

constexpr int64_t kBytesPerThread = 1 << 20;  // of all sources
// A result from this size on is written past the caches. (A smaller one's readers, here or on a peer, still find it
// there.)
constexpr int64_t kStreamBytes = 8 << 20;

void add_range(Function add, std::byte* dst, std::span<const void* const> src, int64_t item, int64_t begin, int64_t end,
               bool stream) {
  alignas(64) std::byte block[16 << 10];
  SmallVec<const void*, 64> at(src.size());
  for (int64_t i = begin; i < end;) {
    // Whole lines are streamed, so the first block ends where one does.
    const auto into = static_cast<int64_t>(reinterpret_cast<uintptr_t>(dst + i * item) % 64);
    const int64_t m = stream ? std::min(end - i, (static_cast<int64_t>(sizeof block) - into) / item) : end - i;
    for (size_t k = 0; k < src.size(); ++k) at[k] = static_cast<const std::byte*>(src[k]) + i * item;
    add(stream ? block : dst + i * item, at.data(), static_cast<int>(at.size()), m);
    if (stream) stream_bytes(dst + i * item, block, to_size(m * item));
    i += m;
  }
  if (stream) stream_fence();
}

}  // namespace

void add_n(void* dst, std::span<const void* const> src, int64_t count, DType dtype) {
  HOLON_CHECK(!src.empty() && count >= 0, "add_n of {} sources and {} elements", src.size(), count);
  if (count == 0) return;
  const auto item = static_cast<int64_t>(size_bytes(dtype));
  if (src.size() == 1) return copy_bytes(dst, src[0], to_size(count * item));
  if (is_float8(dtype)) detail::fail_not_computed(dtype);
  static const Table& table = choose();
  const Function add = table[static_cast<int>(dtype)];
  const int n = static_cast<int>(src.size());
  if (count * item * n <= kBytesPerThread) return add(dst, src.data(), n, count);
  const bool stream = count * item >= kStreamBytes;
  parallel_for(count, kBytesPerThread / item / n, [&](int64_t begin, int64_t end) {
    add_range(add, static_cast<std::byte*>(dst), src, item, begin, end, stream);
  });
}

}  // namespace holon::kernels
