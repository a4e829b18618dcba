// Norms of gradients, and what clips and scales them, many tensors at once.
#include <vector>

#include "holon/array/device_runtime.h"
#include "holon/base/error.h"
#include "holon/kernels/cuda/tensor_lists.h"
#include "holon/kernels/optim.h"
#include "holon/kernels/update_rules.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

using namespace lists;
namespace rules = HOLON_ISA::rules;

template <class T, NormKind kind>
struct Norm {
  static constexpr bool kSum = kind != NormKind::kLargest && kind != NormKind::kSmallest;
  static constexpr int kFirst = 1, kWidth = 1;
  static constexpr uint32_t kWritten = 0;
  using Combine = std::conditional_t<kSum, Add, std::conditional_t<kind == NormKind::kLargest, Max, Min>>;
  T power;
  HOLON_FN static double nothing() { return kind == NormKind::kSmallest ? __builtin_inf() : 0; }
  __device__ __forceinline__ void operator()(T* x, T* sums) const {
    sums[0] = Combine()(sums[0], rules::norm_term<kind>(x[0], power));
  }
};

struct Row {
  const double* at;
  int64_t tensors;
  int ranks;
};
struct Rows {
  int count;
  Row row[kMostNormRows];
};

// to: the norm and the factor. One block.
template <class Combine>
__global__ void __launch_bounds__(kThreads)
    clip_by_rows(Rows rows, NormKind kind, double p, double limit, bool wide, double* to) {
  const double nothing = kind == NormKind::kSmallest ? __builtin_inf() : 0;
  const Combine combine;
  double all = nothing;
  for (int k = 0; k < rows.count; ++k) {
    const Row& row = rows.row[k];
    for (int64_t i = threadIdx.x; i < row.tensors; i += kThreads) {
      double one = nothing;
      for (int r = 0; r < row.ranks; ++r) one = combine(one, row.at[r * row.tensors + i]);
      all = combine(all, kind == NormKind::kCount ? static_cast<double>(one != 0) : one);
    }
  }
  all = block_reduce(all, nothing, combine);
  if (threadIdx.x != 0) return;
  const double norm = rules::norm_of_sum(kind, p, all);
  to[0] = norm;
  to[1] = rules::clip_factor(norm, limit, wide);
}

// not_finite is set to 1 where an element was not, if it is not null. there: where the factor is, if not null.
template <class T, bool clamped>
__global__ void __launch_bounds__(kThreads)
    scale_tensors(Table table, T factor, T low, T high, int* not_finite, const double* there) {
  if (there) {
    factor = static_cast<T>(*there);
    if (factor == T(1)) return;
  }
  bool finite = true;
  over_chunks(table, kUpdateChunk, [&](const Item& item, int64_t begin, int64_t end, uint32_t) {
    walk<T, 1>(item, 1, 1, begin, end, [&](T* x) {
      finite = finite && HOLON_ISA::f::is_finite(x[0]);
      x[0] = rules::scaled<clamped>(x[0], factor, low, high);
    });
  });
  if (not_finite && !finite) *not_finite = 1;  // whoever writes it writes the same
}

std::vector<Together> each(std::span<const Array> arrays, uint32_t written, const char* op) {
  std::vector<Together> all;
  all.reserve(arrays.size());
  for (const Array& a : arrays) all.push_back(Together({&a}, written, op));
  return all;
}

void norms_into(NormKind kind, double p, std::span<const Array> arrays, Array& sums) {
  use_device_of(sums);
  const std::vector<Together> all = each(arrays, 0, "norm");
  double* to = sums.data<double>();
  over_runs(
      all, [](auto&, auto&) { return true; },
      [&](auto zero, size_t begin, size_t end) {
        using T = decltype(zero);
        const T power = static_cast<T>(p);
        auto run = [&](auto norm) { launch_sums<T>(all, begin, end, norm, to); };
        switch (kind) {
          case NormKind::kSquares: return run(Norm<T, NormKind::kSquares>{power});
          case NormKind::kSum: return run(Norm<T, NormKind::kSum>{power});
          case NormKind::kPowers: return run(Norm<T, NormKind::kPowers>{power});
          case NormKind::kCount: return run(Norm<T, NormKind::kCount>{power});
          case NormKind::kLargest: return run(Norm<T, NormKind::kLargest>{power});
          case NormKind::kSmallest: return run(Norm<T, NormKind::kSmallest>{power});
        }
      });
}

