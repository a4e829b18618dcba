// Convolutions by cuDNN 9, which is looked for at the first one: programs without it, and builds without its headers,
// run on the backend's own kernels.
#if __has_include(<cudnn.h>)
#include <cudnn.h>
#include <dlfcn.h>

#include <cstring>
#include <unordered_map>
#include <utility>

#include "holon/array/vendor_library.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/dnn.h"
#include "holon/kernels/cuda/stream.h"
#include "holon/kernels/half.h"
#include "holon/kernels/tf32.h"

namespace holon::kernels::cuda {
namespace {

// The most memory that an algorithm may ask for.
constexpr size_t kMostWorkspace = size_t{512} << 20;

// Formatted by hand: clang-format 14 does not settle on one layout of it.
// clang-format off
#define HOLON_CUDNN_FUNCTIONS(X) \
  X(cudnnGetVersion) \
  X(cudnnGetErrorString) \
  X(cudnnCreate) \
  X(cudnnSetStream) \
  X(cudnnCreateTensorDescriptor) \
  X(cudnnDestroyTensorDescriptor) \
  X(cudnnSetTensorNdDescriptor) \
  X(cudnnCreateFilterDescriptor) \
  X(cudnnDestroyFilterDescriptor) \
  X(cudnnSetFilterNdDescriptor) \
  X(cudnnCreateConvolutionDescriptor) \
  X(cudnnDestroyConvolutionDescriptor) \
  X(cudnnSetConvolutionNdDescriptor) \
  X(cudnnSetConvolutionGroupCount) \
  X(cudnnSetConvolutionMathType) \
  X(cudnnGetConvolutionForwardAlgorithm_v7) \
  X(cudnnGetConvolutionBackwardDataAlgorithm_v7) \
  X(cudnnGetConvolutionBackwardFilterAlgorithm_v7) \
  X(cudnnConvolutionForward) \
  X(cudnnConvolutionBackwardData) \
  X(cudnnConvolutionBackwardFilter)
// clang-format on

struct Library {
#define HOLON_CUDNN_MEMBER(f) decltype(&::f) f = nullptr;
  HOLON_CUDNN_FUNCTIONS(HOLON_CUDNN_MEMBER)
#undef HOLON_CUDNN_MEMBER
  bool there = false;
};

const Library& library() {
  static const Library loaded = [] {
    Library l;
    // cuDNN asks the loader for these by name, which knows what is loaded already.
    for (const char* part : {"libcublasLt", "libnvrtc"})
      vendor_library(fmt::format("{}.so.{}", part, CUDART_VERSION / 1000));
    void* handle = vendor_library("libcudnn.so.9").handle;
    if (!handle) return l;
    bool all = true;
#define HOLON_CUDNN_LOAD(f) all &= (l.f = reinterpret_cast<decltype(l.f)>(dlsym(handle, #f))) != nullptr;
    HOLON_CUDNN_FUNCTIONS(HOLON_CUDNN_LOAD)
#undef HOLON_CUDNN_LOAD
    l.there = all;
    return l;
  }();
  return loaded;
}

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS)
    fail(fmt::format("cuDNN reports {} at {}", library().cudnnGetErrorString(status), call).c_str());
}

// One for each thread and device, since its stream is the thread's. Never given back: the driver may be gone when
// threads end. nullptr: cuDNN is not there, or a part of it is not, or it does not go with the driver.
cudnnHandle_t find_handle() {
  struct Entry {
    cudnnHandle_t handle = nullptr;
    bool tried = false;
  };
  thread_local std::unordered_map<int, Entry> entries;
  Entry& e = entries[device_index()];
  if (!std::exchange(e.tried, true) && library().there && library().cudnnCreate(&e.handle) != CUDNN_STATUS_SUCCESS)
    e.handle = nullptr;
  return e.handle;
}
cudnnHandle_t handle() {
  const cudnnHandle_t h = find_handle();
  check(library().cudnnSetStream(h, stream()), "cudnnSetStream");
  return h;
}

enum class Kind : int32_t { kForward, kData, kWeights };

constexpr int kMostAxes = 5;
struct Key {
  int32_t kind, device, dtype, channels_last, tf32, axes, groups;
  int32_t x[kMostAxes], w[kMostAxes], y[kMostAxes], stride[3], padding[3], dilation[3];
  bool operator==(const Key& o) const { return std::memcmp(this, &o, sizeof o) == 0; }
};
static_assert(std::has_unique_object_representations_v<Key>);
struct KeyHash {
  size_t operator()(const Key& key) const { return hash_bytes(&key, sizeof key); }
};

