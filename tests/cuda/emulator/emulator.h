// CUDA's device language on the host, so that the kernels' own source runs where no device is: every thread of a block
// is a fiber, blocks run one after the other. Barriers and warp exchanges are real: threads that do not come to one
// stop the program with a message, where a device would hang or return garbage.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __align__(n) alignas(n)
#define __constant__ static
// One block runs at a time on a host thread. What a block has not written itself is all ones (NaN).
#define HOLON_SHARED(type, name, count)                     \
  static thread_local type name[count];                     \
  static thread_local uint64_t name##_written_in_block = 0; \
  ::emulator::fresh_shared(name, sizeof(name), name##_written_in_block)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace emulator {

struct Thread {
  dim3 thread_index, block_index, block_size, grid_size;
};
extern constinit thread_local Thread* current;  // constinit: no wrapper, whose result UBSan takes for null
inline unsigned lane() {
  const Thread& t = *current;
  return (t.thread_index.x + t.block_size.x * (t.thread_index.y + t.block_size.y * t.thread_index.z)) % 32;
}

// What a piece of work is, where it is counted (traffic.cpp).
struct Label {
  const char* kind = "library";
  const void* kernel = nullptr;
};

struct Stream;
// Puts work on a stream (done at once, unless the stream is being captured, work waits there, or EMULATED_LAZY=1).
void enqueue(Stream* stream, std::function<void()> work, Label label = {});
// What belongs to the work before it, and is not counted as another launch.
void enqueue_rest(Stream* stream, std::function<void()> work);
// Work that is done when somebody waits for the stream, as with EMULATED_LAZY; what is put after it waits, too.
void enqueue_late(Stream* stream, std::function<void()> work);
// Work that waits for other ranks: it is done at once also where other work waits. hangs: asked each time that it is to
// be done, true: `hung` is done instead, late.
void enqueue_collective(Stream* stream, std::function<void()> work, std::function<bool()> hangs,
                        std::function<void()> hung);
// Work that a thread of the stream's own does, as all that is put there from then on, while the host goes on. The
// memory of devices is open to it in with_memory() only.
void enqueue_beside(Stream* stream, std::function<void()> work);
void with_memory(const std::function<void()>& work);
// Adds to the list of EMULATED_LAUNCHES.
void note_launch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes);
size_t shared_bytes_of_block();  // the most
// Counts products of matrices in a warp (emulated_products in launches.cpp).
void note_product();
// Counts the loads of matrices from shared memory (emulated_matrices in launches.cpp).
void note_matrix(const void* const (&rows)[8]);
void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body);
void* dynamic_shared();
uint64_t block_number();  // of the blocks that this host thread has run
inline void fresh_shared(void* data, size_t bytes, uint64_t& block) {
  if (block == block_number()) return;
  block = block_number();
  std::memset(data, 0xff, bytes);
}

void block_barrier();
void warp_barrier(unsigned mask);
// Writes this lane's bytes, waits for the lanes of the mask, and returns where lane `of`'s bytes are.
const void* warp_exchange(unsigned mask, const void* mine, size_t bytes, unsigned of);
constexpr unsigned kExchangeBytes = 32;  // of a lane, at most
unsigned warp_ballot(unsigned mask, bool predicate);

// One exchange after which a lane sees every lane's value, until its next one: operations of a whole warp.
template <class T>
class WarpValues {
 public:
  WarpValues(unsigned mask, const T& mine)
      : slots_(static_cast<const unsigned char*>(warp_exchange(mask, &mine, sizeof(T), 0))) {}
  const T& operator[](unsigned lane) const { return *reinterpret_cast<const T*>(slots_ + lane * kExchangeBytes); }

 private:
  const unsigned char* slots_;
};

template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, Stream* stream, A... args) {
  note_launch(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes);
  auto work = [=, values = std::tuple<std::decay_t<P>...>(args...)] {
    run_grid(grid, block, shared_bytes, [&] { std::apply([&](const auto&... v) { kernel(v...); }, values); });
  };
  enqueue(stream, std::move(work), {"kernel", reinterpret_cast<const void*>(kernel)});
}

}  // namespace emulator

