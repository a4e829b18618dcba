#if __has_include(<cudnn.h>) && __has_include(<cudnn_frontend.h>)
#include "cudnn_backend.h"

#include <cudnn.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "holon/array/dtype.h"

using holon::BFloat16;
using holon::Float16;

namespace {

void* real_library = nullptr;
template <class F>
F* real(F*, const char* name) {
  return reinterpret_cast<F*>(dlsym(real_library, name));
}
#define REAL(name) real(static_cast<decltype(&::name)>(nullptr), #name)

int run_count = 0, plan_count = 0;
cudnn_backend::Run last;

// As H100 and A100 describe themselves to cuDNN (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION).
std::string description() {
  const bool hopper = cudnn_backend::capability == 90;
  return std::string(R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
                     R"("warpSize":32,"maxSharedMemoryPerBlock":49152,"reservedSharedMemoryPerBlock":1024,)"
                     R"("maxRegistersPerSM":65536,"pciDeviceId":0,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
                     R"("maxThreadsPerSM":2048,"isTccDriver":0,"supportCoopLaunch":1,"totalGlobalMem":85029158912,)"
                     R"("cudaDeviceId":0,"driverVer":13000,)") +
      (hopper ? R"("deviceVer":900,"deviceName":"NVIDIA H100 80GB HBM3","multiProcessorCount":132,)"
                R"("maxSharedMemoryPerBlockOptin":232448,"l2CacheSize":52428800,"smClockRateKHz":1980000,)"
                R"("memClockRateKHz":2619000})"
              : R"("deviceVer":800,"deviceName":"NVIDIA A100-SXM4-80GB","multiProcessorCount":108,)"
                R"("maxSharedMemoryPerBlockOptin":166912,"l2CacheSize":41943040,"smClockRateKHz":1410000,)"
                R"("memClockRateKHz":1593000})");
}

// What a descriptor was told.
struct Node;
struct Attribute {
  std::vector<std::byte> bytes;
  std::vector<std::shared_ptr<Node>> nodes;
};
struct Node {
  cudnnBackendDescriptorType_t type;
  std::map<int, Attribute> told;
  std::shared_ptr<Node> graph;  // of a plan
  cudnnBackendDescriptor_t made = nullptr;

  bool has(int name) const { return told.contains(name); }
  template <class T>
  std::vector<T> all(int name) const {
    const auto found = told.find(name);
    if (found == told.end()) return {};
    std::vector<T> values(found->second.bytes.size() / sizeof(T));
    std::memcpy(values.data(), found->second.bytes.data(), values.size() * sizeof(T));
    return values;
  }
  template <class T>
  T one(int name) const {
    const auto values = all<T>(name);
    EXPECT_EQ(values.size(), 1u) << "attribute " << name << " of descriptor " << type;
    return values.empty() ? T{} : values[0];
  }
  const Node& node(int name) const {
    static const Node none{CUDNN_BACKEND_TENSOR_DESCRIPTOR, {}, {}, {}};
    const auto found = told.find(name);
    EXPECT_TRUE(found != told.end() && found->second.nodes.size() == 1) << "attribute " << name << " of " << type;
    return found == told.end() || found->second.nodes.empty() ? none : *found->second.nodes[0];
  }
};
std::map<cudnnBackendDescriptor_t, std::shared_ptr<Node>> nodes;
std::shared_ptr<Node> last_graph;

// A tensor's values, row by row.
struct Values {
  std::vector<int64_t> dims;
  std::vector<double> v;
  explicit Values(std::vector<int64_t> of = {}) : dims(std::move(of)) {
    v.resize(static_cast<size_t>(std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>())));
  }
};

