#include "holon/kernels/attention.h"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/kernels/attention_limits.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/attention_loops.h"
#include "holon/kernels/cpu/scratch.h"
#include "holon/kernels/cpu/small_gemm.h"
#include "holon/kernels/cpu/table.h"
#include "holon/kernels/device.h"
#include "holon/kernels/gemm.h"
#include "holon/kernels/half.h"
#include "holon/kernels/on_device.h"
#include "holon/kernels/tree.h"

namespace holon::kernels {

namespace detail {
template <>
struct Staged<const Attention&> {
  explicit Staged(const Attention& options) : copy(options) {
    copy.mask = host_copy(options.mask);
    copy.documents = host_copy(options.documents);
  }
  const Attention& get() { return copy; }
  Attention copy;
};
}  // namespace detail

namespace {

// Queries of one block: its scores (64 x 128) and sums stay in the first two caches.
constexpr int64_t kQueries = 64;
constexpr int64_t kKeys = kScoreStride;
// Products below which threads are not worth their start: 15 us of one.
constexpr double kThreadedWork = 1 << 16;
constexpr int64_t kFewReads = 4;
constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Sizes {
  int64_t b, h, t, s, d, e, g;
  int64_t share() const { return h / std::max<int64_t>(g, 1); }  // heads of q for one of k
};

Sizes check(const Array& q, const Array& k, const Array& v, const Array& out, const Array* lse, const Attention& o) {
  const Array &mask = o.mask, &documents = o.documents;
  HOLON_CHECK(q.ndim() == 4 && k.ndim() == 4 && v.ndim() == 4 && out.ndim() == 4, "attention: {}, {}, {} -> {}.",
              q.shape, k.shape, v.shape, out.shape);
  const Sizes n{q.shape[0], q.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3], k.shape[1]};
  const DType of_lse = q.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  HOLON_CHECK(k.shape == (Dims{n.b, n.g, n.s, n.d}) && v.shape == (Dims{n.b, n.g, n.s, n.e}) &&
                  (n.g ? n.h % n.g == 0 : n.h == 0) && out.shape == (Dims{n.b, n.h, n.t, n.e}) && k.dtype == q.dtype &&
                  v.dtype == q.dtype && out.dtype == q.dtype &&
                  (!lse || (lse->shape == (Dims{n.b, n.h, n.t}) && lse->dtype == of_lse)),
              "attention: q {}, k {}, v {} do not give out {}, lse {}.", q.shape, k.shape, v.shape, out.shape,
              lse ? lse->shape : Dims{});
  HOLON_CHECK(!documents.defined() ||
                  (documents.dtype == DType::kInt64 && documents.ndim() == 2 && documents.is_contiguous() &&
                   (documents.shape[0] == 1 || documents.shape[0] == n.b) &&
                   documents.shape[1] >= std::max(o.first_query + n.t, o.first_key + n.s)),
              "attention: documents {} {} for {} x {} scores from {} and {} on.", name(documents.dtype),
              documents.shape, out.shape, n.s, o.first_query, o.first_key);
  if (!mask.defined()) return n;
  const int64_t full[] = {n.b, n.h, n.t, n.s};
  bool fits = mask.ndim() == 4;
  for (int a = 0; a < 4 && fits; ++a) fits = mask.shape[a] == 1 || mask.shape[a] == full[a];
  HOLON_CHECK(fits, "attention: a mask {} for {} x {} scores.", mask.shape, out.shape, n.s);
  return n;
}

// One (image, head)'s part of a mask: elements of type T, with a stride of 0 along axes of size 1.
struct MaskHead {
  const std::byte* data = nullptr;
  int64_t row = 0, col = 0;
  bool is_bool = false;
  MaskHead(const Array& m, int64_t image, int64_t head) {
    if (!m.defined()) return;
    auto step = [&](int a) { return m.shape[a] == 1 ? 0 : m.strides[a]; };
    data = m.bytes() + (image * step(0) + head * step(1)) * static_cast<int64_t>(size_bytes(m.dtype));
    row = step(2), col = step(3), is_bool = m.dtype == DType::kBool;
  }
  // Whether the queries [i, i + rows) see none of the keys [j, j + keys), by a mask of bools.
  bool hides(int64_t i, int64_t rows, int64_t j, int64_t keys) const {
    if (!data || !is_bool) return false;
    for (int64_t r = i; r < i + rows; ++r) {
      const std::byte* p = data + r * row + j * col;
      if (col == 1 && std::memchr(p, 1, to_size(keys))) return false;
      for (int64_t c = 0; col != 1 && c < keys; ++c)
        if (p[c * col] != std::byte{0}) return false;
    }
    return true;
  }
  template <class T>
  void apply(T* s, int64_t i, int64_t j, int64_t keys) const {
    if (!data) return;
    if (is_bool) {
      const bool* p = reinterpret_cast<const bool*>(data) + i * row + j * col;
      for (int64_t c = 0; c < keys; ++c) s[c] = p[c * col] ? s[c] : -std::numeric_limits<T>::infinity();
    } else {
      const T* p = reinterpret_cast<const T*>(data) + i * row + j * col;
      if (col == 1)
        for (int64_t c = 0; c < keys; ++c) s[c] += p[c];
      else
        for (int64_t c = 0; c < keys; ++c) s[c] += p[c * col];
    }
  }
};

// What the window and the documents leave of an image's scores.
class Limits {
 public:
  enum class Sees : uint8_t { kNone, kSome, kAll };

