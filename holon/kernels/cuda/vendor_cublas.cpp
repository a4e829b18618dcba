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

cublasLtEpilogue_t epilogue(Act act, bool bias) {
  switch (act) {
    case Act::kRelu: return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case Act::kGeluTanh: return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    default: return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
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
  set(&plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(p.act, bias != nullptr));
  if (bias) set(&plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  describe(&plan.a, p.dtype, p.n, p.k, p.b, p.batch);
  describe(&plan.b, p.dtype, p.k, p.m, p.a, p.batch);
  describe(&plan.d, p.result, p.n, p.m, p.d, p.batch);

  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
  set(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  // Parts of a sum are added up in float32 at least, and rounded once.
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  if (size_bytes(p.result) >= sizeof(float)) reductions |= CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  set(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  auto bytes = [&](int shift) { return uint32_t{1} << (key.alignment >> shift & 15); };
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes(4));
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes(0));
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes(8));
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes(12));

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
  return plan;
}

// A pure cache, one for each thread: no locks on the way. When it is full it starts again.
Plan& plan_of(const Product& p, const Key& key, const void* bias) {
  constexpr size_t kMost = 4096;
  thread_local std::unordered_map<Key, Plan, KeyHash> plans;
  if (auto found = plans.find(key); found != plans.end()) return found->second;
  Plan plan = make_plan(p, key, bias);
  if (plans.size() >= kMost) plans.clear();
  return plans.emplace(key, plan).first->second;
}

}  // namespace

bool product(const Product& p, const void* a, const void* b, const void* c, void* d, const void* bias) {
  if (p.beta == 0) c = d;
  // Epilogues read a bias by vectors, and no preference speaks of its address.
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
                    device_index() << 16,
                alignment(a) | alignment(b) << 4 | alignment(c) << 8 | aligned_d << 12};
  Plan& plan = plan_of(p, key, bias);
  if (!plan.possible) return false;
  if (bias) set(&plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  const float alpha32 = static_cast<float>(p.alpha), beta32 = static_cast<float>(p.beta);
  const bool wide = p.dtype == DType::kFloat64;
  const void* alpha = wide ? static_cast<const void*>(&p.alpha) : &alpha32;
  const void* beta = wide ? static_cast<const void*>(&p.beta) : &beta32;
  auto run = [&](void* workspace) {
    return cublasLtMatmul(plan.handle, &plan.product, alpha, b, &plan.a, a, &plan.b, beta, c, &plan.d, d, &plan.d,
                          &plan.algo, workspace, plan.workspace, stream());
  };
  cublasStatus_t status;
  if (plan.workspace) {
    const Scratch workspace(plan.workspace);
    status = run(workspace.data<void>());
  } else {
    status = run(nullptr);
  }
  // The choice was a guess for some shapes; what it refuses it has not begun.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return plan.possible = false;
  check(status, "cublasLtMatmul");
  return true;
}

}  // namespace holon::kernels::cuda
