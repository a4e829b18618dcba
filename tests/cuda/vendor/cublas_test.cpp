// Products as cuBLASLt is told of them. Its descriptors are the real ones; the product itself is done here, by nothing
// but what the library reads from them, column by column as its headers say.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "holon/kernels/cuda/blas.h"

using namespace holon;
using kernels::cuda::Act;
using kernels::cuda::Operand;
using kernels::cuda::Product;
using kernels::cuda::ScaledProduct;
using kernels::cuda::Summed;

namespace {

template <class T>
T get(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what) {
  T value{};
  size_t written = 0;
  EXPECT_EQ(cublasLtMatmulDescGetAttribute(desc, what, &value, sizeof value, &written), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(written, sizeof value);
  return value;
}
template <class T>
T get(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t what) {
  T value{};
  size_t written = 0;
  EXPECT_EQ(cublasLtMatrixLayoutGetAttribute(layout, what, &value, sizeof value, &written), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(written, sizeof value);
  return value;
}
template <class T>
T get(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t what) {
  T value{};
  size_t written = 0;
  EXPECT_EQ(cublasLtMatmulPreferenceGetAttribute(preference, what, &value, sizeof value, &written),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(written, sizeof value);
  return value;
}

struct Matrix {
  cudaDataType_t type;
  int64_t rows, cols, ld, batch_stride;
  int32_t batch;
  explicit Matrix(cublasLtMatrixLayout_t layout)
      : type(static_cast<cudaDataType_t>(get<uint32_t>(layout, CUBLASLT_MATRIX_LAYOUT_TYPE))),
        rows(static_cast<int64_t>(get<uint64_t>(layout, CUBLASLT_MATRIX_LAYOUT_ROWS))),
        cols(static_cast<int64_t>(get<uint64_t>(layout, CUBLASLT_MATRIX_LAYOUT_COLS))),
        ld(get<int64_t>(layout, CUBLASLT_MATRIX_LAYOUT_LD)),
        batch_stride(get<int64_t>(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)),
        batch(get<int32_t>(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)) {
    EXPECT_EQ(get<int32_t>(layout, CUBLASLT_MATRIX_LAYOUT_ORDER), CUBLASLT_ORDER_COL);
    EXPECT_GE(ld, rows);  // "currently only non-negative values are supported, must be large enough"
  }
  int64_t at(int64_t item, int64_t row, int64_t col) const { return item * batch_stride + row + col * ld; }
};

double float8(uint8_t bits, int mantissa, int bias) {
  const int exponent = (bits & 0x7f) >> mantissa, fraction = bits & ((1 << mantissa) - 1);
  const double v = exponent ? std::ldexp(1 + std::ldexp(fraction, -mantissa), exponent - bias)
                            : std::ldexp(fraction, 1 - bias - mantissa);
  return bits & 0x80 ? -v : v;
}

double load(const void* p, cudaDataType_t type, int64_t i) {
  switch (type) {
    case CUDA_R_8F_E4M3: return float8(static_cast<const uint8_t*>(p)[i], 3, 7);
    case CUDA_R_8F_E5M2: return float8(static_cast<const uint8_t*>(p)[i], 2, 15);
    case CUDA_R_16F: return static_cast<float>(static_cast<const Float16*>(p)[i]);
    case CUDA_R_16BF: return static_cast<float>(static_cast<const BFloat16*>(p)[i]);
    case CUDA_R_32F: return static_cast<const float*>(p)[i];
    case CUDA_R_64F: return static_cast<const double*>(p)[i];
    default: ADD_FAILURE() << "type " << type; return 0;
  }
}
void store(void* p, cudaDataType_t type, int64_t i, double v) {
  switch (type) {
    case CUDA_R_16F: static_cast<Float16*>(p)[i] = Float16(static_cast<float>(v)); break;
    case CUDA_R_16BF: static_cast<BFloat16*>(p)[i] = BFloat16(static_cast<float>(v)); break;
    case CUDA_R_32F: static_cast<float*>(p)[i] = static_cast<float>(v); break;
    case CUDA_R_64F: static_cast<double*>(p)[i] = v; break;
    default: ADD_FAILURE() << "type " << type;
  }
}

// The combinations that cublasLtMatmul() is documented for, of those that have an even chance to be asked for.
bool documented(cublasComputeType_t compute, cudaDataType_t scale, cudaDataType_t ab, cudaDataType_t cd) {
  const bool half = ab == CUDA_R_16F || ab == CUDA_R_16BF;
  switch (compute) {
    case CUBLAS_COMPUTE_32F:
      return scale == CUDA_R_32F && ((half && (cd == ab || cd == CUDA_R_32F)) || (ab == CUDA_R_32F && cd == ab));
    case CUBLAS_COMPUTE_32F_FAST_TF32: return scale == CUDA_R_32F && ab == CUDA_R_32F && cd == CUDA_R_32F;
    case CUBLAS_COMPUTE_64F: return scale == CUDA_R_64F && ab == CUDA_R_64F && cd == CUDA_R_64F;
    default: return false;
  }
}

bool is_float8(cudaDataType_t t) { return t == CUDA_R_8F_E4M3 || t == CUDA_R_8F_E5M2; }

// "To use FP8 kernels": what the documentation of cublasLtMatmul() asks for.
void expect_float8(cublasLtMatmulDesc_t desc, cublasComputeType_t compute, cudaDataType_t scale, const Matrix& A,
                   const Matrix& B, const Matrix& D) {
  EXPECT_TRUE(is_float8(A.type) && is_float8(B.type) && (A.type == CUDA_R_8F_E4M3 || B.type == CUDA_R_8F_E4M3));
  EXPECT_TRUE(D.type == CUDA_R_32F || D.type == CUDA_R_16BF || D.type == CUDA_R_16F);
  EXPECT_EQ(compute, CUBLAS_COMPUTE_32F);
  EXPECT_EQ(scale, CUDA_R_32F);
  EXPECT_EQ(get<int32_t>(desc, CUBLASLT_MATMUL_DESC_TRANSA), CUBLAS_OP_T);
  EXPECT_EQ(get<int32_t>(desc, CUBLASLT_MATMUL_DESC_TRANSB), CUBLAS_OP_N);
  for (const Matrix* x : {&A, &B, &D}) {
    EXPECT_EQ(x->rows % 16, 0);
    EXPECT_EQ(x->cols % 16, 0);
    EXPECT_EQ(x->ld % 16, 0);
  }
}

int products = 0;
constexpr size_t kWorkspace = 4096;

void expect_aligned(const void* p, uint64_t bytes, const char* what) {
  EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % bytes, 0u) << what << " was promised to lie at a multiple of " << bytes;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int here;
  *handle = reinterpret_cast<cublasLtHandle_t>(&here);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t* results, int* count) {
  EXPECT_GE(asked, 1);
  EXPECT_GE(get<uint64_t>(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES), kWorkspace);
  // What was added up in two bytes would be rounded several times.
  const auto type = static_cast<cudaDataType_t>(get<uint32_t>(d, CUBLASLT_MATRIX_LAYOUT_TYPE));
  const uint32_t wide = type == CUDA_R_32F || type == CUDA_R_64F ? CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE : 0;
  EXPECT_EQ(get<uint32_t>(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK),
            CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | wide);
  results[0] = {};
  const cublasLtMatmulPreferenceAttributes_t which[] = {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                                        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                                        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                                        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  for (int i = 0; i < 4; ++i) results[0].algo.data[i] = get<uint32_t>(preference, which[i]);
  results[0].algo.data[4] = get<uint32_t>(desc, CUBLASLT_MATMUL_DESC_EPILOGUE);
  results[0].workspaceSize = kWorkspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t) {
  EXPECT_NE(handle, nullptr);
  const Matrix A(a_layout), B(b_layout), C(c_layout), D(d_layout);
  const auto compute = static_cast<cublasComputeType_t>(get<int32_t>(desc, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE));
  const auto scale = static_cast<cudaDataType_t>(get<int32_t>(desc, CUBLASLT_MATMUL_DESC_SCALE_TYPE));
  EXPECT_EQ(C.type, D.type);
  double factor = 1;
  if (is_float8(A.type)) {
    expect_float8(desc, compute, scale, A, B, D);
    for (const void* p : {a, b, c, static_cast<const void*>(d)}) expect_aligned(p, 16, "a matrix");
    for (auto which : {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER})
      factor *= *get<const float*>(desc, which);
  } else {
    EXPECT_EQ(A.type, B.type);
    EXPECT_TRUE(documented(compute, scale, A.type, D.type))
        << compute << ' ' << scale << ' ' << A.type << ' ' << D.type;
  }
  EXPECT_EQ(get<int32_t>(desc, CUBLASLT_MATMUL_DESC_POINTER_MODE), CUBLASLT_POINTER_MODE_HOST);
  const bool turn_a = get<int32_t>(desc, CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T,
             turn_b = get<int32_t>(desc, CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_T;
  const int64_t m = D.rows, n = D.cols, k = turn_a ? A.rows : A.cols;
  EXPECT_EQ(turn_a ? A.cols : A.rows, m);
  EXPECT_EQ(turn_b ? B.cols : B.rows, k);
  EXPECT_EQ(turn_b ? B.rows : B.cols, n);
  EXPECT_EQ(C.rows, m);
  EXPECT_EQ(C.cols, n);
  EXPECT_EQ(C.ld, D.ld);
  for (const Matrix* x : {&A, &B, &C}) EXPECT_EQ(x->batch, D.batch);
  EXPECT_TRUE(D.batch == 1 || D.batch_stride >= n * D.ld - (D.ld - m));
  expect_aligned(a, algo->data[0], "A");
  expect_aligned(b, algo->data[1], "B");
  expect_aligned(c, algo->data[2], "C");
  expect_aligned(d, algo->data[3], "D");
  EXPECT_LE(algo->data[3], 256u);
  EXPECT_EQ(workspace_bytes, kWorkspace);
  expect_aligned(workspace, 16, "the workspace");  // 256 on a device: DeviceAllocator
  const uint32_t epilogue = get<uint32_t>(desc, CUBLASLT_MATMUL_DESC_EPILOGUE);
  EXPECT_EQ(epilogue, algo->data[4]);
  const void* bias = get<const void*>(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
  EXPECT_EQ(get<int32_t>(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE), -1);  // "the same type as Dtype"
  EXPECT_EQ(get<int64_t>(desc, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE), 0);
  const bool wide = scale == CUDA_R_64F;
  const double by = wide ? *static_cast<const double*>(alpha) : *static_cast<const float*>(alpha),
               keep = wide ? *static_cast<const double*>(beta) : *static_cast<const float*>(beta);
  for (int32_t item = 0; item < D.batch; ++item)
    for (int64_t col = 0; col < n; ++col)
      for (int64_t row = 0; row < m; ++row) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i)
          sum += load(a, A.type, turn_a ? A.at(item, i, row) : A.at(item, row, i)) *
              load(b, B.type, turn_b ? B.at(item, col, i) : B.at(item, i, col));
        sum *= by * factor;
        if (keep != 0) sum += keep * load(c, C.type, C.at(item, row, col));
        if (epilogue & CUBLASLT_EPILOGUE_BIAS) sum += load(bias, D.type, row);  // "length must match matrix D rows"
        if (epilogue & CUBLASLT_EPILOGUE_RELU) sum = sum > 0 ? sum : 0;
        if (epilogue & CUBLASLT_EPILOGUE_GELU)
          sum = 0.5 * sum * (1 + std::tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
        store(d, D.type, D.at(item, row, col), sum);
      }
  // "The bias size corresponds to the number of rows (columns) of the matrix D. The reduction happens over the GEMM's
  // k."
  if (epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB) {
    const bool of_a = epilogue == CUBLASLT_EPILOGUE_BGRADA;
    EXPECT_EQ(D.batch, 1);
    EXPECT_EQ(by, 1);
    expect_aligned(bias, 16, "a bias's gradient");
    for (int64_t i = 0; i < (of_a ? m : n); ++i) {
      double sum = 0;
      for (int64_t q = 0; q < k; ++q)
        sum += of_a ? load(a, A.type, turn_a ? A.at(0, q, i) : A.at(0, i, q))
                    : load(b, B.type, turn_b ? B.at(0, i, q) : B.at(0, q, i));
      store(const_cast<void*>(bias), D.type, i, sum);  // "the same type as the output elements"
    }
  }
  ++products;
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"

namespace {

cudaDataType_t type_of(DType t) {
  return t == DType::kFloat16 ? CUDA_R_16F
      : t == DType::kBFloat16 ? CUDA_R_16BF
      : t == DType::kFloat64  ? CUDA_R_64F
                              : CUDA_R_32F;
}

// Elements of a matrix of a batch in the words of blas.h, with numbers in them and `offset` bytes of something before.
struct Filled {
  std::vector<std::byte> memory;
  size_t offset;
  Filled(int64_t elements, DType dtype, size_t offset, std::mt19937& random)
      : memory(static_cast<size_t>(elements) * size_bytes(dtype) + offset + 512), offset(offset) {
    for (int64_t i = 0; i < elements; ++i) store(data(), type_of(dtype), i, static_cast<double>(random() % 17) / 8 - 1);
  }
  std::byte* data() {
    auto at = (reinterpret_cast<uintptr_t>(memory.data()) + 255) / 256 * 256 + offset;
    return reinterpret_cast<std::byte*>(at);
  }
};
int64_t place(const Operand& o, int64_t item, int64_t i, int64_t j) {
  return item * o.batch_stride + (o.transposed ? j * o.ld + i : i * o.ld + j);
}

struct Shape {
  int64_t m, n, k, batch;
};

void check(Shape s, DType dtype, DType result, bool turn_a, bool turn_b, bool with_bias, Act act, double alpha,
           double beta, bool tf32, bool shared_a, size_t offset, bool in_place = true) {
  SCOPED_TRACE(testing::Message() << s.m << 'x' << s.n << 'x' << s.k << " batch " << s.batch << ' ' << name(dtype)
                                  << " -> " << name(result) << " turned " << turn_a << turn_b << " bias " << with_bias
                                  << " act " << static_cast<int>(act) << " beta " << beta << " offset " << offset);
  std::mt19937 random(7);
  Product p;
  p.dtype = dtype, p.result = result;
  p.m = s.m, p.n = s.n, p.k = s.k, p.batch = s.batch;
  p.alpha = alpha, p.beta = beta, p.act = act, p.tf32 = tf32;
  const int64_t pad = 3;
  p.a = {(turn_a ? s.m : s.k) + pad, 0, turn_a};
  p.b = {(turn_b ? s.k : s.n) + pad, 0, turn_b};
  p.d = {s.n + pad, 0, false};
  const int64_t of_a = p.a.ld * (turn_a ? s.k : s.m), of_b = p.b.ld * (turn_b ? s.n : s.k), of_d = p.d.ld * s.m;
  if (s.batch > 1) p.a.batch_stride = shared_a ? 0 : of_a + 5, p.b.batch_stride = of_b + 7, p.d.batch_stride = of_d + 1;
  Filled a(s.batch * (of_a + 5), dtype, offset, random), b(s.batch * (of_b + 7), dtype, offset, random),
      c(s.batch * (of_d + 1), result, offset, random), bias(s.n, result, 0, random);
  Filled d = c;
  if (in_place) std::memcpy(d.data(), c.data(), static_cast<size_t>(s.batch * (of_d + 1)) * size_bytes(result));
  const int before = products;
  ASSERT_TRUE(kernels::cuda::product(p, a.data(), b.data(), in_place ? d.data() : c.data(), d.data(),
                                     with_bias ? bias.data() : nullptr));
  ASSERT_EQ(products, before + 1);
  const double tolerance = dtype == DType::kFloat64 ? 1e-12
      : result == DType::kBFloat16                  ? 2e-2
      : result == DType::kFloat16                   ? 3e-3
                                                    : 1e-5;
  for (int64_t item = 0; item < s.batch; ++item)
    for (int64_t i = 0; i < s.m; ++i)
      for (int64_t j = 0; j < s.n; ++j) {
        double want = 0;
        for (int64_t k = 0; k < s.k; ++k)
          want += load(a.data(), type_of(dtype), place(p.a, item, i, k)) *
              load(b.data(), type_of(dtype), place(p.b, item, k, j));
        want *= alpha;
        if (beta != 0) want += beta * load(c.data(), type_of(result), place(p.d, item, i, j));
        if (with_bias) want += load(bias.data(), type_of(result), j);
        if (act == Act::kRelu) want = std::max(want, 0.0);
        if (act == Act::kGeluTanh)
          want = 0.5 * want * (1 + std::tanh(0.7978845608028654 * (want + 0.044715 * want * want * want)));
        const double got = load(d.data(), type_of(result), place(p.d, item, i, j));
        ASSERT_NEAR(got, want, tolerance * (1 + std::abs(want))) << item << ' ' << i << ' ' << j;
      }
}

const std::pair<DType, DType> kTypes[] = {{DType::kFloat32, DType::kFloat32},   {DType::kFloat64, DType::kFloat64},
                                          {DType::kFloat16, DType::kFloat16},   {DType::kFloat16, DType::kFloat32},
                                          {DType::kBFloat16, DType::kBFloat16}, {DType::kBFloat16, DType::kFloat32}};

TEST(CublasLt, ProductsOfEveryTypeAndLayout) {
  for (auto [dtype, result] : kTypes)
    for (const Shape s : {Shape{5, 7, 3, 1}, Shape{1, 9, 4, 1}, Shape{6, 1, 8, 1}, Shape{4, 3, 2, 3}})
      for (const bool turn_a : {false, true})
        for (const bool turn_b : {false, true})
          for (const double beta : {0.0, 1.0, 0.5})
            check(s, dtype, result, turn_a, turn_b, false, Act::kNone, 1.5, beta, false, false, 0);
}

TEST(CublasLt, Epilogues) {
  for (auto [dtype, result] : kTypes)
    for (const Act act : {Act::kNone, Act::kRelu, Act::kGeluTanh})
      for (const bool bias : {false, true})
        check({5, 6, 4, 1}, dtype, result, false, true, bias, act, 1, 0, false, false, 0);
}

TEST(CublasLt, ABiasAndAnAddendInABatch) {
  check({5, 6, 4, 3}, DType::kBFloat16, DType::kBFloat16, false, true, true, Act::kNone, 1, 1, false, true, 0, false);
  check({5, 6, 4, 3}, DType::kFloat32, DType::kFloat32, true, false, true, Act::kRelu, 1, 1, false, true, 0);
}

TEST(CublasLt, Tf32IsForFloat32Alone) {
  for (auto [dtype, result] : kTypes)
    check({5, 6, 4, 1}, dtype, result, false, false, false, Act::kNone, 1, 0, true, false, 0);
}

TEST(CublasLt, AddressesArePromisedAsTheyAre) {
  for (const size_t offset : {2, 4, 8, 16, 96, 128})
    check({5, 6, 4, 1}, DType::kFloat16, DType::kFloat16, false, false, true, Act::kNone, 1, 0, false, false, offset);
}

TEST(CublasLt, ABiasThatVectorsCannotReadIsLeftToOthers) {
  Product p;
  p.m = p.n = p.k = 4;
  p.a.ld = p.b.ld = p.d.ld = 4;
  alignas(16) float x[16] = {}, bias[8] = {}, d[16] = {};
  EXPECT_TRUE(kernels::cuda::product(p, x, x, d, d, bias));
  EXPECT_FALSE(kernels::cuda::product(p, x, x, d, d, bias + 1));
}

TEST(CublasLt, SumsOfAnOperand) {
  for (auto [dtype, result] : kTypes)
    for (const Summed summed : {Summed::kA, Summed::kB})
      for (const bool turn_a : {false, true})
        for (const bool turn_b : {false, true})
          for (const double beta : {0.0, 1.0}) {
            std::mt19937 random(3);
            Product p;
            p.dtype = dtype, p.result = result, p.m = 6, p.n = 5, p.k = 7, p.beta = beta, p.summed = summed;
            p.a = {turn_a ? p.m : p.k, 0, turn_a}, p.b = {turn_b ? p.k : p.n, 0, turn_b}, p.d = {p.n, 0, false};
            Filled a(p.m * p.k, dtype, 0, random), b(p.k * p.n, dtype, 0, random), d(p.m * p.n, result, 0, random),
                sums(8, result, 0, random);
            ASSERT_TRUE(kernels::cuda::product(p, a.data(), b.data(), d.data(), d.data(), nullptr, sums.data()));
            for (int64_t i = 0; i < (summed == Summed::kA ? p.m : p.n); ++i) {
              double want = 0;
              for (int64_t k = 0; k < p.k; ++k)
                want += summed == Summed::kA ? load(a.data(), type_of(dtype), place(p.a, 0, i, k))
                                             : load(b.data(), type_of(dtype), place(p.b, 0, k, i));
              EXPECT_NEAR(load(sums.data(), type_of(result), i), want, result == DType::kBFloat16 ? 2e-2 : 2e-3);
            }
          }
  Product p;
  p.m = p.n = p.k = 4, p.summed = Summed::kA;
  p.a.ld = p.b.ld = p.d.ld = 4;
  alignas(16) float x[16] = {}, sums[8] = {}, d[16] = {};
  EXPECT_TRUE(kernels::cuda::product(p, x, x, d, d, nullptr, sums));
  EXPECT_FALSE(kernels::cuda::product(p, x, x, d, d, nullptr, sums + 1));
}

TEST(CublasLt, ScaledProductsOfFloat8) {
  std::mt19937 random(3);
  auto filled = [&](int64_t n) {
    std::vector<uint8_t> bytes(static_cast<size_t>(n) + 256);
    for (auto& b : bytes) b = static_cast<uint8_t>(random() % 0x70 | (random() & 0x80));  // of both signs, finite
    return bytes;
  };
  auto aligned = [](auto& v) {
    return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(v.data()) + 255) / 256 * 256);
  };
  for (DType left : {float8_e4m3fn, float8_e5m2})
    for (DType right : {float8_e4m3fn, float8_e5m2})
      for (DType result : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        const ScaledProduct p{left, right, result, 32, 16, 48};
        if (left == float8_e5m2 && right == float8_e5m2) {
          EXPECT_STREQ(kernels::cuda::refusal_of(p), "both factors are float8_e5m2");
          continue;
        }
        auto a = filled(32 * 48), b = filled(16 * 48);
        std::vector<float> d(32 * 16 + 256);
        // Two products with other scales by one plan.
        for (const auto& [scale_a, scale_b] : {std::pair{0.25f, 0.125f}, {0.5f, 2.0f / 1024}}) {
          const int before = products;
          ASSERT_EQ(kernels::cuda::scaled_product(p, aligned(a), aligned(b), &scale_a, &scale_b, aligned(d)), nullptr);
          ASSERT_EQ(products, before + 1);
          auto number = [](std::byte bits, DType t) {
            return t == float8_e4m3fn ? float8(static_cast<uint8_t>(bits), 3, 7)
                                      : float8(static_cast<uint8_t>(bits), 2, 15);
          };
          for (int64_t i = 0; i < 32; ++i)
            for (int64_t j = 0; j < 16; ++j) {
              double want = 0;
              for (int64_t q = 0; q < 48; ++q)
                want += number(aligned(a)[i * 48 + q], left) * number(aligned(b)[j * 48 + q], right);
              want *= static_cast<double>(scale_a) * static_cast<double>(scale_b);
              const double got = load(aligned(d), type_of(result), i * 16 + j);
              if (result == DType::kFloat16 && std::abs(want) > 65504) continue;
              ASSERT_NEAR(got, want, (result == DType::kFloat32 ? 1e-5 : 1e-2) * (1 + std::abs(want)));
            }
        }
      }
  EXPECT_STREQ(kernels::cuda::refusal_of({float8_e4m3fn, float8_e4m3fn, DType::kFloat32, 32, 8, 16}),
               "sizes are not multiples of 16");
  alignas(256) std::byte x[16 * 16 + 16];
  float one = 1;
  std::vector<float> d(16 * 16 + 64);
  EXPECT_STREQ(kernels::cuda::scaled_product({float8_e4m3fn, float8_e4m3fn, DType::kFloat32, 16, 16, 16}, x, x + 8,
                                             &one, &one, aligned(d)),
               "an address is not a multiple of 16");
}

// Plans are copied into a cache.
TEST(CublasLt, DescriptorsMayBeCopied) {
  cublasLtMatmulDescOpaque_t one{};
  ASSERT_EQ(cublasLtMatmulDescInit(&one, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulDescOpaque_t two = one;
  const int32_t turned = CUBLAS_OP_T;
  ASSERT_EQ(cublasLtMatmulDescSetAttribute(&two, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(get<int32_t>(&one, CUBLASLT_MATMUL_DESC_TRANSA), CUBLAS_OP_N);
  EXPECT_EQ(get<int32_t>(&two, CUBLASLT_MATMUL_DESC_TRANSA), CUBLAS_OP_T);
}

}  // namespace