  Limits(const Attention& o, int64_t image) : first_query_(o.first_query), first_key_(o.first_key), window_(o.window) {
    if (o.documents.defined())
      documents_ = o.documents.data<int64_t>() + (o.documents.shape[0] == 1 ? 0 : image * o.documents.strides[0]);
  }
  // Whether the queries [i, i + rows) see the keys [j, j + keys), apart from what causality hides.
  Sees block(int64_t i, int64_t rows, int64_t j, int64_t keys) const {
    const int64_t query = first_query_ + i, key = first_key_ + j;
    if (window_ && key + keys <= query + 1 - window_) return Sees::kNone;
    bool all = !window_ || key > query + rows - 1 - window_;
    if (documents_) {
      const auto [first, last] = std::minmax_element(documents_ + query, documents_ + query + rows);
      const auto [least, most] = std::minmax_element(documents_ + key, documents_ + key + keys);
      if (*last < *least || *most < *first) return Sees::kNone;
      all = all && *first == *most && *last == *least;
    }
    return all ? Sees::kAll : Sees::kSome;
  }
  // -inf to what query i does not see, in its scores of the keys [j, j + keys).
  template <class T>
  void apply(T* s, int64_t i, int64_t j, int64_t keys) const {
    constexpr T kHidden = -std::numeric_limits<T>::infinity();
    const int64_t query = first_query_ + i, key = first_key_ + j;
    if (window_) std::fill_n(s, std::clamp<int64_t>(query - window_ + 1 - key, 0, keys), kHidden);
    if (documents_)
      for (int64_t c = 0; c < keys; ++c) s[c] = documents_[key + c] == documents_[query] ? s[c] : kHidden;
  }
  // The first key that a query from i on sees, and the end of the queries that see one before `end`, of n.
  int64_t first_key(int64_t i) const {
    return window_ ? std::max<int64_t>(0, first_query_ + i - window_ + 1 - first_key_) : 0;
  }
  int64_t end_of_queries(int64_t end, int64_t n) const {
    return window_ ? std::clamp<int64_t>(first_key_ + end - 1 + window_ - first_query_, 0, n) : n;
  }

 private:
  const int64_t first_query_, first_key_, window_;
  const int64_t* documents_ = nullptr;
};

// Drops elements of rows of scores: the bits of a row begin at a group of their own, so that a row's draw depends on
// nothing but its number.
class Drop {
 public:
  Drop(const Attention& o, int64_t image, int64_t head)
      : o_(o),
        groups_((o.keys + 63) / 64),
        row_(((o.first_image + image) * o.heads + o.first_head + head) * o.queries + o.first_query) {
    numbers_.threshold = static_cast<uint64_t>(o.dropout * 4294967296.0 + 0.5);
    numbers_.a = o.dropout < 1 ? 1 / (1 - o.dropout) : 0;
  }
  explicit operator bool() const { return o_.dropout > 0; }
  // The bits for the keys [j, j + n) of query i; n <= kKeys.
  const uint32_t* bits(int64_t i, int64_t j, int64_t n) {
    const int64_t key = o_.first_key + j, first = key / 64, last = (key + n - 1) / 64;
    table().random_bits[0](o_.seed, o_.counter, static_cast<uint64_t>((row_ + i) * groups_ + first), last - first + 1,
                           bits_);
    return bits_ + key % 64;
  }
  template <class T>
  void row(const uint32_t* bits, const T* from, T* to, int64_t n) const {
    table().dropout[sizeof(T) == 8](bits, from, to, n, numbers_);
  }

