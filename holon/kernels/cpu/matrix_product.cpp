#include "holon/kernels/cpu/matrix_product.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/cpu/scratch.h"
#include "holon/kernels/cpu/small_gemm.h"

namespace holon::kernels {

namespace {

void* pack_buffer() {
  struct Free {
    void operator()(void* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  thread_local std::unique_ptr<void, Free> buffer(::operator new (kPackBytes, std::align_val_t{64}));
  return buffer.get();
}

template <class T>
void copy_matrix(int64_t rows, int64_t cols, StridedMatrix<const T> from, StridedMatrix<T> to) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) to.data[i * to.rs + j * to.cs] = from.data[i * from.rs + j * from.cs];
}

template <class T>
void scale(const MatrixProduct<T>& g) {
  for (int64_t i = 0; i < g.m; ++i)
    for (int64_t j = 0; j < g.n; ++j) {
      T& c = g.c.data[i * g.c.rs + j * g.c.cs];
      T v = g.bias ? g.bias[j] : T{0};
      c = g.beta == T{0} ? v : static_cast<T>(v + g.beta * c);
    }
}

// A stride of an axis of one element is arbitrary; make it harmless.
template <class T>
void tidy(MatrixProduct<T>& g) {
  if (g.k == 1) g.a.cs = 1, g.b.rs = g.n;
  if (g.m == 1) g.a.rs = g.k, g.c.rs = g.n;
  if (g.n == 1) g.b.cs = g.b.rs == 1 ? g.k : 1, g.c.cs = 1;
}

bool blas_layout(int64_t rows, int64_t cols, int64_t rs, int64_t cs, char* trans, int64_t* ld) {
  if (cs == 1 && (rs >= cols || rows == 1)) {
    *trans = 'N';
    *ld = std::max<int64_t>({rs, cols, 1});
    return true;
  }
  if (rs == 1 && (cs >= rows || cols == 1)) {
    *trans = 'T';
    *ld = std::max<int64_t>({cs, rows, 1});
    return true;
  }
  return false;
}

template <class T>
void run_own(const MatrixProduct<T>& g, int64_t i0, int64_t m, int64_t j0, int64_t n) {
  GemmArgs<T> args{m,
                   n,
                   g.k,
                   g.alpha,
                   g.a.data + i0 * g.a.rs,
                   g.a.rs,
                   g.a.cs,
                   g.b.data + j0 * g.b.cs,
                   g.b.rs,
                   g.b.cs,
                   g.beta,
                   g.c.data + i0 * g.c.rs + j0,
                   g.c.rs,
                   g.bias ? g.bias + j0 : nullptr,
                   pack_buffer,
                   g.finish.run,
                   g.finish.state,
                   i0,
                   j0,
                   g.row_sums && j0 == 0 ? g.row_sums + i0 : nullptr};
  if constexpr (std::is_same_v<T, float>)
    small_gemm().f32(args);
  else
    small_gemm().f64(args);
}

template <class T>
void own(const MatrixProduct<T>& g) {
  const double work = static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  const int threads = work < kParallelWork || omp_in_parallel() ? 1 : omp_get_max_threads();
  if (threads == 1) {
    run_own(g, 0, g.m, 0, g.n);
    return;
  }
  // Cut the longer side of c into runs of whole tiles.
  const bool rows = g.m >= g.n;
  const int64_t size = rows ? g.m : g.n, tile = rows ? 8 : 48;
  const int64_t step = ((size + threads - 1) / threads + tile - 1) / tile * tile;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t at = 0; at < size; at += step) {
    const int64_t count = std::min(step, size - at);
    if (rows)
      run_own(g, at, count, 0, g.n);
    else
      run_own(g, 0, g.m, at, count);
  }
}

// Where own kernels beat oneDNN's sgemm 2.6.3, as measured by benchmarks/micro/gemm_bench.cpp with AVX-512.
bool own_is_faster(const MatrixProduct<float>& g) {
  const int64_t work = g.m * g.n * g.k;
  if (small_gemm().vector_bytes < 32) return work <= 8 * 8 * 8;
  if (work <= 64 * 64 * 64 || g.m <= 4 || g.n <= 4) return true;
  // Each thread packs what it needs for itself, which wants rows enough to pay for it.
  const int64_t threads = omp_in_parallel() ? 1 : omp_get_max_threads();
  if (small_gemm().vector_bytes == 64 && (threads == 1 || std::max(g.m, g.n) >= 256 * threads)) {
    // sgemm leaves c to be read again by what follows.
    if (g.finish.run && (g.a.cs != 1 || g.b.cs != 1 || g.m * g.n >= 1 << 18)) return work <= int64_t{1} << 31;
    if (g.a.cs != 1) return work <= int64_t{1} << 29;
    if (g.b.cs != 1) return g.n <= 512 && work <= int64_t{1} << 29;
    if (work <= 128 * 128 * 128) return true;
  }
  if (g.b.cs == 1) return work <= 80 * 80 * 80;
  // b transposed: sgemm copies it with more effort than we do.
  if (g.a.cs != 1) return work <= 256 * 256 * 256;
  return (g.k >= 128 && (g.m <= 16 || g.n <= 16)) || (g.n <= 128 && work <= 192 * 192 * 192);
}

void add_bias(const MatrixProduct<float>& g) {
#pragma omp parallel for if (g.m * g.n > 65536) schedule(static)
  for (int64_t i = 0; i < g.m; ++i) {
    float* row = g.c.data + i * g.c.rs;
    for (int64_t j = 0; j < g.n; ++j) row[j] += g.bias[j];
  }
}

void finish_all(const Finish& finish, int64_t m, int64_t n) {
  if (finish.run)
    parallel_for(m, std::max<int64_t>(1, 65536 / n),
                 [&](int64_t begin, int64_t end) { finish.run(finish.state, begin, end - begin, 0, n); });
}

template <class T>
void sum_rows(const MatrixProduct<T>& g) {
  for (int64_t i = 0; i < g.m; ++i) g.row_sums[i] = T{0};
  for (int64_t p = 0; p < g.k; ++p)
    for (int64_t i = 0; i < g.m; ++i) g.row_sums[i] += g.a.data[i * g.a.rs + p * g.a.cs];
}

// Pre: m, n, k >= 1.
template <class T>
void run(MatrixProduct<T> g) {
  tidy(g);
  if ((g.finish.run || g.row_sums) && (g.c.cs != 1 || (g.m > 1 && g.c.rs < g.n))) {
    if (g.row_sums) sum_rows(g);
    const Finish finish = std::exchange(g.finish, {});
    g.row_sums = nullptr;
    run(g);
    finish_all(finish, g.m, g.n);
    return;
  }
  if (g.c.cs != 1 && g.c.rs == 1 && !g.bias) {
    std::swap(g.m, g.n);
    std::swap(g.a, g.b);
    std::swap(g.a.rs, g.a.cs);
    std::swap(g.b.rs, g.b.cs);
    std::swap(g.c.rs, g.c.cs);
  } else if (g.n == 1 && g.c.rs == 1 && g.m > 1 && !g.bias && !g.finish.run && !g.row_sums && g.a.rs == 1) {
    // a^T x with a's columns contiguous: as a row, it is a sum of rows.
    g = {1, g.m, g.k, g.alpha, g.beta, {g.b.data, g.k, g.b.rs}, {g.a.data, g.a.cs, 1}, {g.c.data, g.m, 1}, nullptr};
  }
  if (g.c.cs != 1 || (g.m > 1 && g.c.rs < g.n)) {
    Scratch block(to_size(g.m * g.n) * sizeof(T));
    StridedMatrix<T> c{block.as<T>(), g.n, 1};
    if (g.beta != T{0}) copy_matrix(g.m, g.n, StridedMatrix<const T>{g.c.data, g.c.rs, g.c.cs}, c);
    StridedMatrix<T> target = g.c;
    g.c = c;
    run(g);
    copy_matrix(g.m, g.n, StridedMatrix<const T>{c.data, c.rs, c.cs}, target);
    return;
  }
  if (g.a.cs != 1 && g.a.rs != 1) {
    Scratch block(to_size(g.m * g.k) * sizeof(T));
    StridedMatrix<T> a{block.as<T>(), g.k, 1};
    copy_matrix(g.m, g.k, g.a, a);
    g.a = {a.data, a.rs, a.cs};
    run(g);
    return;
  }
  if constexpr (std::is_same_v<T, float>) {
    if (!own_is_faster(g)) {
      char ta, tb;
      int64_t lda, ldb;
      if (!blas_layout(g.m, g.k, g.a.rs, g.a.cs, &ta, &lda)) {
        Scratch block(to_size(g.m * g.k) * sizeof(T));
        copy_matrix(g.m, g.k, g.a, StridedMatrix<T>{block.as<T>(), g.k, 1});
        g.a = {block.as<T>(), g.k, 1};
        run(g);
        return;
      }
      if (!blas_layout(g.k, g.n, g.b.rs, g.b.cs, &tb, &ldb)) {
        Scratch block(to_size(g.k * g.n) * sizeof(T));
        copy_matrix(g.k, g.n, g.b, StridedMatrix<T>{block.as<T>(), g.n, 1});
        g.b = {block.as<T>(), g.n, 1};
        run(g);
        return;
      }
      // A transposed a is read a column a step: long ones lose the first cache, most of all at a stride of whole pages.
      const int64_t run = ta == 'N' || g.k < 512 ? g.k : lda % 1024 == 0 ? 128 : 256;
      for (int64_t p = 0; p < g.k; p += run) {
        const int64_t k = std::min(run, g.k - p);
        dnnl_status_t status = dnnl_sgemm(ta, tb, g.m, g.n, k, g.alpha, g.a.data + p * g.a.cs, lda,
                                          g.b.data + p * g.b.rs, ldb, p ? 1.0f : g.beta, g.c.data, g.c.rs);
        HOLON_CHECK(status == dnnl_success, "sgemm of {} x {} x {} failed with status {}.", g.m, g.n, k,
                    static_cast<int>(status));
      }
      if (g.bias) add_bias(g);
      if (g.row_sums) sum_rows(g);
      finish_all(g.finish, g.m, g.n);
      return;
    }
  }
  own(g);
}

// Integers: sums wrap around, which unsigned arithmetic is allowed to do.
template <class T>
void run_integer(const MatrixProduct<T>& g) {
  using U = std::conditional_t<std::is_same_v<T, bool>, uint8_t,
                               std::make_unsigned_t<std::conditional_t<std::is_same_v<T, bool>, int8_t, T>>>;
  const int threads =
      static_cast<double>(g.m) * g.n * g.k < kParallelWork || omp_in_parallel() ? 1 : omp_get_max_threads();
  Scratch block(to_size(g.n) * sizeof(U) * to_size(threads));
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < g.m; ++i) {
    U* sums = block.as<U>() + g.n * omp_get_thread_num();
    for (int64_t j = 0; j < g.n; ++j) sums[j] = 0;
    for (int64_t p = 0; p < g.k; ++p) {
      const U x = static_cast<U>(g.a.data[i * g.a.rs + p * g.a.cs]);
      const T* b = g.b.data + p * g.b.rs;
      if constexpr (std::is_same_v<T, bool>) {
        if (x)
          for (int64_t j = 0; j < g.n; ++j) sums[j] |= static_cast<U>(b[j * g.b.cs]);
      } else if (g.b.cs == 1) {
        for (int64_t j = 0; j < g.n; ++j) sums[j] = static_cast<U>(sums[j] + x * static_cast<U>(b[j]));
      } else {
        for (int64_t j = 0; j < g.n; ++j) sums[j] = static_cast<U>(sums[j] + x * static_cast<U>(b[j * g.b.cs]));
      }
    }
    for (int64_t j = 0; j < g.n; ++j) {
      T& c = g.c.data[i * g.c.rs + j * g.c.cs];
      if constexpr (std::is_same_v<T, bool>) {
        c = (g.alpha && sums[j]) || (g.bias && g.bias[j]) || (g.beta && c);
      } else {
        U v = static_cast<U>(static_cast<U>(g.alpha) * sums[j]);
        if (g.bias) v = static_cast<U>(v + static_cast<U>(g.bias[j]));
        if (g.beta != 0) v = static_cast<U>(v + static_cast<U>(g.beta) * static_cast<U>(c));
        c = static_cast<T>(v);
      }
    }
  }
}

}  // namespace

template <class T>
void run_product(const MatrixProduct<T>& g) {
  if (g.m == 0 || g.n == 0) return;
  if constexpr (std::is_floating_point_v<T>) {
    if (g.k == 0) {
      scale(g);
      if (g.row_sums) std::fill_n(g.row_sums, g.m, T{0});
      finish_all(g.finish, g.m, g.n);
    } else {
      run(g);
    }
  } else {
    run_integer(g);
  }
}

template void run_product(const MatrixProduct<bool>&);
template void run_product(const MatrixProduct<uint8_t>&);
template void run_product(const MatrixProduct<int8_t>&);
template void run_product(const MatrixProduct<int32_t>&);
template void run_product(const MatrixProduct<int64_t>&);
template void run_product(const MatrixProduct<float>&);
template void run_product(const MatrixProduct<double>&);

}  // namespace holon::kernels