struct Plan {
  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t w = nullptr;
  cudnnConvolutionDescriptor_t conv = nullptr;
  int algo = 0;
  size_t workspace = 0;
  bool possible = false;

  void clear() {
    const Library& l = library();
    for (auto* d : {&x, &y})
      if (*d) l.cudnnDestroyTensorDescriptor(std::exchange(*d, nullptr));
    if (w) l.cudnnDestroyFilterDescriptor(std::exchange(w, nullptr));
    if (conv) l.cudnnDestroyConvolutionDescriptor(std::exchange(conv, nullptr));
  }
};

cudnnDataType_t type_of(DType t) {
  switch (t) {
    case DType::kFloat16: return CUDNN_DATA_HALF;
    case DType::kBFloat16: return CUDNN_DATA_BFLOAT16;
    case DType::kFloat64: return CUDNN_DATA_DOUBLE;
    default: return CUDNN_DATA_FLOAT;
  }
}

cudnnTensorDescriptor_t tensor(const int32_t* sizes, const Key& key) {
  Dims shape;
  for (int i = 0; i < key.axes; ++i) shape.push_back(sizes[i]);
  const Dims dense = key.channels_last ? channels_last_strides(shape) : contiguous_strides(shape);
  int strides[kMostAxes];
  for (int i = 0; i < key.axes; ++i) strides[i] = static_cast<int>(dense[i]);
  cudnnTensorDescriptor_t d = nullptr;
  check(library().cudnnCreateTensorDescriptor(&d), "cudnnCreateTensorDescriptor");
  check(library().cudnnSetTensorNdDescriptor(d, type_of(static_cast<DType>(key.dtype)), key.axes, sizes, strides),
        "cudnnSetTensorNdDescriptor");
  return d;
}

// Those that transform windows, and so lose some bits of what a sum of products has.
bool transforms(cudnnConvolutionFwdAlgo_t a) {
  return a == CUDNN_CONVOLUTION_FWD_ALGO_FFT || a == CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING ||
      a == CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD || a == CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED;
}
bool transforms(cudnnConvolutionBwdDataAlgo_t a) {
  return a == CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT || a == CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING ||
      a == CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD || a == CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED;
}
bool transforms(cudnnConvolutionBwdFilterAlgo_t a) {
  return a == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT || a == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING ||
      a == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD || a == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED;
}

// The first that works within the memory, one with the same bits in every run before others. What is found holds for
// the kind of arithmetic that it names, which need not be the requested one. exact: neither tensor cores nor
// transforms.
template <class Perf>
void choose(const Perf* found, int count, bool exact, Plan& plan) {
  for (const bool deterministic : {true, false})
    for (int i = 0; i < count; ++i) {
      const Perf& f = found[i];
      if (f.status != CUDNN_STATUS_SUCCESS || f.memory > kMostWorkspace) continue;
      if (deterministic && f.determinism != CUDNN_DETERMINISTIC) continue;
      if (exact &&
          (f.mathType == CUDNN_TENSOR_OP_MATH || f.mathType == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION ||
           transforms(f.algo)))
        continue;
      if (!exact) check(library().cudnnSetConvolutionMathType(plan.conv, f.mathType), "cudnnSetConvolutionMathType");
      plan.algo = static_cast<int>(f.algo);
      plan.workspace = f.memory;
      plan.possible = true;
      return;
    }
}