 private:
  const Attention& o_;
  const int64_t groups_, row_;
  RandomNumbers numbers_;
  alignas(64) uint32_t bits_[kKeys + 64];
};

// The same values with adjacent elements of the last axis.
Array with_dense_rows(const Array& x) {
  if (x.strides[3] == 1 || x.shape[3] <= 1) return x;
  Array y = Array::empty(x.shape, x.dtype);
  if (is_half(x.dtype)) {
    copy(x, y);
    return y;
  }
  for_each_row(x.shape, x.strides, y.strides, [&](int64_t a, int64_t b) {
    for (int64_t i = 0; i < x.shape[3]; ++i) y.data<float>()[b + i] = x.data<float>()[a + i * x.strides[3]];
  });
  return y;
}

// One head of an array.
struct Head {
  float* data;
  int64_t row;
  Head(const Array& x, int64_t image, int64_t head)
      : data(x.data<float>() + image * x.strides[0] + head * x.strides[1]), row(x.strides[2]) {}
  // Of a half array: in float32, in the memory `numbers` of as many numbers as a head has.
  Head(const Array& x, int64_t image, int64_t head, float* numbers) : data(numbers), row(x.shape[3]) {
    const auto* from = reinterpret_cast<const uint16_t*>(x.bytes()) + image * x.strides[0] + head * x.strides[1];
    for (int64_t i = 0; i < x.shape[2]; ++i, from += x.strides[2], numbers += row) {
      if (x.dtype == DType::kFloat16) {
        small_gemm().half_to_float(from, numbers, row);
      } else {
        for (int64_t c = 0; c < row; ++c) numbers[c] = std::bit_cast<float>(static_cast<uint32_t>(from[c]) << 16);
      }
    }
  }
  float* at(int64_t i) const { return data + i * row; }
  MatrixView rows(int64_t i) const { return {at(i), row, 1}; }
};

// to[d, keys] (rows of kKeys) = from[keys, d]^T
void transpose(const float* from, int64_t row, int64_t keys, int64_t d, float* to) {
  constexpr int64_t kTile = 16;
  for (int64_t j0 = 0; j0 < keys; j0 += kTile)
    for (int64_t p0 = 0; p0 < d; p0 += kTile) {
      const int64_t j1 = std::min(keys, j0 + kTile), p1 = std::min(d, p0 + kTile);
      for (int64_t p = p0; p < p1; ++p)
        for (int64_t j = j0; j < j1; ++j) to[p * kKeys + j] = from[j * row + p];
    }
}

int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

// How many keys the first query of a block sees in a block of keys, and how that grows from row to row.
struct Visible {
  int64_t first, step;
};
Visible visible(const Attention& o, int64_t i, int64_t j) {
  return o.causal ? Visible{i + o.first_query - j - o.first_key + 1, 1} : Visible{kKeys, 0};
}
// The end of the keys that the queries before `end` see.
int64_t keys_seen(const Attention& o, int64_t end, int64_t s) {
  return o.causal ? std::clamp<int64_t>(end + o.first_query - o.first_key, 0, s) : s;
}

// f(image, head, the thread's scratch of `floats`): heads of k are shared out among the threads.
template <class F>
void over_heads(const Sizes& n, int64_t floats, F&& f) {
  const double work = static_cast<double>(n.b * n.h * n.t) * static_cast<double>(n.s * (n.d + n.e));
  const int threads = omp_in_parallel() || work < kThreadedWork
      ? 1
      : static_cast<int>(std::min<int64_t>(omp_get_max_threads(), std::max<int64_t>(n.b * n.g, 1)));
  floats = (floats + 15) / 16 * 16;
  Scratch block(to_size(floats * threads) * sizeof(float));
#pragma omp parallel for collapse(2) num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t image = 0; image < n.b; ++image)
    for (int64_t head = 0; head < n.g; ++head)
      f(image, head, block.as<float>() + (threads > 1 ? omp_get_thread_num() : 0) * floats);
}

// q and out: float32. k and v may be half: a head of them is converted at a time, which stays in the caches.
void forward(const Sizes& n, const Array& q, const Array& k, const Array& v, const Attention& o, Array& out,
             Array* lse) {
  const AttentionLoops& loops = attention_loops();
  const auto product = adds_in_tree(out) ? tree::gemm_one_leaf : gemm;
  const int64_t turned = blocks(n.s, kKeys) * n.d * kKeys, scores = kQueries * kKeys;
  const bool half = is_half(k.dtype);
  const int64_t key_numbers = half ? n.s * n.d : 0, value_numbers = half ? n.s * n.e : 0;
  const float scale = static_cast<float>(o.scale);
  const int64_t floats = turned + scores + kQueries * (n.e + 2) + key_numbers + value_numbers;
  over_heads(n, floats, [&](int64_t image, int64_t shared, float* scratch) {
    float *kt = scratch, *s = kt + turned, *max = s + scores, *sum = max + kQueries, *acc = sum + kQueries,
          *numbers = acc + kQueries * n.e;
    const Head hk = half ? Head(k, image, shared, numbers) : Head(k, image, shared),
               hv = half ? Head(v, image, shared, numbers + key_numbers) : Head(v, image, shared);
    // Keys that few blocks of queries read are read as they are: a copy of them is not worth its time.
    const bool copied = blocks(n.t, kQueries) * n.share() > kFewReads;
    for (int64_t j = 0; copied && j < n.s; j += kKeys)
      transpose(hk.at(j), hk.row, std::min(kKeys, n.s - j), n.d, kt + j * n.d);
    for (int64_t head = shared * n.share(); head < (shared + 1) * n.share(); ++head) {
      const Head hq(q, image, head), ho(out, image, head);
      const MaskHead mask(o.mask, image, head);
      const Limits limits(o, image);
      Drop drop(o, image, head);
      for (int64_t i = 0; i < n.t; i += kQueries) {
        const int64_t rows = std::min(kQueries, n.t - i);
        std::fill_n(max, rows, kNone);
        std::fill_n(sum, rows, 0.0f);
        std::fill_n(acc, rows * n.e, 0.0f);
        const int64_t seen = keys_seen(o, i + rows, n.s);
        for (int64_t j = limits.first_key(i) / kKeys * kKeys; j < seen; j += kKeys) {
          const int64_t keys = std::min(kKeys, seen - j);
          const Limits::Sees sees = limits.block(i, rows, j, keys);
          if (sees == Limits::Sees::kNone) continue;
          // The places of a cache that no token is in yet.
          if (mask.hides(i, rows, j, keys)) continue;
          const Visible see = visible(o, i, j);
          product(rows, keys, n.d, scale, hq.rows(i),
                  copied ? MatrixView{kt + j * n.d, kKeys, 1} : MatrixView{hk.at(j), 1, hk.row}, 0, s, kKeys, nullptr);
          if (mask.data)
            for (int64_t r = 0; r < rows; ++r) mask.apply(s + r * kKeys, i + r, j, keys);
          if (sees == Limits::Sees::kSome)
            for (int64_t r = 0; r < rows; ++r) limits.apply(s + r * kKeys, i + r, j, keys);
          loops.online_softmax(s, rows, keys, see.first, see.step, max, sum, acc, n.e);
          if (drop)
            for (int64_t r = 0; r < rows; ++r) drop.row(drop.bits(i + r, j, keys), s + r * kKeys, s + r * kKeys, keys);
          product(rows, n.e, keys, 1, {s, kKeys, 1}, hv.rows(j), 1, acc, n.e, nullptr);
        }
        for (int64_t r = 0; r < rows; ++r) {
          const float factor = sum[r] != 0 ? 1 / sum[r] : 0;
          float* to = ho.at(i + r);
          for (int64_t c = 0; c < n.e; ++c) to[c] = acc[r * n.e + c] * factor;
          if (lse)
            lse->data<float>()[image * lse->strides[0] + head * lse->strides[1] + (i + r) * lse->strides[2]] =
                sum[r] != 0 ? max[r] + std::log(sum[r]) : kNone;
        }
      }
    }
  });
}

void fill_zero(Array& x) {
  const size_t size = size_bytes(x.dtype);
  for_each_row(x.shape, x.strides, [&](int64_t at) {
    if (x.strides[3] == 1)
      std::memset(x.bytes() + static_cast<int64_t>(size) * at, 0, size * to_size(x.shape[3]));
    else
      for (int64_t i = 0; i < x.shape[3]; ++i)
        std::memset(x.bytes() + static_cast<int64_t>(size) * (at + i * x.strides[3]), 0, size);
  });
}

void backward(const Sizes& n, const Array& dout, const Array& q, const Array& k, const Array& v, const Array& out,
              const Array& lse, const Attention& o, Array& dq, Array& dk, Array& dv) {
  const AttentionLoops& loops = attention_loops();
  const auto product = adds_in_tree(dq) ? tree::gemm_one_leaf : gemm;
  const int64_t scores = kQueries * kKeys, bit_row = kKeys + 64;
  const float scale = static_cast<float>(o.scale);
  const int64_t dropped = o.dropout > 0 ? scores + kQueries * bit_row : 0;
  over_heads(n, (n.d + n.e) * kKeys + 2 * scores + 2 * n.t + dropped,
             [&](int64_t image, int64_t shared, float* scratch) {
               float *kt = scratch, *vt = kt + n.d * kKeys, *p = vt + n.e * kKeys, *dp = p + scores,
                     *delta = dp + scores, *sums = delta + n.t, *kept = sums + n.t;
               const Head hk(k, image, shared), hv(v, image, shared), hdk(dk, image, shared), hdv(dv, image, shared);
               for (int64_t head = shared * n.share(); head < (shared + 1) * n.share(); ++head) {
                 const Head hq(q, image, head), ho(out, image, head), hdo(dout, image, head), hdq(dq, image, head);
                 const MaskHead mask(o.mask, image, head);
                 const Limits limits(o, image);
                 Drop drop(o, image, head);
                 for (int64_t i = 0; i < n.t; ++i) {
                   float part[8] = {};
                   int64_t c = 0;
                   for (; c + 8 <= n.e; c += 8)
                     for (int64_t l = 0; l < 8; ++l) part[l] += hdo.at(i)[c + l] * ho.at(i)[c + l];
                   for (; c < n.e; ++c) part[0] += hdo.at(i)[c] * ho.at(i)[c];
                   delta[i] = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
                   sums[i] = lse.data<float>()[image * lse.strides[0] + head * lse.strides[1] + i * lse.strides[2]];
                 }
                 for (int64_t j = 0; j < n.s; j += kKeys) {
                   const int64_t keys = std::min(kKeys, n.s - j);
                   transpose(hk.at(j), hk.row, keys, n.d, kt);
                   transpose(hv.at(j), hv.row, keys, n.e, vt);
                   // The first block of queries that sees a key of this block.
                   const int64_t start =
                       o.causal ? std::max<int64_t>(0, j + o.first_key - o.first_query) / kQueries * kQueries : 0;
                   const int64_t end = limits.end_of_queries(j + keys, n.t);
                   for (int64_t i = start; i < end; i += kQueries) {
                     const int64_t rows = std::min(kQueries, n.t - i);
                     const Limits::Sees sees = limits.block(i, rows, j, keys);
                     if (sees == Limits::Sees::kNone) continue;
                     const Visible see = visible(o, i, j);
                     product(rows, keys, n.d, scale, hq.rows(i), {kt, kKeys, 1}, 0, p, kKeys, nullptr);
                     if (mask.data)
                       for (int64_t r = 0; r < rows; ++r) mask.apply(p + r * kKeys, i + r, j, keys);
                     if (sees == Limits::Sees::kSome)
                       for (int64_t r = 0; r < rows; ++r) limits.apply(p + r * kKeys, i + r, j, keys);
                     loops.probabilities(p, rows, keys, see.first, see.step, sums + i);
                     const float* seen = p;
                     // What is beyond the keys in dp is old, but finite, and is multiplied by a probability of 0.
                     if (keys < kKeys) std::fill_n(dp, rows * kKeys, 0.0f);
                     product(rows, keys, n.e, 1, hdo.rows(i), {vt, kKeys, 1}, 0, dp, kKeys, nullptr);
                     if (drop) {
                       for (int64_t r = 0; r < rows; ++r) {
                         const uint32_t* bits = drop.bits(i + r, j, keys);
                         drop.row(bits, p + r * kKeys, kept + r * kKeys, keys);
                         drop.row(bits, dp + r * kKeys, dp + r * kKeys, keys);
                       }
                       seen = kept;
                     }
                     product(keys, n.e, rows, 1, {seen, 1, kKeys}, hdo.rows(i), 1, hdv.at(j), hdv.row, nullptr);
                     loops.score_gradient(p, dp, rows, delta + i, scale);
                     product(rows, n.d, keys, 1, {dp, kKeys, 1}, hk.rows(j), 1, hdq.at(i), hdq.row, nullptr);
                     product(keys, n.d, rows, 1, {dp, 1, kKeys}, hq.rows(i), 1, hdk.at(j), hdk.row, nullptr);
                   }
                 }
               }
             });
}

// float64, for gradient checks: one row of scores at a time. f(image, head, head of k, query, keys, scores, draw)
template <class F>
void plain_rows(const Sizes& n, const Attention& o, const Array& q, const Array& k, F&& f) {
  std::vector<double> scores(to_size(n.s));
  auto at = [](const Array& x, int64_t a, int64_t b, int64_t c) {
    return x.data<double>() + a * x.strides[0] + b * x.strides[1] + c * x.strides[2];
  };
  for (int64_t a = 0; a < n.b; ++a)
    for (int64_t b = 0; b < n.h; ++b) {
      const int64_t g = b / n.share();
      const MaskHead mask(o.mask, a, b);
      const Limits limits(o, a);
      Drop drop(o, a, b);
      for (int64_t i = 0; i < n.t; ++i) {
        const int64_t keys = keys_seen(o, i + 1, n.s);
        for (int64_t j = 0; j < keys; ++j) {
          double sum = 0;
          for (int64_t c = 0; c < n.d; ++c) sum += at(q, a, b, i)[c * q.strides[3]] * at(k, a, g, j)[c * k.strides[3]];
          at_index(scores, j) = o.scale * sum;
        }
        mask.apply(scores.data(), i, 0, keys);
        limits.apply(scores.data(), i, 0, keys);
        f(a, b, g, i, keys, scores.data(), drop);
      }
    }
}

// to = from, dropped.
void drop_row(Drop& drop, int64_t i, int64_t keys, const double* from, double* to) {
  for (int64_t j = 0; j < keys; j += kKeys) {
    const int64_t n = std::min(kKeys, keys - j);
    drop.row(drop.bits(i, j, n), from + j, to + j, n);
  }
}

void forward_plain(const Sizes& n, const Array& q, const Array& k, const Array& v, const Attention& o, Array& out,
                   Array* lse) {
  plain_rows(n, o, q, k, [&](int64_t a, int64_t b, int64_t g, int64_t i, int64_t keys, double* s, Drop& drop) {
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t j = 0; j < keys; ++j) max = std::max(max, s[j]);
    const double base = std::isinf(max) && max < 0 ? 0 : max;
    for (int64_t j = 0; j < keys; ++j) sum += s[j] = std::exp(s[j] - base);
    if (drop) drop_row(drop, i, keys, s, s);
    for (int64_t c = 0; c < n.e; ++c) {
      double total = 0;
      for (int64_t j = 0; j < keys; ++j)
        total += s[j] * v.data<double>()[a * v.strides[0] + g * v.strides[1] + j * v.strides[2] + c * v.strides[3]];
      out.data<double>()[a * out.strides[0] + b * out.strides[1] + i * out.strides[2] + c * out.strides[3]] =
          sum != 0 ? total / sum : 0;
    }
    if (lse)
      lse->data<double>()[a * lse->strides[0] + b * lse->strides[1] + i * lse->strides[2]] = base + std::log(sum);
  });
}

