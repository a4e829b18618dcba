// Element types. bfloat16 and float16 are storage types: arithmetic on them runs in float32. The float8 ones are for
// storage and exchange alone: ops move them and convert them (Tensor::to), and compute with what they were converted
// to.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <iosfwd>
#include <string_view>

namespace holon {

// The type of a tensor's elements, and its short names.
enum class DType : uint8_t {
  kBool,
  kUInt8,
  kInt8,
  kInt32,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kFloat8E4M3FN,
  kFloat8E5M2,
  kFloat8E8M0FNU
};
inline constexpr int kDTypeCount = 12;
inline constexpr int kComputedDTypeCount = 9;  // the first ones, which ops compute with

// Short names: float32 is DType::kFloat32.
inline constexpr DType boolean = DType::kBool;
inline constexpr DType uint8 = DType::kUInt8;
inline constexpr DType int8 = DType::kInt8;
inline constexpr DType int32 = DType::kInt32;
inline constexpr DType int64 = DType::kInt64;
inline constexpr DType float16 = DType::kFloat16;
inline constexpr DType bfloat16 = DType::kBFloat16;
inline constexpr DType float32 = DType::kFloat32;
inline constexpr DType float64 = DType::kFloat64;
// OFP8 (Open Compute Project, 2023): 4 bits of exponent, 3 of mantissa, up to 448, one NaN of each sign and no
// infinity; 5 and 2, up to 57344, with infinities. OCP Microscaling Formats 1.0's scales: 2^-127 to 2^127, and NaN.
inline constexpr DType float8_e4m3fn = DType::kFloat8E4M3FN;
inline constexpr DType float8_e5m2 = DType::kFloat8E5M2;
inline constexpr DType float8_e8m0fnu = DType::kFloat8E8M0FNU;

// Of one element; whether it is floating point, what promotion compares, and its text.
constexpr size_t size_bytes(DType dtype) {
  constexpr uint8_t kSize[] = {1, 1, 1, 4, 8, 2, 2, 4, 8, 1, 1, 1};
  return kSize[static_cast<int>(dtype)];
}
constexpr bool is_floating(DType dtype) { return dtype >= DType::kFloat16; }
constexpr bool is_float8(DType dtype) { return dtype >= DType::kFloat8E4M3FN; }
int category(DType dtype);                                // 0 bool, 1 integer, 2 floating point
const char* name(DType dtype);                            // "float32"
std::ostream& operator<<(std::ostream& to, DType dtype);  // its name
// The type that an operation on both takes place in (NumPy's lattice with PyTorch's rule: a float beats any integer).
// Errors (TypeError): one of them is a float8, and the other is another dtype.
DType promote(DType a, DType b);

// A float whose lower 16 bits are cut off, rounded to nearest even.
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  BFloat16(float f) {
    uint32_t u = std::bit_cast<uint32_t>(f);
    // Round to nearest even; a NaN keeps its top bits and stays a NaN.
    bits = (u & 0x7fffffff) > 0x7f800000 ? static_cast<uint16_t>((u >> 16) | 0x40)
                                         : static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// IEEE 754's half precision.
struct Float16 {
  uint16_t bits = 0;
  Float16() = default;
  Float16(float f);
  operator float() const;
};

// A type's place in the enum, and the type that its arithmetic runs in.
template <class T>
struct DTypeOf;
#define HOLON_DTYPE_OF(T, D, C)       \
  template <>                         \
  struct DTypeOf<T> {                 \
    static constexpr DType value = D; \
    using Compute = C;                \
  }
HOLON_DTYPE_OF(bool, DType::kBool, bool);
HOLON_DTYPE_OF(uint8_t, DType::kUInt8, uint8_t);
HOLON_DTYPE_OF(int8_t, DType::kInt8, int8_t);
HOLON_DTYPE_OF(int32_t, DType::kInt32, int32_t);
HOLON_DTYPE_OF(int64_t, DType::kInt64, int64_t);
HOLON_DTYPE_OF(Float16, DType::kFloat16, float);
HOLON_DTYPE_OF(BFloat16, DType::kBFloat16, float);
HOLON_DTYPE_OF(float, DType::kFloat32, float);
HOLON_DTYPE_OF(double, DType::kFloat64, double);
#undef HOLON_DTYPE_OF

// A C++ type as a value.
template <class T>
struct TypeTag {
  using type = T;
};

namespace detail {
[[noreturn]] void fail_not_computed(DType dtype);
[[noreturn]] void fail_not_floating(DType dtype);
}  // namespace detail

// Calls f(TypeTag<T>{}) with the C++ type of dtype. Errors (TypeError): a float8, which has none.
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBool: return f(TypeTag<bool>{});
    case DType::kUInt8: return f(TypeTag<uint8_t>{});
    case DType::kInt8: return f(TypeTag<int8_t>{});
    case DType::kInt32: return f(TypeTag<int32_t>{});
    case DType::kInt64: return f(TypeTag<int64_t>{});
    case DType::kFloat16: return f(TypeTag<Float16>{});
    case DType::kBFloat16: return f(TypeTag<BFloat16>{});
    case DType::kFloat32: return f(TypeTag<float>{});
    case DType::kFloat64: return f(TypeTag<double>{});
    default: detail::fail_not_computed(dtype);
  }
}

// The same for the floating point dtypes alone, of two bytes and more: their arithmetic runs in
// DTypeOf<T>::Compute. Errors (TypeError): another dtype.
template <class F>
decltype(auto) visit_floating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat16: return f(TypeTag<Float16>{});
    case DType::kBFloat16: return f(TypeTag<BFloat16>{});
    case DType::kFloat32: return f(TypeTag<float>{});
    case DType::kFloat64: return f(TypeTag<double>{});
    default: detail::fail_not_floating(dtype);
  }
}

}  // namespace holon
