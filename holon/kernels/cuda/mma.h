// What matrix products in tensor cores are made of: fragments of 16 x 8 x 16, their loads from shared memory, and
// copies from global to shared memory that go on behind a kernel's back. Layouts of fragments are PTX's (lane l: g = l
// / 4, t = l % 4):
//   a (16 x 16)  a[0]: row g, columns 2t, 2t+1; a[1]: row g+8; a[2], a[3]: the same rows, columns 8 later
//   b (16 x 8)   b[0]: rows 2t, 2t+1 of column g; b[1]: rows 8 later
//   c (16 x 8)   c[0], c[1]: row g, columns 2t, 2t+1; c[2], c[3]: row g+8
// The emulator's variants do the same with the same lanes, so that what is tested there is the index arithmetic.
#pragma once

#include <cmath>
#include <cstdlib>

#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/types.h"

namespace holon::kernels::cuda {

#ifdef HOLON_EMULATED

template <class T>
inline float half_of(uint32_t word, int which) {
  T v;
  v.bits = static_cast<uint16_t>(word >> (16 * which));
  return widen(v);
}
template <class T>
inline uint32_t pack_halves(float low, float high) {
  return narrow<T>(low).bits | static_cast<uint32_t>(narrow<T>(high).bits) << 16;
}
// c += a b
template <class T>
inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Words {
    uint32_t a[4], b[2];
  } mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const emulator::WarpValues<Words> of(kAllLanes, mine);
  const unsigned lane = emulator::lane(), g = lane / 4, t = lane % 4;
  if (lane == 0) emulator::note_product();
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = g, col = 2 * t + i % 2, upper = i / 2;
    for (unsigned k = 0; k < 16; ++k)
      c[i] += half_of<T>(of[4 * row + k % 8 / 2].a[upper + 2 * (k / 8)], k % 2) *
          half_of<T>(of[4 * col + k % 8 / 2].b[k / 8], k % 2);
  }
}
inline void note_rows(const emulator::WarpValues<const void*>& of) {
  if (emulator::lane() != 0) return;
  for (unsigned i = 0; i < 4; ++i) {
    const void* rows[8];
    for (unsigned j = 0; j < 8; ++j) rows[j] = of[8 * i + j];
    emulator::note_matrix(rows);
  }
}
// Four matrices of 8 x 8 two-byte elements; lane l gives the address of row l % 8 of matrix l / 8. r[i]: elements 2t,
// 2t+1 of row g of matrix i.
inline void load_matrices(uint32_t (&r)[4], const void* row) {
  const emulator::WarpValues<const void*> of(kAllLanes, row);
  const unsigned lane = emulator::lane();
  note_rows(of);
  for (unsigned i = 0; i < 4; ++i)
    std::memcpy(&r[i], static_cast<const uint16_t*>(of[8 * i + lane / 4]) + 2 * (lane % 4), 4);
}
// The same of the transposed matrices: elements g of rows 2t and 2t+1.
inline void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  const emulator::WarpValues<const void*> of(kAllLanes, row);
  const unsigned lane = emulator::lane(), g = lane / 4, t = lane % 4;
  note_rows(of);
  for (unsigned i = 0; i < 4; ++i)
    r[i] = static_cast<const uint16_t*>(of[8 * i + 2 * t])[g] |
        static_cast<uint32_t>(static_cast<const uint16_t*>(of[8 * i + 2 * t + 1])[g]) << 16;
}
// 16 bytes to shared memory, or zeros. Both addresses are multiples of 16. Done after copies_wait, and after a barrier
// for others.
inline void copy_async(void* to, const void* from, bool valid) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 != 0) std::abort();
  if (valid)
    std::memcpy(to, from, 16);
  else
    std::memset(to, 0, 16);
}
inline void copies_commit() {}
// All groups of copies that this thread has committed are done, except the last n.
template <int n>
inline void copies_wait() {}
inline float fast_exp2(float x) { return std::exp2(x); }

#else

template <class T>
__device__ __forceinline__ uint32_t pack_halves(float low, float high) {
  uint32_t r;
  if constexpr (std::is_same_v<T, Float16>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <class T>
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, Float16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
// volatile and "memory": what is loaded was stored by other threads.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int n>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#endif

// All of this thread's copies are done.
__device__ __forceinline__ void copies_finish() {
  copies_commit();
  copies_wait<0>();
}

}  // namespace holon::kernels::cuda