void backward_plain(const Sizes& n, const Array& dout, const Array& q, const Array& k, const Array& v, const Array& out,
                    const Array& lse, const Attention& o, Array& dq, Array& dk, Array& dv) {
  auto at = [](const Array& x, int64_t a, int64_t b, int64_t i, int64_t c) -> double& {
    return x.data<double>()[a * x.strides[0] + b * x.strides[1] + i * x.strides[2] + c * x.strides[3]];
  };
  std::vector<double> keep(to_size(n.s), 1.0);
  plain_rows(n, o, q, k, [&](int64_t a, int64_t b, int64_t g, int64_t i, int64_t keys, double* s, Drop& drop) {
    const double sum = lse.data<double>()[a * lse.strides[0] + b * lse.strides[1] + i * lse.strides[2]];
    if (std::isinf(sum) && sum < 0) return;
    if (drop) {
      std::fill(keep.begin(), keep.end(), 1.0);
      drop_row(drop, i, keys, keep.data(), keep.data());
    }
    double delta = 0;
    for (int64_t c = 0; c < n.e; ++c) delta += at(dout, a, b, i, c) * at(out, a, b, i, c);
    for (int64_t j = 0; j < keys; ++j) {
      const double p = std::exp(s[j] - sum), factor = at_index(keep, j);
      double dp = 0;
      for (int64_t c = 0; c < n.e; ++c) {
        dp += at(dout, a, b, i, c) * at(v, a, g, j, c);
        at(dv, a, g, j, c) += p * factor * at(dout, a, b, i, c);
      }
      const double ds = p * (dp * factor - delta) * o.scale;
      for (int64_t c = 0; c < n.d; ++c) {
        at(dq, a, b, i, c) += ds * at(k, a, g, j, c);
        at(dk, a, g, j, c) += ds * at(q, a, b, i, c);
      }
    }
  });
}

