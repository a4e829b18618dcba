#include "holon/kernels/conv.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <utility>

#include "holon/base/error.h"
#include "holon/base/hash.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/onednn.h"
#include "holon/kernels/cpu/scratch.h"
#include "holon/kernels/device.h"
#include "holon/kernels/gemm.h"
#include "holon/kernels/half.h"
#include "holon/kernels/tree.h"

namespace holon::kernels {

namespace {

using dnnl::memory;
using onednn::at;
using onednn::engine;
using onednn::run;
using onednn::strided;
using onednn::type_of;

enum class Kind : int64_t { kForward, kForwardBias, kData, kWeights, kWeightsBias, kReorder };

// Everything that a primitive depends on. The number of threads is fixed when a primitive is made.
struct Key {
  int64_t v[32] = {};
  bool operator==(const Key& o) const { return std::memcmp(v, o.v, sizeof v) == 0; }
};
struct KeyHash {
  size_t operator()(const Key& k) const { return hash_bytes(k.v, sizeof k.v); }
};

struct Entry {
  dnnl::primitive primitive;
  memory::desc weights;   // the layout that the primitive wants
  memory::desc from, to;  // of a reorder
};

// A pure cache, one per thread, since primitives are not to be shared while they run. When it is full it starts again.
Entry& cached(const Key& key, Entry (*make)(const Key&)) {
  constexpr size_t kMost = 256;
  thread_local std::unordered_map<Key, Entry, KeyHash> cache;
  if (auto it = cache.find(key); it != cache.end()) return it->second;
  Entry entry = make(key);
  if (cache.size() >= kMost) cache.clear();
  return cache.emplace(key, std::move(entry)).first->second;
}

// Key of a reorder between two strided layouts: axes, sizes, strides from, strides to, dtype.
Entry make_reorder(const Key& key) {
  const int n = static_cast<int>(key.v[2]);
  const memory::data_type type = type_of(static_cast<DType>(key.v[3 + 3 * n]));
  Entry e;
  e.from = strided(key.v + 3, key.v + 3 + n, n, type);
  e.to = strided(key.v + 3, key.v + 3 + 2 * n, n, type);
  e.primitive = dnnl::reorder(dnnl::reorder::primitive_desc(engine(), e.from, engine(), e.to));
  return e;
}

void copy_layout(const Array& from, Array& to) {
  if (from.numel() == 0) return;
  Key key;
  key.v[0] = static_cast<int64_t>(Kind::kReorder), key.v[1] = omp_get_max_threads(), key.v[2] = from.ndim();
  const int n = from.ndim();
  for (int i = 0; i < n; ++i)
    key.v[3 + i] = from.shape[i], key.v[3 + n + i] = from.strides[i], key.v[3 + 2 * n + i] = to.strides[i];
  key.v[3 + 3 * n] = static_cast<int64_t>(from.dtype);
  bool broadcast = false;
  for (int i = 0; i < n; ++i) broadcast |= from.strides[i] == 0 && from.shape[i] > 1;
  if (broadcast) {  // oneDNN knows no stride of 0
    copy(from, to);
    return;
  }
  Entry& e = cached(key, make_reorder);
  run(e.primitive, {{DNNL_ARG_FROM, at(e.from, from.bytes())}, {DNNL_ARG_TO, at(e.to, to.bytes())}});
}

struct Problem {
  memory::data_type type;
  memory::dims x, w, out, bias, stride, dilation, before, after;
};

constexpr int kMaxSpatial = 3;
enum Field {
  kN = 2,
  kC,
  kO,
  kGroups,
  kSpatial,  // how many axes; the others' fields are 0
  kIn,
  kKernel = kIn + kMaxSpatial,
  kOut = kKernel + kMaxSpatial,
  kStride = kOut + kMaxSpatial,
  kDilation = kStride + kMaxSpatial,
  kPadding = kDilation + kMaxSpatial,
  kType = kPadding + 2 * kMaxSpatial,
  kFields
};
static_assert(kFields <= 32);

Key problem_key(Kind kind, const Array& x, const Array& w, const Array& out, const Conv2d& conv) {
  Key k;
  const int n = x.ndim() - 2;
  k.v[0] = static_cast<int64_t>(kind), k.v[1] = omp_get_max_threads();
  k.v[kN] = x.shape[0], k.v[kC] = x.shape[1], k.v[kO] = w.shape[0], k.v[kGroups] = conv.groups, k.v[kSpatial] = n;
  k.v[kType] = static_cast<int64_t>(x.dtype);
  for (int i = 0; i < n; ++i) {
    k.v[kIn + i] = x.shape[2 + i], k.v[kKernel + i] = w.shape[2 + i], k.v[kOut + i] = out.shape[2 + i];
    k.v[kStride + i] = conv.stride[i], k.v[kDilation + i] = conv.dilation[i] - 1;
    k.v[kPadding + i] = conv.padding[i], k.v[kPadding + n + i] = conv.padding[n + i];
  }
  return k;
}

Problem problem_of(const Key& k) {
  const int64_t* v = k.v;
  const int64_t n = v[kSpatial];
  Problem p;
  p.type = type_of(static_cast<DType>(v[kType]));
  auto with = [&](memory::dims first, int field) {
    first.insert(first.end(), v + field, v + field + n);
    return first;
  };
  p.x = with({v[kN], v[kC]}, kIn);
  p.out = with({v[kN], v[kO]}, kOut);
  p.bias = {v[kO]};
  p.w = v[kGroups] == 1 ? with({v[kO], v[kC]}, kKernel)
                        : with({v[kGroups], v[kO] / v[kGroups], v[kC] / v[kGroups]}, kKernel);
  p.stride = with({}, kStride);
  p.dilation = with({}, kDilation);
  p.before = with({}, kPadding);
  p.after = with({}, static_cast<int>(kPadding + n));
  return p;
}

// The layout of activations: channels last.
memory::desc activations(const Problem& p, const memory::dims& dims) {
  return {dims, p.type, dims.size() == 4 ? memory::format_tag::nhwc : memory::format_tag::ndhwc};
}

Entry make_conv(const Key& key) {
  const Kind kind = static_cast<Kind>(key.v[0]);
  const Problem p = problem_of(key);
  const memory::desc x = activations(p, p.x), out = activations(p, p.out);
  const memory::desc w(p.w, p.type, memory::format_tag::any), bias(p.bias, p.type, memory::format_tag::x);
  const auto direct = dnnl::algorithm::convolution_direct;
  using Forward = dnnl::convolution_forward;
  const Forward::desc plain(dnnl::prop_kind::forward_training, direct, x, w, out, p.stride, p.dilation, p.before,
                            p.after);
  const Forward::desc with_bias(dnnl::prop_kind::forward_training, direct, x, w, bias, out, p.stride, p.dilation,
                                p.before, p.after);
  const Forward::primitive_desc forward(kind == Kind::kForwardBias || kind == Kind::kWeightsBias ? with_bias : plain,
                                        engine());
  Entry e;
  switch (kind) {
    case Kind::kData: {
      using Backward = dnnl::convolution_backward_data;
      const Backward::primitive_desc pd({direct, x, w, out, p.stride, p.dilation, p.before, p.after}, engine(),
                                        forward);
      e.primitive = Backward(pd);
      e.weights = pd.weights_desc();
      break;
    }
    case Kind::kWeights:
    case Kind::kWeightsBias: {
      using Backward = dnnl::convolution_backward_weights;
      const Backward::primitive_desc pd(
          kind == Kind::kWeights ? Backward::desc(direct, x, w, out, p.stride, p.dilation, p.before, p.after)
                                 : Backward::desc(direct, x, w, bias, out, p.stride, p.dilation, p.before, p.after),
          engine(), forward);
      e.primitive = Backward(pd);
      e.weights = pd.diff_weights_desc();
      break;
    }
    default: e.primitive = Forward(forward); e.weights = forward.weights_desc();
  }
  return e;
}

// The user's weights as oneDNN sees them: groups are an axis of their own.
memory::desc weights_desc(const Array& w, const Conv2d& conv) {
  const int64_t g = conv.groups;
  const int n = w.ndim();
  const memory::data_type type = type_of(w.dtype);
  if (g == 1) return strided(w.shape.begin(), w.strides.begin(), n, type);
  int64_t dims[kMaxSpatial + 3] = {g, w.shape[0] / g},
                             strides[kMaxSpatial + 3] = {w.shape[0] / g * w.strides[0], w.strides[0]};
  for (int i = 1; i < n; ++i) dims[1 + i] = w.shape[i], strides[1 + i] = w.strides[i];
  return strided(dims, strides, n + 1, type);
}

bool channels_last(const Array& x) {
  const Dims wanted = channels_last_strides(x.shape);
  for (int i = 0; i < x.ndim(); ++i)
    if (x.shape[i] != 1 && x.strides[i] != wanted[i]) return false;
  return true;
}

Array to_channels_last(const Array& x) {
  if (channels_last(x)) return x;
  Array y = Array::empty_strided(x.shape, channels_last_strides(x.shape), x.dtype);
  copy_layout(x, y);
  return y;
}

// Runs f on out, or on a channels-last block that is then copied to out.
template <class F>
void with_channels_last(Array& out, F&& f) {
  if (channels_last(out)) {
    f(out);
    return;
  }
  Array y = Array::empty_strided(out.shape, channels_last_strides(out.shape), out.dtype);
  f(y);
  copy_layout(y, out);
}

// A block with the values of w in the primitive's layout.
class Weights {
 public:
  Weights(const Array& w, const Conv2d& conv, const memory::desc& wanted)
      : user_(weights_desc(w, conv)),
        wanted_(wanted),
        same_(user_ == wanted),
        user_data_(w.bytes()),
        block_(same_ ? 0 : wanted.get_size()) {}
  memory inside() const { return at(wanted_, same_ ? user_data_ : block_.as<std::byte>()); }
  void read() const {
    if (!same_) reorder(at(user_, user_data_), inside());
  }
  void write() const {
    if (!same_) reorder(inside(), at(user_, user_data_));
  }

