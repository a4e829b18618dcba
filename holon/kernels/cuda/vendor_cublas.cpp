// Products by cuBLASLt. Its matrices are stored column by column, so it computes the transpose of the product,
// whose operands are the transposes of ours in exchanged order: nothing is moved for that.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/kernels/cuda/blas.h"
#include "holon/kernels/cuda/stream.h"

namespace holon::kernels::cuda {
namespace {

// What NVIDIA recommends for Hopper.
constexpr size_t kWorkspace = size_t{32} << 20;

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(fmt::format("cuBLAS reports {} at {}", cublasLtGetStatusName(status), call).c_str());
}

// One for each device, for all threads.
cublasLtHandle_t handle() {
  static std::array<cublasLtHandle_t, 64> handles{};
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  cublasLtHandle_t& h = at_index(handles, device_index());
  if (!h) check(cublasLtCreate(&h), "cublasLtCreate");
  return h;
}

cudaDataType_t type_of(DType t) {
  switch (t) {
    case DType::kFloat16: return CUDA_R_16F;
    case DType::kBFloat16: return CUDA_R_16BF;
    case DType::kFloat64: return CUDA_R_64F;
    default: return CUDA_R_32F;
  }
}

// Everything that the choice of an algorithm depends on.
struct Key {
  int64_t m, n, k, batch, lda, ldb, ldd, batch_a, batch_b, batch_d;
  int32_t flags, alignment;
  bool operator==(const Key& o) const { return std::memcmp(this, &o, sizeof o) == 0; }
};
static_assert(std::has_unique_object_representations_v<Key>);
struct KeyHash {
  size_t operator()(const Key& key) const { return hash_bytes(&key, sizeof key); }
};

struct Plan {
  cublasLtMatmulDescOpaque_t product{};
  cublasLtMatrixLayoutOpaque_t a{}, b{}, d{};
  cublasLtMatmulAlgo_t algo{};
  size_t workspace = 0;
  bool possible = false;
  cublasLtHandle_t handle = nullptr;
};

// The power of two, up to 256, that the address is a multiple of; its logarithm.
int alignment(const void* p) { return std::min(8, std::countr_zero(reinterpret_cast<uintptr_t>(p) | 256)); }

template <class T>
void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what, T value) {
  check(cublasLtMatmulDescSetAttribute(desc, what, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
}
template <class T>
void set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t what, T value) {
  check(cublasLtMatrixLayoutSetAttribute(layout, what, &value, sizeof value), "cublasLtMatrixLayoutSetAttribute");
}
template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t what, T value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
}

// rows x cols as cuBLASLt sees it.
void describe(cublasLtMatrixLayout_t layout, DType dtype, int64_t rows, int64_t cols, const Operand& o, int64_t batch) {
  if (o.transposed) std::swap(rows, cols);
  check(cublasLtMatrixLayoutInit(layout, type_of(dtype), static_cast<uint64_t>(rows), static_cast<uint64_t>(cols),
                                 o.ld),
        "cublasLtMatrixLayoutInit");
  if (batch == 1) return;
  set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batch));
  set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, o.batch_stride);
}

cublasLtEpilogue_t epilogue(const Product& p, bool bias) {
  // The library's A is our b.
  if (p.summed != Summed::kNone) return p.summed == Summed::kA ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BGRADA;
  switch (p.act) {
    case Act::kRelu: return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case Act::kGeluTanh: return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    default: return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
}

// The library's choice for what the plan's descriptors say. aligned: of a, b, c and d as they see them, in bytes.
void choose(Plan& plan, DType result, const std::array<uint32_t, 4>& aligned) {
  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
  set(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  // Parts of a sum are added up in float32 at least, and rounded once.
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  if (size_bytes(result) >= sizeof(float)) reductions |= CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  set(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned[0]);
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned[1]);
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, aligned[2]);
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned[3]);

  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(plan.handle, &plan.product, &plan.a, &plan.b, &plan.d,
                                                               &plan.d, &preference, 1, &found, &count);
  if (status == CUBLAS_STATUS_SUCCESS && count > 0 && found.state == CUBLAS_STATUS_SUCCESS) {
    plan.algo = found.algo;
    plan.workspace = found.workspaceSize;
    plan.possible = true;
  } else if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED &&
             status != CUBLAS_STATUS_INVALID_VALUE) {
    check(status, "cublasLtMatmulAlgoGetHeuristic");
  }
}

// False, with nothing done: the library refuses it, and the plan is not possible from here on.
bool run(Plan& plan, const void* alpha, const void* a, const void* b, const void* beta, const void* c, void* d) {
  auto with = [&](void* workspace) {
    return cublasLtMatmul(plan.handle, &plan.product, alpha, a, &plan.a, b, &plan.b, beta, c, &plan.d, d, &plan.d,
                          &plan.algo, workspace, plan.workspace, stream());
  };
  cublasStatus_t status;
  if (plan.workspace) {
    const Scratch workspace(plan.workspace);
    status = with(workspace.data<void>());
  } else {
    status = with(nullptr);
  }
  // The choice was a guess for some shapes; what it refuses it has not begun.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return plan.possible = false;
  check(status, "cublasLtMatmul");
  return true;
}