[[noreturn]] void refuse(DType dtype) {
  fail_type("attention of {} is not defined; convert to float32 first.", name(dtype));
}

Array float_block(const Array& like) { return Array::empty(like.shape, DType::kFloat32); }

// The options with a mask of bools, or of what is computed in.
Attention with_mask(const Attention& o, DType compute) {
  Attention with = o;
  if (!o.mask.defined() || o.mask.dtype == DType::kBool || o.mask.dtype == compute) return with;
  with.mask = Array::empty(o.mask.shape, compute);
  copy(o.mask, with.mask);
  return with;
}

template <class T>
void join_rows(const Array& more, const Array& more_lse, Array& out, Array& lse) {
  auto at = [](const Array& x, int64_t a, int64_t b, int64_t i) {
    return x.data<T>() + a * x.strides[0] + b * x.strides[1] + i * x.strides[2];
  };
  for (int64_t a = 0; a < out.shape[0]; ++a)
    for (int64_t b = 0; b < out.shape[1]; ++b)
      for (int64_t i = 0; i < out.shape[2]; ++i) {
        T &sum = *at(lse, a, b, i), other = *at(more_lse, a, b, i);
        const T most = std::max(sum, other);
        if (std::isinf(other) && other < 0) continue;  // no key was seen: zeros
        const T joint = most + std::log(std::exp(sum - most) + std::exp(other - most));
        const T keep = std::exp(sum - joint), add = std::exp(other - joint);
        T* to = at(out, a, b, i);
        const T* from = at(more, a, b, i);
        for (int64_t c = 0; c < out.shape[3]; ++c) to[c] = to[c] * keep + from[c] * add;
        sum = joint;
      }
}

}  // namespace

