#include "holon/kernels/cpu/gemm_bf16.h"

#include <omp.h>

#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "holon/base/hash.h"
#include "holon/kernels/cpu/onednn.h"
#include "holon/kernels/half.h"

namespace holon::kernels {

namespace {

using dnnl::memory;
using onednn::at;
using onednn::engine;

// Below this (m * n * k) the primitive's set-up takes longer than the product.
constexpr double kLeastWork = 1 << 15;

// The axes, sizes and strides of a, b and out, whether there is a bias, and the number of threads.
struct Key {
  int64_t v[24] = {};
  bool operator==(const Key& o) const { return std::memcmp(v, o.v, sizeof v) == 0; }
};
struct KeyHash {
  size_t operator()(const Key& k) const { return hash_bytes(k.v, sizeof k.v); }
};

// Rows or columns in order, and no axis walked backwards or standing still.
bool plain(const Array& x) {
  const int n = x.ndim();
  for (int i = 0; i < n; ++i)
    if (x.shape[i] > 1 && x.strides[i] < 1) return false;
  return (x.strides[n - 1] == 1 && x.strides[n - 2] >= x.shape[n - 1]) ||
      (x.strides[n - 2] == 1 && x.strides[n - 1] >= x.shape[n - 2]);
}

}  // namespace

bool matmul_bf16(const Array& a, const Array& b, const Array* bias, Array& out) {
  if (!onednn::computes(DType::kBFloat16) || out.dtype != DType::kBFloat16) return false;
  const int n = out.ndim();
  if ((n != 2 && n != 3) || a.ndim() != n || b.ndim() != n || out.numel() == 0) return false;
  const int64_t k = a.shape[n - 1];
  if (static_cast<double>(out.numel()) * static_cast<double>(k) < kLeastWork) return false;
  if (n == 3 && (a.shape[0] != out.shape[0] || b.shape[0] != out.shape[0])) return false;
  if (!plain(a) || !plain(b) || out.strides[n - 1] != 1 || !plain(out)) return false;
  Key key;
  key.v[0] = n, key.v[1] = bias != nullptr, key.v[2] = omp_get_max_threads();
  for (int i = 0; i < n; ++i) {
    const Array* arrays[] = {&a, &b, &out};
    for (int j = 0; j < 3; ++j)
      key.v[3 + 6 * j + i] = arrays[j]->shape[i], key.v[6 + 6 * j + i] = arrays[j]->strides[i];
  }
  auto desc_of = [n](const Dims& sizes, const Dims& strides, DType dtype) {
    return onednn::strided(sizes.begin(), strides.begin(), n, onednn::type_of(dtype));
  };
  const memory::desc da = desc_of(a.shape, a.strides, DType::kBFloat16),
                     db = desc_of(b.shape, b.strides, DType::kBFloat16),
                     dc = desc_of(out.shape, out.strides, DType::kBFloat16);
  // One row for all, seen with as many axes as the product.
  Dims bias_shape = Dims::filled(n, 1);
  bias_shape.back() = out.shape[n - 1];
  const Dims bias_strides = contiguous_strides(bias_shape);
  const memory::desc dbias = bias ? desc_of(bias_shape, bias_strides, DType::kFloat32) : memory::desc();
  constexpr size_t kMost = 256;
  thread_local std::unordered_map<Key, dnnl::matmul, KeyHash> cache;
  auto it = cache.find(key);
  if (it == cache.end()) {
    try {
      dnnl::matmul made(dnnl::matmul::primitive_desc(
          bias ? dnnl::matmul::desc(da, db, dbias, dc) : dnnl::matmul::desc(da, db, dc), engine()));
      if (cache.size() >= kMost) cache.clear();
      it = cache.emplace(key, std::move(made)).first;
    } catch (const dnnl::error&) {  // a layout that it has no kernel for
      return false;
    }
  }
  onednn::Arguments args = {
      {DNNL_ARG_SRC, at(da, a.bytes())}, {DNNL_ARG_WEIGHTS, at(db, b.bytes())}, {DNNL_ARG_DST, at(dc, out.bytes())}};
  Array floats;
  if (bias) {
    floats = to_float(*bias);
    args[DNNL_ARG_BIAS] = at(dbias, floats.bytes());
  }
  onednn::run(it->second, args);
  return true;
}

}  // namespace holon::kernels