void make_plan(const Key& key, Plan& plan) {
  const Library& l = library();
  const auto dtype = static_cast<DType>(key.dtype);
  plan.x = tensor(key.x, key);
  plan.y = tensor(key.y, key);
  check(l.cudnnCreateFilterDescriptor(&plan.w), "cudnnCreateFilterDescriptor");
  check(l.cudnnSetFilterNdDescriptor(plan.w, type_of(dtype), key.channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW,
                                     key.axes, key.w),
        "cudnnSetFilterNdDescriptor");
  check(l.cudnnCreateConvolutionDescriptor(&plan.conv), "cudnnCreateConvolutionDescriptor");
  check(l.cudnnSetConvolutionNdDescriptor(plan.conv, key.axes - 2, key.padding, key.stride, key.dilation,
                                          CUDNN_CROSS_CORRELATION,
                                          dtype == DType::kFloat64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT),
        "cudnnSetConvolutionNdDescriptor");
  check(l.cudnnSetConvolutionGroupCount(plan.conv, key.groups), "cudnnSetConvolutionGroupCount");
  const cudnnMathType_t math = is_half(dtype) ? CUDNN_TENSOR_OP_MATH : key.tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
  check(l.cudnnSetConvolutionMathType(plan.conv, math), "cudnnSetConvolutionMathType");
  const bool exact = math == CUDNN_FMA_MATH;
  constexpr int kMost = 16;
  int count = 0;
  switch (static_cast<Kind>(key.kind)) {
    case Kind::kForward: {
      cudnnConvolutionFwdAlgoPerf_t found[kMost];
      if (l.cudnnGetConvolutionForwardAlgorithm_v7(handle(), plan.x, plan.w, plan.conv, plan.y, kMost, &count, found) ==
          CUDNN_STATUS_SUCCESS)
        choose(found, count, exact, plan);
      break;
    }
    case Kind::kData: {
      cudnnConvolutionBwdDataAlgoPerf_t found[kMost];
      if (l.cudnnGetConvolutionBackwardDataAlgorithm_v7(handle(), plan.w, plan.y, plan.conv, plan.x, kMost, &count,
                                                        found) == CUDNN_STATUS_SUCCESS)
        choose(found, count, exact, plan);
      break;
    }
    case Kind::kWeights: {
      cudnnConvolutionBwdFilterAlgoPerf_t found[kMost];
      if (l.cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle(), plan.x, plan.y, plan.conv, plan.w, kMost, &count,
                                                          found) == CUDNN_STATUS_SUCCESS)
        choose(found, count, exact, plan);
      break;
    }
  }
}

// A pure cache, one for each thread. When it is full it starts again.
Plan& plan_of(const Key& key) {
  constexpr size_t kMost = 1024;
  thread_local std::unordered_map<Key, Plan, KeyHash> plans;
  if (auto found = plans.find(key); found != plans.end()) return found->second;
  if (plans.size() >= kMost) {
    for (auto& [k, p] : plans) p.clear();
    plans.clear();
  }
  Plan& plan = plans[key];
  make_plan(key, plan);
  return plan;
}

// False: the sizes are beyond cuDNN, or padding differs before and behind an axis.
bool key_of(Kind kind, const Array& x, const Array& w, const Array& y, const Conv2d& conv, bool channels_last,
            Key* key) {
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  std::memset(key, 0, sizeof *key);
  if (x.numel() > kMost || w.numel() > kMost || y.numel() > kMost) return false;
  const int n = x.ndim() - 2;
  key->kind = static_cast<int32_t>(kind);
  key->device = device_index();
  key->dtype = static_cast<int32_t>(x.dtype);
  key->channels_last = channels_last;
  key->tf32 = x.dtype == DType::kFloat32 && tf32_allowed(Tf32::kConvolutions);
  key->axes = x.ndim();
  key->groups = static_cast<int32_t>(conv.groups);
  for (int i = 0; i < x.ndim(); ++i) {
    key->x[i] = static_cast<int32_t>(x.shape[i]);
    key->w[i] = static_cast<int32_t>(w.shape[i]);
    key->y[i] = static_cast<int32_t>(y.shape[i]);
  }
  for (int i = 0; i < n; ++i) {
    if (conv.padding[i] != conv.padding[n + i]) return false;
    key->padding[i] = static_cast<int32_t>(conv.padding[i]);
    key->stride[i] = static_cast<int32_t>(conv.stride[i]);
    key->dilation[i] = static_cast<int32_t>(conv.dilation[i]);
  }
  return true;
}

bool lies_in(const Array& a, const Dims& strides) {
  for (int i = 0; i < a.ndim(); ++i)
    if (a.shape[i] != 1 && a.strides[i] != strides[i]) return false;
  return true;
}

// Sixteen bytes: what vectors of elements start at.
bool fits(const Array& a, const Dims& strides) {
  return lies_in(a, strides) && reinterpret_cast<uintptr_t>(a.bytes()) % 16 == 0;
}

Dims dense(const Dims& shape, bool channels_last) {
  return channels_last ? channels_last_strides(shape) : contiguous_strides(shape);
}

Array laid_out(const Array& a, bool channels_last) {
  const Dims strides = dense(a.shape, channels_last);
  if (fits(a, strides)) return a;
  Array y = Array::empty_strided(a.shape, strides, a.dtype, a.device);
  copy(a, y);
  return y;
}

// Runs f on out, or on an array of the layout that is then copied to it.
template <class F>
bool into(Array& out, bool channels_last, F&& f) {
  const Dims strides = dense(out.shape, channels_last);
  if (fits(out, strides)) return f(out);
  Array y = Array::empty_strided(out.shape, strides, out.dtype, out.device);
  if (!f(y)) return false;
  copy(y, out);
  return true;
}