Attention limits_as_mask(const Attention& o, const Array& q, const Array& k) {
  if (!o.window && !o.documents.defined()) return o;
  const Array given = on_device(o.mask, Device()), documents = on_device(o.documents, Device());
  Attention host = o, with = o;
  host.mask = given, host.documents = documents;
  host = with_mask(host, DType::kFloat32);
  with.window = 0, with.documents = {};
  const int64_t queries = q.shape[2], keys = k.shape[2];
  if (q.shape[0] * queries * keys == 0) return with;  // a mask may have no rows that the loops below could read
  Dims shape{documents.defined() ? documents.shape[0] : 1, 1, queries, keys};
  if (given.defined())
    for (int a : {0, 1}) shape[a] = std::max(shape[a], given.shape[a]);
  Array mask = Array::empty(shape, DType::kFloat32);
  std::fill_n(mask.data<float>(), mask.numel(), 0.0f);
  for (int64_t a = 0; a < shape[0]; ++a) {
    const Limits limits(host, a);
    for (int64_t b = 0; b < shape[1]; ++b) {
      const MaskHead head(host.mask, a, b);
      for (int64_t i = 0; i < queries; ++i) {
        float* row = mask.data<float>() + ((a * shape[1] + b) * queries + i) * keys;
        head.apply(row, i, 0, keys);
        limits.apply(row, i, 0, keys);
      }
    }
  }
  with.mask = on_device(mask, q.device);
  return with;
}