double load(const void* p, cudnnDataType_t type, int64_t i) {
  switch (type) {
    case CUDNN_DATA_HALF: return static_cast<float>(static_cast<const Float16*>(p)[i]);
    case CUDNN_DATA_BFLOAT16: return static_cast<float>(static_cast<const BFloat16*>(p)[i]);
    case CUDNN_DATA_FLOAT: return static_cast<const float*>(p)[i];
    case CUDNN_DATA_DOUBLE: return static_cast<const double*>(p)[i];
    case CUDNN_DATA_INT32: return static_cast<const int32_t*>(p)[i];
    case CUDNN_DATA_INT64: return static_cast<double>(static_cast<const int64_t*>(p)[i]);
    default: ADD_FAILURE() << "a tensor of type " << type; return 0;
  }
}
void store(void* p, cudnnDataType_t type, int64_t i, double v) {
  switch (type) {
    case CUDNN_DATA_HALF: static_cast<Float16*>(p)[i] = Float16(static_cast<float>(v)); break;
    case CUDNN_DATA_BFLOAT16: static_cast<BFloat16*>(p)[i] = BFloat16(static_cast<float>(v)); break;
    case CUDNN_DATA_FLOAT: static_cast<float*>(p)[i] = static_cast<float>(v); break;
    case CUDNN_DATA_DOUBLE: static_cast<double*>(p)[i] = v; break;
    default: ADD_FAILURE() << "a result of type " << type;
  }
}

// The indices of element n.
std::vector<int64_t> indices(const std::vector<int64_t>& dims, size_t n) {
  std::vector<int64_t> at(dims.size());
  auto rest = static_cast<int64_t>(n);
  for (size_t a = dims.size(); a-- > 0; rest /= dims[a]) at[a] = rest % dims[a];
  return at;
}
// Where these indices into `from` are in an array of fewer elements along some axes: of 1, or one for a group of them.
size_t scaled(const std::vector<int64_t>& at, const std::vector<int64_t>& from, const std::vector<int64_t>& to) {
  int64_t n = 0;
  for (size_t a = 0; a < to.size(); ++a) n = n * to[a] + at[a] * to[a] / from[a];
  return static_cast<size_t>(n);
}

// The graph's values, by the tensors' numbers, and what it is told of where they are.
class Interpreter {
 public:
  explicit Interpreter(std::map<int64_t, void*> pointers) : pointers_(std::move(pointers)) {}

  void run(const Node& graph) {
    std::vector<std::shared_ptr<Node>> ops = graph.told.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes;
    // Operations may come in any order.
    while (!ops.empty()) {
      const auto ready = std::find_if(ops.begin(), ops.end(), [&](const auto& op) { return ready_for(*op); });
      ASSERT_TRUE(ready != ops.end()) << "operations wait for each other";
      do_one(**ready);
      ops.erase(ready);
    }
  }