#define threadIdx (::emulator::current->thread_index)
#define blockIdx (::emulator::current->block_index)
#define blockDim (::emulator::current->block_size)
#define gridDim (::emulator::current->grid_size)

inline void __syncthreads() { ::emulator::block_barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { ::emulator::warp_barrier(mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

template <class T>
T __shfl_sync(unsigned mask, T v, int from, int width = 32) {
  const unsigned lane = ::emulator::lane(), base = lane / static_cast<unsigned>(width) * static_cast<unsigned>(width);
  T out;
  std::memcpy(&out,
              ::emulator::warp_exchange(mask, &v, sizeof v,
                                        base + static_cast<unsigned>(from) % static_cast<unsigned>(width)),
              sizeof v);
  return out;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int with, int width = 32) {
  const unsigned lane = ::emulator::lane();
  unsigned of = lane ^ static_cast<unsigned>(with);
  if (of / static_cast<unsigned>(width) != lane / static_cast<unsigned>(width)) of = lane;
  T out;
  std::memcpy(&out, ::emulator::warp_exchange(mask, &v, sizeof v, of), sizeof v);
  return out;
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32) {
  const unsigned lane = ::emulator::lane(), w = static_cast<unsigned>(width);
  const unsigned of = lane % w + by < w ? lane + by : lane;
  T out;
  std::memcpy(&out, ::emulator::warp_exchange(mask, &v, sizeof v, of), sizeof v);
  return out;
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32) {
  const unsigned lane = ::emulator::lane(), w = static_cast<unsigned>(width);
  const unsigned of = lane % w >= by ? lane - by : lane;
  T out;
  std::memcpy(&out, ::emulator::warp_exchange(mask, &v, sizeof v, of), sizeof v);
  return out;
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return ::emulator::warp_ballot(mask, predicate != 0); }
inline int __any_sync(unsigned mask, int predicate) { return ::emulator::warp_ballot(mask, predicate != 0) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return ::emulator::warp_ballot(mask, predicate == 0) == 0; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
inline float __uint_as_float(unsigned b) { return __builtin_bit_cast(float, b); }
inline unsigned __float_as_uint(float f) { return __builtin_bit_cast(unsigned, f); }
inline int __float_as_int(float f) { return __builtin_bit_cast(int, f); }
inline float __int_as_float(int b) { return __builtin_bit_cast(float, b); }
inline long long __double_as_longlong(double d) { return __builtin_bit_cast(long long, d); }
inline double __longlong_as_double(long long b) { return __builtin_bit_cast(double, b); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }

// Blocks of one grid run one after the other, but ranks may be threads: the host's atomics.
template <class T, class F>
T emulated_atomic(T* p, F change) {
  T before;
  __atomic_load(p, &before, __ATOMIC_RELAXED);
  for (;;) {
    T after = change(before);
    if (__atomic_compare_exchange(p, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return before;
  }
}
template <class T>
T atomicAdd(T* p, std::type_identity_t<T> v) {
  return emulated_atomic(p, [&](T x) { return static_cast<T>(x + v); });
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> v) {
  return emulated_atomic(p, [&](T x) { return x > v ? x : v; });
}
template <class T>
T atomicMin(T* p, std::type_identity_t<T> v) {
  return emulated_atomic(p, [&](T x) { return x < v ? x : v; });
}
template <class T>
T atomicOr(T* p, std::type_identity_t<T> v) {
  return emulated_atomic(p, [&](T x) { return static_cast<T>(x | v); });
}
template <class T>
T atomicExch(T* p, std::type_identity_t<T> v) {
  return emulated_atomic(p, [&](T) { return v; });
}
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> v) {
  return emulated_atomic(p, [&](T x) { return x == expected ? v : x; });
}