void attention(const Array& q, const Array& k, const Array& v, const Attention& given, Array& out, Array* lse) {
  const Sizes n = check(q, k, v, out, lse, given);
  if (!is_floating(q.dtype)) refuse(q.dtype);
  HOLON_ON_DEVICE(out, attention, q, k, v, given, out, lse);
  if (n.b * n.h * n.t == 0) return;
  const Attention o = with_mask(given, q.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32);
  if (q.dtype == DType::kFloat64) {
    forward_plain(n, q, k, v, o, out, lse);
  } else if (is_half(q.dtype)) {
    Array y = float_block(out);
    forward(n, with_dense_rows(to_float(q)), with_dense_rows(k), with_dense_rows(v), o, y, lse);
    from_float(y, out);
  } else if (out.strides[3] != 1 && n.e > 1) {
    Array y = float_block(out);
    attention(q, k, v, o, y, lse);
    copy(y, out);
  } else {
    forward(n, with_dense_rows(q), with_dense_rows(k), with_dense_rows(v), o, out, lse);
  }
}

void join_attention(const Array& more, const Array& more_lse, Array& out, Array& lse) {
  auto fits = [&](const Array& x, const Array& y) {
    return x.shape == y.shape && x.dtype == out.dtype && y.dtype == x.dtype;
  };
  HOLON_CHECK(out.ndim() == 4 && fits(more, out) && fits(more_lse, lse) &&
                  lse.shape == (Dims{out.shape[0], out.shape[1], out.shape[2]}) &&
                  (out.shape[3] <= 1 || (out.strides[3] == 1 && more.strides[3] == 1)),
              "join_attention: {} {} and {} join {} {} and {}.", name(more.dtype), more.shape, more_lse.shape,
              name(out.dtype), out.shape, lse.shape);
  HOLON_ON_DEVICE(out, join_attention, more, more_lse, out, lse);
  if (out.dtype == DType::kFloat64)
    join_rows<double>(more, more_lse, out, lse);
  else if (out.dtype == DType::kFloat32)
    join_rows<float>(more, more_lse, out, lse);
  else
    refuse(out.dtype);
}