// Activations are channels-last, except float64, which cuDNN does not have so.
bool wants_channels_last(const Array& activations) {
  return activations.dtype != DType::kFloat64 && lies_in(activations, channels_last_strides(activations.shape));
}

struct Factors {
  double one64 = 1, zero64 = 0;
  float one32 = 1, zero32 = 0;
  const void *one, *zero;
  explicit Factors(DType t)
      : one(t == DType::kFloat64 ? static_cast<const void*>(&one64) : &one32),
        zero(t == DType::kFloat64 ? static_cast<const void*>(&zero64) : &zero32) {}
  Factors(const Factors&) = delete;
};

// f(handle, plan, factors, workspace); false where cuDNN does not do it.
template <class F>
bool run(const Key& key, F&& f) {
  Plan& plan = plan_of(key);
  if (!plan.possible) return false;
  const Factors factors(static_cast<DType>(key.dtype));
  cudnnStatus_t status;
  if (plan.workspace) {
    const Scratch workspace(plan.workspace);
    status = f(handle(), plan, factors, workspace.data<void>());
  } else {
    status = f(handle(), plan, factors, nullptr);
  }
  if (status == CUDNN_STATUS_SUCCESS) return true;
  // Heuristics promise more than there is: what is refused has not begun.
  if (status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000 || status / 1000 == CUDNN_STATUS_BAD_PARAM / 1000)
    return plan.possible = false;
  check(status, "a convolution");
  return false;
}

}  // namespace

bool dnn_forward(const Array& x, const Array& w, const Conv2d& conv, Array& y) {
  const Library& l = library();
  const bool last = wants_channels_last(y);
  Key key;
  if (!find_handle() || !key_of(Kind::kForward, x, w, y, conv, last, &key) || !plan_of(key).possible) return false;
  const Array from = laid_out(x, last), filter = laid_out(w, last);
  return into(y, last, [&](Array& to) {
    return run(key, [&](cudnnHandle_t h, Plan& p, const Factors& f, void* workspace) {
      return l.cudnnConvolutionForward(h, f.one, p.x, from.bytes(), p.w, filter.bytes(), p.conv,
                                       static_cast<cudnnConvolutionFwdAlgo_t>(p.algo), workspace, p.workspace, f.zero,
                                       p.y, to.bytes());
    });
  });
}

bool dnn_backward_data(const Array& dy, const Array& w, const Conv2d& conv, Array& dx) {
  const Library& l = library();
  const bool last = wants_channels_last(dx);
  Key key;
  if (!find_handle() || !key_of(Kind::kData, dx, w, dy, conv, last, &key) || !plan_of(key).possible) return false;
  const Array from = laid_out(dy, last), filter = laid_out(w, last);
  return into(dx, last, [&](Array& to) {
    return run(key, [&](cudnnHandle_t h, Plan& p, const Factors& f, void* workspace) {
      return l.cudnnConvolutionBackwardData(h, f.one, p.w, filter.bytes(), p.y, from.bytes(), p.conv,
                                            static_cast<cudnnConvolutionBwdDataAlgo_t>(p.algo), workspace, p.workspace,
                                            f.zero, p.x, to.bytes());
    });
  });
}

bool dnn_backward_weights(const Array& dy, const Array& x, const Conv2d& conv, Array& dw) {
  const Library& l = library();
  const bool last = wants_channels_last(x) || wants_channels_last(dy);
  Key key;
  if (!find_handle() || !key_of(Kind::kWeights, x, dw, dy, conv, last, &key) || !plan_of(key).possible) return false;
  const Array inputs = laid_out(x, last), gradients = laid_out(dy, last);
  return into(dw, last, [&](Array& to) {
    return run(key, [&](cudnnHandle_t h, Plan& p, const Factors& f, void* workspace) {
      return l.cudnnConvolutionBackwardFilter(h, f.one, p.x, inputs.bytes(), p.y, gradients.bytes(), p.conv,
                                              static_cast<cudnnConvolutionBwdFilterAlgo_t>(p.algo), workspace,
                                              p.workspace, f.zero, p.w, to.bytes());
    });
  });
}

}  // namespace holon::kernels::cuda

#else

namespace holon::kernels::cuda {

bool dnn_forward(const Array&, const Array&, const Conv2d&, Array&) { return false; }
bool dnn_backward_data(const Array&, const Array&, const Conv2d&, Array&) { return false; }
bool dnn_backward_weights(const Array&, const Array&, const Conv2d&, Array&) { return false; }

}  // namespace holon::kernels::cuda
#endif