Plan make_plan(const Product& p, const Key& key, const void* bias) {
  Plan plan;
  plan.handle = handle();
  const bool wide = p.dtype == DType::kFloat64;
  const bool tf32 = p.tf32 && p.dtype == DType::kFloat32;  // of the two-byte ones into float32 there is no such product
  check(cublasLtMatmulDescInit(&plan.product,
                               wide       ? CUBLAS_COMPUTE_64F
                                   : tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                          : CUBLAS_COMPUTE_32F,
                               wide ? CUDA_R_64F : CUDA_R_32F),
        "cublasLtMatmulDescInit");
  set(&plan.product, CUBLASLT_MATMUL_DESC_TRANSA, p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(&plan.product, CUBLASLT_MATMUL_DESC_TRANSB, p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(&plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(p, bias != nullptr));
  if (bias) set(&plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  describe(&plan.a, p.dtype, p.n, p.k, p.b, p.batch);
  describe(&plan.b, p.dtype, p.k, p.m, p.a, p.batch);
  describe(&plan.d, p.result, p.n, p.m, p.d, p.batch);

  auto bytes = [&](int shift) { return uint32_t{1} << (key.alignment >> shift & 15); };
  choose(plan, p.result, {bytes(4), bytes(0), bytes(8), bytes(12)});
  return plan;
}

// For each thread: no locks on the way. When it is full it starts again.
class PlanCache {
 public:
  template <class F>
  Plan& of(const Key& key, F&& make) {
    constexpr size_t kMost = 4096;
    if (auto found = plans_.find(key); found != plans_.end()) return found->second;
    Plan plan = make();
    if (plans_.size() >= kMost) plans_.clear();
    return plans_.emplace(key, plan).first->second;
  }

 private:
  std::unordered_map<Key, Plan, KeyHash> plans_;
};

}  // namespace

bool product(const Product& p, const void* a, const void* b, const void* c, void* d, const void* bias, void* sums) {
  if (p.beta == 0) c = d;
  if (p.summed != Summed::kNone) bias = sums;  // the same attribute
  // Epilogues read a bias by vectors, or write it, and no preference speaks of its address.
  if (bias && alignment(bias) < 4) return false;
  const int aligned_d = std::min(alignment(d), bias ? alignment(bias) : 8);
  const Key key{p.m,
                p.n,
                p.k,
                p.batch,
                p.a.ld,
                p.b.ld,
                p.d.ld,
                p.a.batch_stride,
                p.b.batch_stride,
                p.d.batch_stride,
                static_cast<int32_t>(p.dtype) | static_cast<int32_t>(p.result) << 4 | static_cast<int32_t>(p.act) << 8 |
                    (bias != nullptr) << 10 | p.a.transposed << 11 | p.b.transposed << 12 | p.tf32 << 13 |
                    static_cast<int32_t>(p.summed) << 14 | device_index() << 16,
                alignment(a) | alignment(b) << 4 | alignment(c) << 8 | aligned_d << 12};
  thread_local PlanCache plans;
  Plan& plan = plans.of(key, [&] { return make_plan(p, key, bias); });
  if (!plan.possible) return false;
  if (bias) set(&plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  const float alpha32 = static_cast<float>(p.alpha), beta32 = static_cast<float>(p.beta);
  const bool wide = p.dtype == DType::kFloat64;
  const void* alpha = wide ? static_cast<const void*>(&p.alpha) : &alpha32;
  const void* beta = wide ? static_cast<const void*>(&p.beta) : &beta32;
  return run(plan, alpha, b, a, beta, c, d);
}

namespace {

cudaDataType_t float8_type(DType t) { return t == float8_e4m3fn ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2; }

// As all of our products it is the transpose's. The library has it for factors whose inner axis is together in memory:
// the first one is transposed as it sees them.
Plan make_scaled_plan(const ScaledProduct& p, const std::array<uint32_t, 4>& aligned) {
  Plan plan;
  plan.handle = handle();
  check(cublasLtMatmulDescInit(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit");
  set(&plan.product, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(&plan.product, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  auto init = [](cublasLtMatrixLayout_t layout, cudaDataType_t type, int64_t rows, int64_t cols) {
    check(cublasLtMatrixLayoutInit(layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), rows),
          "cublasLtMatrixLayoutInit");
  };
  init(&plan.a, float8_type(p.b), p.k, p.n);
  init(&plan.b, float8_type(p.a), p.k, p.m);
  init(&plan.d, type_of(p.result), p.n, p.m);
  choose(plan, p.result, aligned);
  return plan;
}

}  // namespace

const char* refusal_of(const ScaledProduct& p) {
  if (p.m % 16 || p.n % 16 || p.k % 16) return "sizes are not multiples of 16";
  if (p.a == float8_e5m2 && p.b == float8_e5m2) return "both factors are float8_e5m2";
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_index()), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_index()), "cudaDeviceGetAttribute");
  return major * 10 + minor < 89 ? "the device's compute capability is below 8.9" : nullptr;
}

const char* scaled_product(const ScaledProduct& p, const void* a, const void* b, const float* scale_a,
                           const float* scale_b, void* d) {
  if (std::min({alignment(a), alignment(b), alignment(d)}) < 4) return "an address is not a multiple of 16";
  const Key key{p.m,
                p.n,
                p.k,
                1,
                p.k,
                p.k,
                p.n,
                0,
                0,
                0,
                (p.a == float8_e5m2) | (p.b == float8_e5m2) << 1 | static_cast<int32_t>(p.result) << 4 |
                    device_index() << 16,
                alignment(a) | alignment(b) << 4 | alignment(d) << 8};
  auto bytes = [](const void* of) { return uint32_t{1} << alignment(of); };
  thread_local PlanCache plans;
  Plan& plan = plans.of(key, [&] { return make_scaled_plan(p, {bytes(b), bytes(a), bytes(d), bytes(d)}); });
  constexpr const char* kRefused = "the library has no algorithm for it";
  if (!plan.possible) return kRefused;
  set(&plan.product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale_b);
  set(&plan.product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale_a);
  const float one = 1, zero = 0;
  return run(plan, &one, b, a, &zero, d, d) ? nullptr : kRefused;
}

}  // namespace holon::kernels::cuda