void attention_backward(const Array& dout, const Array& q, const Array& k, const Array& v, const Array& out,
                        const Array& lse, const Attention& given, Array& dq, Array& dk, Array& dv) {
  const Sizes n = check(q, k, v, out, &lse, given);
  HOLON_CHECK(dout.shape == out.shape && dq.shape == q.shape && dk.shape == k.shape && dv.shape == v.shape &&
                  dout.dtype == q.dtype && dq.dtype == q.dtype && dk.dtype == q.dtype && dv.dtype == q.dtype,
              "attention_backward: dout {}, dq {}, dk {}, dv {} do not fit q {}, k {}, v {}.", dout.shape, dq.shape,
              dk.shape, dv.shape, q.shape, k.shape, v.shape);
  if (!is_floating(q.dtype)) refuse(q.dtype);
  HOLON_ON_DEVICE(dq, attention_backward, dout, q, k, v, out, lse, given, dq, dk, dv);
  const Attention o = with_mask(given, q.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32);
  bool dense = true;
  for (const Array* x : {&dq, &dk, &dv}) dense = dense && (x->strides[3] == 1 || x->shape[3] <= 1);
  if (is_half(q.dtype) || (q.dtype == DType::kFloat32 && !dense)) {
    const bool half = is_half(q.dtype);
    Array fq = float_block(dq), fk = float_block(dk), fv = float_block(dv);
    attention_backward(half ? to_float(dout) : dout, half ? to_float(q) : q, half ? to_float(k) : k,
                       half ? to_float(v) : v, half ? to_float(out) : out, lse, o, fq, fk, fv);
    copy(fq, dq), copy(fk, dk), copy(fv, dv);
    return;
  }
  fill_zero(dq), fill_zero(dk), fill_zero(dv);
  if (n.b * n.h * n.t * n.s == 0) return;
  if (q.dtype == DType::kFloat64)
    backward_plain(n, dout, q, k, v, out, lse, o, dq, dk, dv);
  else
    backward(n, with_dense_rows(dout), with_dense_rows(q), with_dense_rows(k), with_dense_rows(v), with_dense_rows(out),
             lse, o, dq, dk, dv);
}

}  // namespace holon::kernels
