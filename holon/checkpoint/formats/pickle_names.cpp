#include "holon/checkpoint/formats/pickle_names.h"

#include <algorithm>
#include <iterator>

namespace holon::checkpoint {

namespace {

constexpr PickleName storage(std::string_view name, std::string_view dtype_name, std::optional<DType> dtype,
                             uint64_t item_bytes) {
  return {"torch", name, PickleUse::kStorage, dtype_name, dtype, item_bytes};
}

constexpr PickleName dtype(std::string_view name, std::optional<DType> dtype, uint64_t item_bytes) {
  return {"torch", name, PickleUse::kDType, name, dtype, item_bytes};
}

constexpr PickleName kNames[] = {
    {"collections", "OrderedDict", PickleUse::kOrderedDict},
    {"collections", "Counter", PickleUse::kOrderedDict},
    {"torch", "Size", PickleUse::kSize},
    {"torch", "device", PickleUse::kDevice},
    {"torch._utils", "_rebuild_tensor", PickleUse::kRebuildTensor},
    {"torch._utils", "_rebuild_tensor_v2", PickleUse::kRebuildTensor},
    {"torch._utils", "_rebuild_tensor_v3", PickleUse::kRebuildTensor3},
    {"torch._utils", "_rebuild_parameter", PickleUse::kRebuildParameter},
    {"torch._utils", "_rebuild_parameter_with_state", PickleUse::kRebuildParameter},
    {"torch._tensor", "_rebuild_from_type_v2", PickleUse::kRebuildFromType},
    {"torch", "Tensor", PickleUse::kTensorClass},
    {"torch.nn.parameter", "Parameter", PickleUse::kTensorClass},
    {"torch.nn.parameter", "Buffer", PickleUse::kTensorClass},
    {"torch.storage", "UntypedStorage", PickleUse::kBytes},
    {"torch", "UntypedStorage", PickleUse::kBytes},
    storage("FloatStorage", "float32", float32, 4),
    storage("DoubleStorage", "float64", float64, 8),
    storage("HalfStorage", "float16", float16, 2),
    storage("BFloat16Storage", "bfloat16", bfloat16, 2),
    storage("LongStorage", "int64", int64, 8),
    storage("IntStorage", "int32", int32, 4),
    storage("ShortStorage", "int16", {}, 2),
    storage("CharStorage", "int8", int8, 1),
    storage("ByteStorage", "uint8", uint8, 1),
    storage("BoolStorage", "bool", boolean, 1),
    storage("ComplexFloatStorage", "complex64", {}, 8),
    storage("ComplexDoubleStorage", "complex128", {}, 16),
    dtype("float32", float32, 4),
    dtype("float64", float64, 8),
    dtype("float16", float16, 2),
    dtype("bfloat16", bfloat16, 2),
    dtype("int64", int64, 8),
    dtype("int32", int32, 4),
    dtype("int16", {}, 2),
    dtype("int8", int8, 1),
    dtype("uint8", uint8, 1),
    dtype("uint16", {}, 2),
    dtype("uint32", {}, 4),
    dtype("uint64", {}, 8),
    dtype("bool", boolean, 1),
    dtype("complex64", {}, 8),
    dtype("complex128", {}, 16),
    dtype("float8_e4m3fn", float8_e4m3fn, 1),
    dtype("float8_e5m2", float8_e5m2, 1),
    dtype("float8_e8m0fnu", float8_e8m0fnu, 1),
};

}  // namespace

const PickleName* find_pickle_name(std::string_view module, std::string_view name) {
  auto it = std::find_if(std::begin(kNames), std::end(kNames),
                         [&](auto& known) { return known.module == module && known.name == name; });
  return it == std::end(kNames) ? nullptr : it;
}

}  // namespace holon::checkpoint