 private:
  static void reorder(memory from, memory to) {
    run(dnnl::reorder(from, to), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  }
  memory::desc user_, wanted_;
  bool same_;
  std::byte* user_data_;
  Scratch block_;
};

Array dense_bias(const Array& bias) {
  if (bias.strides[0] == 1 || bias.shape[0] <= 1) return bias;
  Array y = Array::empty(bias.shape, bias.dtype);
  copy(bias, y);
  return y;
}

void check(const Array& x, const Array& w, const Array* bias, const Conv2d& conv, const Array& out) {
  HOLON_CHECK((x.ndim() == 4 || x.ndim() == 5) && w.ndim() == x.ndim() && out.ndim() == x.ndim() && conv.groups >= 1 &&
                  x.shape[0] == out.shape[0] && x.shape[1] == w.shape[1] * conv.groups && w.shape[0] == out.shape[1] &&
                  w.shape[0] % conv.groups == 0 && x.dtype == w.dtype && x.dtype == out.dtype,
              "conv2d: {} {} with the weight {} {} in {} groups does not give {} {}.", name(x.dtype), x.shape,
              name(w.dtype), w.shape, conv.groups, name(out.dtype), out.shape);
  HOLON_CHECK(!bias || (bias->ndim() == 1 && bias->shape[0] == w.shape[0] && bias->dtype == w.dtype),
              "conv2d: a bias of shape {} does not fit the weight {}.", bias ? bias->shape : Dims{}, w.shape);
  const int n = x.ndim() - 2;
  for (int i = 0; i < n; ++i) {
    HOLON_CHECK(conv.stride[i] >= 1 && conv.dilation[i] >= 1, "conv2d: stride {} and dilation {}.", conv.stride[i],
                conv.dilation[i]);
    const int64_t size = conv_out_size(x.shape[2 + i], w.shape[2 + i], conv.stride[i], conv.padding[i],
                                       conv.padding[n + i], conv.dilation[i]);
    HOLON_CHECK(out.shape[2 + i] == size, "conv2d: the output has {} places along axis {}, not {}.", out.shape[2 + i],
                2 + i, size);
  }
}

// Whether the kernel has one pixel and there is no padding.
bool is_pointwise(const Array& w, const Conv2d& conv) {
  for (int i = 0; i < w.ndim() - 2; ++i)
    if (w.shape[2 + i] != 1 || conv.padding[i] || conv.padding[w.ndim() - 2 + i]) return false;
  return true;
}

// The pixels of x that a pointwise kernel with strides reads, as an input for strides of 1. oneDNN collects them by
// itself for the gradient of the weights, in a block of as many channels as there are, but writes whole vectors of them
// (its issue 6035; 2.6 and 3.x): where channels fill no vectors, the heap is overwritten.
Array pixels_read(const Array& x, const Array& dy, const Conv2d& conv) {
  Dims shape = x.shape, strides = x.strides;
  for (int i = 2; i < x.ndim(); ++i) shape[i] = dy.shape[i], strides[i] *= conv.stride[i - 2];
  if (shape == x.shape) return x;
  Array pixels = Array::empty_strided(shape, channels_last_strides(shape), x.dtype);
  copy(x.view(shape, strides), pixels);
  return pixels;
}

// dw[o, c] = the sum over pixels of dy[o] x[c]: a product of matrices with a row for each pixel. oneDNN would bring
// all three into blocks first, which takes longer than the product.
void pointwise_backward_weights(const Array& dy, const Array& x, Array& dw, Array* dbias) {
  const Array xs = to_channels_last(x), dys = to_channels_last(dy);
  const int64_t c = x.shape[1], o = dy.shape[1], pixels = x.numel() / c;
  Array by_outputs = dw.view({o, c}, {dw.strides[0], dw.strides[1]});
  linear_weight_grad(dys.view({pixels, o}, {o, 1}), xs.view({pixels, c}, {c, 1}), by_outputs, dbias);
}

void zero(Array& x) {
  const size_t size = size_bytes(x.dtype);
  const int last = x.ndim() - 1;
  for_each_row(x.shape, x.strides, [&](int64_t at) {
    for (int64_t i = 0; i < x.shape[last]; ++i)
      std::memset(x.bytes() + static_cast<int64_t>(size) * (at + i * x.strides[last]), 0, size);
  });
}

// False, with nothing done: a dtype or a case that oneDNN has no kernel for.
bool onednn_forward(const Array& x, const Array& w, const Array* bias, const Conv2d& conv, Array& out) {
  if (!onednn::computes(x.dtype) || x.numel() == 0 || w.numel() == 0) return false;
  try {
    const Key key = problem_key(bias ? Kind::kForwardBias : Kind::kForward, x, w, out, conv);
    const Problem p = problem_of(key);
    Entry e = cached(key, make_conv);
    Array source = to_channels_last(x), b;
    if (bias) b = dense_bias(*bias);
    Weights weights(w, conv, e.weights);
    weights.read();
    with_channels_last(out, [&](Array& y) {
      onednn::Arguments args = {{DNNL_ARG_SRC, at(activations(p, p.x), source.bytes())},
                                {DNNL_ARG_WEIGHTS, weights.inside()},
                                {DNNL_ARG_DST, at(activations(p, p.out), y.bytes())}};
      if (bias) args[DNNL_ARG_BIAS] = at({p.bias, p.type, memory::format_tag::x}, b.bytes());
      run(e.primitive, args);
    });
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

bool onednn_backward_data(const Array& dy, const Array& w, const Conv2d& conv, Array& dx) {
  // oneDNN fills vectors with input channels; with few of them a product is several times faster.
  const bool few = conv.groups == 1 && w.shape[1] <= 4 && w.shape[0] > 1;
  if (!onednn::computes(dx.dtype) || few) return false;
  try {
    const Key key = problem_key(Kind::kData, dx, w, dy, conv);
    const Problem p = problem_of(key);
    Entry e = cached(key, make_conv);
    Array source = to_channels_last(dy);
    Weights weights(w, conv, e.weights);
    weights.read();
    with_channels_last(dx, [&](Array& y) {
      run(e.primitive,
          {{DNNL_ARG_DIFF_DST, at(activations(p, p.out), source.bytes())},
           {DNNL_ARG_WEIGHTS, weights.inside()},
           {DNNL_ARG_DIFF_SRC, at(activations(p, p.x), y.bytes())}});
    });
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

bool onednn_backward_weights(const Array& dy, const Array& x, const Conv2d& conv, Array& dw, Array* dbias) {
  if (!onednn::computes(x.dtype)) return false;
  try {
    const Key key = problem_key(dbias ? Kind::kWeightsBias : Kind::kWeights, x, dw, dy, conv);
    const Problem p = problem_of(key);
    Entry e = cached(key, make_conv);
    Array source = to_channels_last(x), grad = to_channels_last(dy), b;
    if (dbias) b = dbias->strides[0] == 1 ? *dbias : Array::empty(dbias->shape, dbias->dtype);
    Weights weights(dw, conv, e.weights);
    onednn::Arguments args = {{DNNL_ARG_SRC, at(activations(p, p.x), source.bytes())},
                              {DNNL_ARG_DIFF_DST, at(activations(p, p.out), grad.bytes())},
                              {DNNL_ARG_DIFF_WEIGHTS, weights.inside()}};
    if (dbias) args[DNNL_ARG_DIFF_BIAS] = at({p.bias, p.type, memory::format_tag::x}, b.bytes());
    run(e.primitive, args);
    weights.write();
    if (dbias && dbias->strides[0] != 1) copy(b, *dbias);
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

}  // namespace

int64_t conv_out_size(int64_t size, int64_t kernel, int64_t stride, int64_t before, int64_t after, int64_t dilation) {
  const int64_t room = size + before + after - dilation * (kernel - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

void conv2d(const Array& x, const Array& w, const Array* bias, const Conv2d& conv, Array& out) {
  check(x, w, bias, conv, out);
  HOLON_ON_DEVICE(out, conv2d, x, w, bias, conv, out);
  if (adds_in_tree(out) && out.numel() != 0 && x.numel() != 0) return tree::conv2d(x, w, bias, conv, out);
  if (out.numel() == 0 || onednn_forward(x, w, bias, conv, out)) return;
  if (!is_half(x.dtype)) {
    conv2d_plain(x, w, bias, conv, out);
    return;
  }
  Array b;
  if (bias) b = to_float(*bias);
  Array y = Array::empty_strided(out.shape, channels_last_strides(out.shape), DType::kFloat32);
  conv2d(to_float(x), to_float(w), bias ? &b : nullptr, conv, y);
  from_float(y, out);
}

void conv2d_backward_data(const Array& dy, const Array& w, const Conv2d& conv, Array& dx) {
  check(dx, w, nullptr, conv, dy);
  HOLON_ON_DEVICE(dx, conv2d_backward_data, dy, w, conv, dx);
  if (dx.numel() == 0) return;
  if (dy.numel() == 0 || w.numel() == 0) {
    zero(dx);
    return;
  }
  if (adds_in_tree(dx)) return tree::conv2d_backward_data(dy, w, conv, dx);
  if (onednn_backward_data(dy, w, conv, dx)) return;
  if (!is_half(dx.dtype)) {
    conv2d_backward_data_plain(dy, w, conv, dx);
    return;
  }
  Array y = Array::empty_strided(dx.shape, channels_last_strides(dx.shape), DType::kFloat32);
  conv2d_backward_data(to_float(dy), to_float(w), conv, y);
  from_float(y, dx);
}

void conv2d_backward_weights(const Array& dy, const Array& x, const Conv2d& conv, Array& dw, Array* dbias) {
  check(x, dw, dbias, conv, dy);
  HOLON_ON_DEVICE(dw, conv2d_backward_weights, dy, x, conv, dw, dbias);
  if (dy.numel() == 0 || x.numel() == 0) {
    zero(dw);
    if (dbias) zero(*dbias);
    return;
  }
  if (adds_in_tree(dw)) {
    tree::conv2d_backward_weights(dy, x, conv, dw);
    if (dbias) tree::sum(dy, ~2u & ((1u << dy.ndim()) - 1), *dbias);
    return;
  }
  if (onednn::computes(x.dtype) && is_pointwise(dw, conv)) {
    const Array pixels = pixels_read(x, dy, conv);
    if (conv.groups == 1) {
      pointwise_backward_weights(dy, pixels, dw, dbias);
      return;
    }
    if (std::ranges::any_of(conv.stride, [](int64_t stride) { return stride > 1; })) {
      Conv2d dense = conv;
      std::ranges::fill(dense.stride, 1);
      conv2d_backward_weights(dy, pixels, dense, dw, dbias);
      return;
    }
  }
  if (onednn_backward_weights(dy, x, conv, dw, dbias)) return;
  if (!is_half(x.dtype)) {
    conv2d_backward_weights_plain(dy, x, conv, dw, dbias);
    return;
  }
  Array w = Array::empty(dw.shape, DType::kFloat32), b;
  if (dbias) b = Array::empty(dbias->shape, DType::kFloat32);
  conv2d_backward_weights(to_float(dy), to_float(x), conv, w, dbias ? &b : nullptr);
  from_float(w, dw);
  if (dbias) from_float(b, *dbias);
}

}  // namespace holon::kernels