 private:
  static std::vector<int> inputs_of(const Node& op) {
    switch (op.type) {
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
        return {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W};
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        return {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W};
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        return {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X};
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC};
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: return {CUDNN_ATTR_OPERATION_REDUCTION_XDESC};
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: return {CUDNN_ATTR_OPERATION_RESHAPE_XDESC};
      case CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR:
        return {CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC,
                CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC};
      default: ADD_FAILURE() << "an operation of type " << op.type; return {};
    }
  }
  static bool is_virtual(const Node& t) {
    return t.has(CUDNN_ATTR_TENSOR_IS_VIRTUAL) && t.one<uint8_t>(CUDNN_ATTR_TENSOR_IS_VIRTUAL) != 0;
  }
  bool ready_for(const Node& op) {
    for (const int name : inputs_of(op))
      if (op.has(name)) {
        const Node& t = op.node(name);
        if (is_virtual(t) && !values_.contains(t.one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID))) return false;
      }
    return true;
  }

  const Values& get(const Node& op, int name) {
    const Node& t = op.node(name);
    const auto id = t.one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    if (const auto found = values_.find(id); found != values_.end()) return found->second;
    Values x(t.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS));
    EXPECT_TRUE(pointers_.contains(id)) << "no address for tensor " << id;
    if (pointers_.contains(id)) {
      const void* from = pointers_.at(id);
      for (size_t n = 0; n < x.v.size(); ++n)
        x.v[n] = load(from, t.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE), place(t, x.dims, n));
    }
    return values_.emplace(id, std::move(x)).first->second;
  }
  void put(const Node& op, int name, Values x) {
    const Node& t = op.node(name);
    const auto id = t.one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    EXPECT_EQ(x.dims, t.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS));
    if (!is_virtual(t)) {
      ASSERT_TRUE(pointers_.contains(id)) << "no address for tensor " << id;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(pointers_.at(id)) % 16, 0u);
      for (size_t n = 0; n < x.v.size(); ++n)
        store(pointers_.at(id), t.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE), place(t, x.dims, n), x.v[n]);
    }
    values_.insert_or_assign(id, std::move(x));
  }
  static int64_t place(const Node& t, const std::vector<int64_t>& dims, size_t n) {
    const auto at = indices(dims, n), strides = t.all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    return std::inner_product(at.begin(), at.end(), strides.begin(), int64_t{0});
  }
  static Values like(const Node& op, int name) {
    return Values(op.node(name).all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS));
  }

  void do_one(const Node& op) {
    switch (op.type) {
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: return pointwise(op);
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: return matmul(op);
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: return reduce(op);
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: return reshape(op);
      case CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR: return sdpa(op);
      default: return convolution(op);
    }
  }

  void pointwise(const Node& op) {
    const Node& pw = op.node(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const auto mode = pw.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    const Values& x = get(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    const Values* b =
        op.has(CUDNN_ATTR_OPERATION_POINTWISE_BDESC) ? &get(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC) : nullptr;
    const Values* t =
        op.has(CUDNN_ATTR_OPERATION_POINTWISE_TDESC) ? &get(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC) : nullptr;
    Values y = like(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    for (size_t n = 0; n < y.v.size(); ++n) {
      const auto at = indices(y.dims, n);
      const double u = x.v[scaled(at, y.dims, x.dims)], w = b ? b->v[scaled(at, y.dims, b->dims)] : 0;
      switch (mode) {
        case CUDNN_POINTWISE_ADD: y.v[n] = u + w; break;
        case CUDNN_POINTWISE_SUB: y.v[n] = u - w; break;
        case CUDNN_POINTWISE_MUL: y.v[n] = u * w; break;
        case CUDNN_POINTWISE_DIV: y.v[n] = u / w; break;
        case CUDNN_POINTWISE_EXP: y.v[n] = std::exp(u); break;
        case CUDNN_POINTWISE_LOG: y.v[n] = std::log(u); break;
        case CUDNN_POINTWISE_IDENTITY: y.v[n] = u; break;
        case CUDNN_POINTWISE_CMP_GT: y.v[n] = u > w; break;
        case CUDNN_POINTWISE_CMP_GE: y.v[n] = u >= w; break;
        case CUDNN_POINTWISE_CMP_LT: y.v[n] = u < w; break;
        case CUDNN_POINTWISE_CMP_LE: y.v[n] = u <= w; break;
        case CUDNN_POINTWISE_LOGICAL_AND: y.v[n] = u != 0 && w != 0; break;
        case CUDNN_POINTWISE_GEN_INDEX:
          y.v[n] = static_cast<double>(at[static_cast<size_t>(pw.one<int64_t>(CUDNN_ATTR_POINTWISE_AXIS))]);
          break;
        case CUDNN_POINTWISE_BINARY_SELECT: y.v[n] = t->v[scaled(at, y.dims, t->dims)] != 0 ? u : w; break;
        default: FAIL() << "a pointwise operation of mode " << mode;
      }
    }
    put(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, std::move(y));
  }

  // Batches of which one side has fewer serve neighbours.
  void matmul(const Node& op) {
    const Values &a = get(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC), &b = get(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
    Values c = like(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    const size_t rows = c.dims.size() - 2;
    EXPECT_EQ(a.dims.back(), b.dims[rows]);
    for (size_t n = 0; n < c.v.size(); ++n) {
      const auto at = indices(c.dims, n);
      auto left = at, right = at, from_left = c.dims, from_right = c.dims;
      from_left[rows + 1] = from_right[rows] = a.dims.back();
      for (int64_t k = 0; k < a.dims.back(); ++k) {
        left[rows + 1] = right[rows] = k;
        c.v[n] += a.v[scaled(left, from_left, a.dims)] * b.v[scaled(right, from_right, b.dims)];
      }
    }
    put(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, std::move(c));
  }

  void reduce(const Node& op) {
    const Values& x = get(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
    Values y = like(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    const auto how =
        op.node(CUDNN_ATTR_OPERATION_REDUCTION_DESC).one<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR);
    EXPECT_TRUE(how == CUDNN_REDUCE_TENSOR_ADD || how == CUDNN_REDUCE_TENSOR_MAX);
    if (how == CUDNN_REDUCE_TENSOR_MAX) std::fill(y.v.begin(), y.v.end(), -INFINITY);
    for (size_t n = 0; n < x.v.size(); ++n) {
      double& to = y.v[scaled(indices(x.dims, n), x.dims, y.dims)];
      to = how == CUDNN_REDUCE_TENSOR_ADD ? to + x.v[n] : std::max(to, x.v[n]);
    }
    put(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, std::move(y));
  }

  // Other sizes and strides for the same elements, in memory's order: the frontend transposes so.
  void reshape(const Node& op) {
    const Values& x = get(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
    const Node &from = op.node(CUDNN_ATTR_OPERATION_RESHAPE_XDESC), &to = op.node(CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    std::map<int64_t, double> memory;
    for (size_t n = 0; n < x.v.size(); ++n) memory[place(from, x.dims, n)] = x.v[n];
    EXPECT_EQ(memory.size(), x.v.size());
    Values y = like(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    for (size_t n = 0; n < y.v.size(); ++n) {
      const auto found = memory.find(place(to, y.dims, n));
      ASSERT_TRUE(found != memory.end());
      y.v[n] = found->second;
    }
    put(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, std::move(y));
  }

  // One operation for all of it, without what hides keys.
  void sdpa(const Node& op) {
    const Values &q = get(op, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC), &k = get(op, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC),
                 &v = get(op, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC);
    const double scale =
        op.has(CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC) ? get(op, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC).v[0] : 1;
    Values out = like(op, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC), lse({q.dims[0], q.dims[1], q.dims[2], 1});
    const int64_t keys = k.dims[2], d = q.dims[3], e = v.dims[3];
    for (size_t n = 0; n < lse.v.size(); ++n) {
      const auto at = indices(lse.dims, n);
      auto row = [&](const Values& x, int64_t j) {
        return scaled({at[0], at[1], j, 0}, {q.dims[0], q.dims[1], keys, 1}, {x.dims[0], x.dims[1], keys, 1}) *
            static_cast<size_t>(x.dims[3]);
      };
      std::vector<double> p;
      for (int64_t j = 0; j < keys; ++j)
        p.push_back(scale *
                    std::inner_product(q.v.begin() + static_cast<int64_t>(n) * d,
                                       q.v.begin() + static_cast<int64_t>(n + 1) * d,
                                       k.v.begin() + static_cast<int64_t>(row(k, j)), 0.0));
      const double most = *std::max_element(p.begin(), p.end());
      double sum = 0;
      for (double& x : p) sum += x = std::exp(x - most);
      for (int64_t c = 0; c < e; ++c)
        for (int64_t j = 0; j < keys; ++j)
          out.v[n * static_cast<size_t>(e) + static_cast<size_t>(c)] +=
              p[static_cast<size_t>(j)] / sum * v.v[row(v, j) + static_cast<size_t>(c)];
      lse.v[n] = most + std::log(sum);
    }
    put(op, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, std::move(out));
    if (op.has(CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC))
      put(op, CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC, std::move(lse));
  }

  void convolution(const Node& op) {
    const bool forward = op.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
               data = op.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
    const int of_x = forward ? CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X
        : data               ? CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX
                             : CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X;
    const int of_w = forward ? CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W
        : data               ? CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W
                             : CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW;
    const int of_y = forward ? CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y
        : data               ? CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY
                             : CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY;
    const Node& c = op.node(forward    ? CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC
                                : data ? CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC
                                       : CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC);
    EXPECT_EQ(c.one<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE), CUDNN_CROSS_CORRELATION);
    EXPECT_EQ(c.one<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE),
              op.node(of_x).one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE) == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE
                                                                                                   : CUDNN_DATA_FLOAT);
    const auto before = c.all<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS),
               stride = c.all<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES),
               dilation = c.all<int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS);
    Values x = forward || !data ? get(op, of_x) : like(op, of_x), w = forward || data ? get(op, of_w) : like(op, of_w),
           y = forward ? like(op, of_y) : get(op, of_y);
    const int64_t of_group = w.dims[0] / (x.dims[1] / w.dims[1]);
    for (size_t n = 0; n < y.v.size(); ++n) {
      const auto out = indices(y.dims, n);
      for (int64_t i = 0; i < w.dims[1]; ++i)
        for (size_t tap = 0; tap < w.v.size() / static_cast<size_t>(w.dims[0] * w.dims[1]); ++tap) {
          std::vector<int64_t> filter = indices({w.dims.begin() + 2, w.dims.end()}, tap), in = out;
          filter.insert(filter.begin(), {out[1], i});
          in[1] = out[1] / of_group * w.dims[1] + i;
          bool inside = true;
          for (size_t a = 2; a < in.size(); ++a) {
            in[a] = out[a] * stride[a - 2] - before[a - 2] + filter[a] * dilation[a - 2];
            inside &= in[a] >= 0 && in[a] < x.dims[a];
          }
          if (!inside) continue;
          double &u = x.v[scaled(in, x.dims, x.dims)], &v = w.v[scaled(filter, w.dims, w.dims)];
          if (forward)
            y.v[n] += u * v;
          else
            data ? u += y.v[n]* v : v += y.v[n] * u;
        }
    }
    put(op, forward ? of_y : data ? of_x : of_w, forward ? y : data ? x : w);
  }

  std::map<int64_t, void*> pointers_;
  std::map<int64_t, Values> values_;
};

// The description of the device, as a descriptor.
cudnnBackendDescriptor_t properties() {
  static std::map<int, cudnnBackendDescriptor_t> made;
  cudnnBackendDescriptor_t& d = made[cudnn_backend::capability];
  if (d) return d;
  const std::string text = description();
  EXPECT_EQ(REAL(cudnnBackendCreateDescriptor)(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(REAL(cudnnBackendSetAttribute)(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                           static_cast<int64_t>(text.size()), text.data()),
            CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(REAL(cudnnBackendFinalize)(d), CUDNN_STATUS_SUCCESS);
  return d;
}
cudnnStatus_t set_properties(cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name) {
  cudnnBackendDescriptor_t d = properties();
  return REAL(cudnnBackendSetAttribute)(to, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d);
}

// What stands for the library's functions that need a device, and those that tell what it is told.
cudnnStatus_t create(cudnnHandle_t* h) {
  static int here;
  if (!cudnn_backend::why_not().empty()) return CUDNN_STATUS_NOT_INITIALIZED;
  // cuDNN finds what is loaded by its name.
  static void* const driver =
      dlopen("libcuda.so.1", RTLD_NOW) ? nullptr : dlopen(HOLON_TEST_DRIVER, RTLD_NOW | RTLD_GLOBAL);
  (void)driver;
  *h = reinterpret_cast<cudnnHandle_t>(&here);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t set_stream(cudnnHandle_t, cudaStream_t) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t get_stream(cudnnHandle_t, cudaStream_t* stream) {
  *stream = nullptr;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t create_descriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* d) {
  const cudnnStatus_t status = REAL(cudnnBackendCreateDescriptor)(type, d);
  if (status == CUDNN_STATUS_SUCCESS) nodes[*d] = std::make_shared<Node>(Node{type, {}, {}, *d});
  return status;
}
size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR: return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    default: return 4;  // enumerations
  }
}
cudnnStatus_t set_attribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  Node& node = *nodes.at(d);
  if (type == CUDNN_TYPE_HANDLE)
    return node.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR
        ? set_properties(d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP)
        : CUDNN_STATUS_SUCCESS;
  Attribute& told = node.told[name];
  told = {};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto* list = static_cast<const cudnnBackendDescriptor_t*>(values);
    for (int64_t i = 0; i < count; ++i)
      if (const auto found = nodes.find(list[i]); found != nodes.end()) told.nodes.push_back(found->second);
  } else {
    const auto* bytes = static_cast<const std::byte*>(values);
    told.bytes.assign(bytes, bytes + bytes_of(type) * static_cast<size_t>(count));
  }
  return REAL(cudnnBackendSetAttribute)(d, name, type, count, values);
}
cudnnStatus_t finalize(cudnnBackendDescriptor_t d) {
  const std::shared_ptr<Node> node = nodes.at(d);
  if (node->type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)
    if (const auto status = set_properties(d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP); status != CUDNN_STATUS_SUCCESS)
      return status;
  const cudnnStatus_t status = REAL(cudnnBackendFinalize)(d);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  if (node->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) last_graph = node;
  if (node->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) node->graph = last_graph, ++plan_count;
  return status;
}
// Notes of the engine that a plan is made with.
std::vector<int64_t> notes_of(cudnnBackendDescriptor_t plan) {
  cudnnBackendDescriptor_t config = nullptr, engine = nullptr;
  int64_t count = 0;
  auto make = REAL(cudnnBackendCreateDescriptor);
  auto get = REAL(cudnnBackendGetAttribute);
  make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config), make(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine);
  EXPECT_EQ(get(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &config),
            CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine),
            CUDNN_STATUS_SUCCESS);
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  EXPECT_EQ(get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
                &count, notes),
            CUDNN_STATUS_SUCCESS);
  std::vector<int64_t> found(notes, notes + count);
  REAL(cudnnBackendDestroyDescriptor)(engine), REAL(cudnnBackendDestroyDescriptor)(config);
  return found;
}
cudnnStatus_t execute(cudnnHandle_t, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  const Node &p = *nodes.at(plan), &given = *nodes.at(pack);
  const auto ids = given.all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = given.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  EXPECT_EQ(ids.size(), pointers.size());
  std::map<int64_t, void*> at;
  for (size_t i = 0; i < ids.size(); ++i) at[ids[i]] = pointers[i];
  last = {};
  last.numerical_notes = notes_of(plan);
  int64_t count = 0;
  EXPECT_EQ(REAL(cudnnBackendGetAttribute)(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                                           &last.workspace_bytes),
            CUDNN_STATUS_SUCCESS);
  last.workspace_given = given.one<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE) != nullptr;
  EXPECT_TRUE(last.workspace_given || last.workspace_bytes == 0);
  ++run_count;
  Interpreter(at).run(*p.graph);
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