void norms_of(NormKind kind, double p, std::span<const Array> arrays, std::span<double> sums) {
  HOLON_CHECK(sums.size() == arrays.size(), "{} sums of {} tensors", sums.size(), arrays.size());
  Array found = Array::empty({static_cast<int64_t>(sums.size())}, float64, arrays[0].device);
  cuda::norms_into(kind, p, arrays, found);
  device_runtime()->copy_to_host(found.device.index, sums.data(), found.bytes(), sums.size_bytes());
}

template <bool clamped>
void change_all(std::span<const Array> arrays, double factor, double low, double high, int* not_finite,
                const double* there = nullptr) {
  std::vector<Together> all = each(arrays, 1, "scale");
  for (size_t begin = 0, end; begin < all.size(); begin = end) {
    for (end = begin + 1; end < all.size() && all[begin].compute() == all[end].compute();) ++end;
    visit_compute(all[begin].compute(), [&](auto zero) {
      using T = decltype(zero);
      over_tables(all, begin, end, kUpdateChunk, [&](const Table& table, size_t) {
        launch(scale_tensors<T, clamped>, blocks_for(table.first[table.items], 1), kThreads, 0, table,
               static_cast<T>(factor), static_cast<T>(low), static_cast<T>(high), not_finite, there);
      });
    });
  }
  for (Together& t : all) t.finish();
}

void scale_all(std::span<const Array> arrays, double factor, bool* finite) {
  const cudaStream_t s = use_device_of(arrays[0]);
  if (!finite) return change_all<false>(arrays, factor, 0, 0, nullptr);
  const Scratch flag(sizeof(int));
  check(cudaMemsetAsync(flag.data<int>(), 0, sizeof(int), s), "cudaMemset");
  change_all<false>(arrays, factor, 0, 0, flag.data<int>());
  int found = 0;
  device_runtime()->copy_to_host(device_index(), &found, flag.data<int>(), sizeof found);
  *finite = found == 0;
}

void scale_by(std::span<const Array> arrays, const Array& factor) {
  use_device_of(factor);
  change_all<false>(arrays, 1, 0, 0, nullptr, factor.data<double>());
}

void clamp_all(std::span<const Array> arrays, double low, double high) {
  use_device_of(arrays[0]);
  change_all<true>(arrays, 1, low, high, nullptr);
}

void clip_factor(NormKind kind, double p, double limit, bool wide, std::span<const Array> rows, Array& result) {
  use_device_of(result);
  HOLON_CHECK(rows.size() <= kMostNormRows, "a norm of {} placements' gradients", rows.size());
  Rows given{};
  for (const Array& row : rows)
    given.row[given.count++] = {row.data<double>(), row.shape[1], static_cast<int>(row.shape[0])};
  auto run = [&](auto kernel) { launch(kernel, 1, kThreads, 0, given, kind, p, limit, wide, result.data<double>()); };
  switch (kind) {
    case NormKind::kLargest: return run(clip_by_rows<Max>);
    case NormKind::kSmallest: return run(clip_by_rows<Min>);
    default: return run(clip_by_rows<Add>);
  }
}

double squared_norm(const Array& a) {
  double sum = 0;
  cuda::norms_of(NormKind::kSquares, 2, {&a, 1}, {&sum, 1});
  return sum;
}

HOLON_DEVICE_KERNEL(norms_of, norms_of);
HOLON_DEVICE_KERNEL(norms_into, norms_into);
HOLON_DEVICE_KERNEL(clip_factor, clip_factor);
HOLON_DEVICE_KERNEL(scale_all, scale_all);
HOLON_DEVICE_KERNEL(scale_by, scale_by);
HOLON_DEVICE_KERNEL(clamp_all, clamp_all);
HOLON_DEVICE_KERNEL(squared_norm, squared_norm);

}  // namespace
}  // namespace holon::kernels::cuda