namespace cudnn_backend {

std::string why_not() {
  if (!real_library) return "libcudnn.so.9 is not found";
  const size_t version = REAL(cudnnGetVersion)();
  return version < 90800 ? "cuDNN " + std::to_string(version) + " takes no description of a device" : "";
}
const Run& last_run() { return last; }
int runs() { return run_count; }
int plans() { return plan_count; }

}  // namespace cudnn_backend

// vendor_cudnn.cpp is compiled to look here: what needs a device is this file's, all else the library's own.
extern "C" void* holon_test_dlsym(void* library, const char* name) noexcept {
  if (std::strncmp(name, "cudnn", 5) == 0) real_library = library;
  static const std::map<std::string, void*> ours = {
      {"cudnnCreate", reinterpret_cast<void*>(&create)},
      {"cudnnSetStream", reinterpret_cast<void*>(&set_stream)},
      {"cudnnGetStream", reinterpret_cast<void*>(&get_stream)},
      {"cudnnBackendCreateDescriptor", reinterpret_cast<void*>(&create_descriptor)},
      {"cudnnBackendSetAttribute", reinterpret_cast<void*>(&set_attribute)},
      {"cudnnBackendFinalize", reinterpret_cast<void*>(&finalize)},
      {"cudnnBackendExecute", reinterpret_cast<void*>(&execute)},
  };
  void* theirs = dlsym(library, name);
  const auto found = ours.find(name);
  return theirs && found != ours.end() ? found->second : theirs;
}
#endif
