#include "base/dtype.h"

namespace protrain {

std::string_view safetensors_name(DType type) {
  switch (type) {
    case DType::kF32: return "F32";
    case DType::kBf16: return "BF16";
    case DType::kF16: return "F16";
    case DType::kF64: return "F64";
    case DType::kI64: return "I64";
    case DType::kI32: return "I32";
    case DType::kI16: return "I16";
    case DType::kU8: return "U8";
    case DType::kBool: return "BOOL";
  }
  return "?";
}

std::string_view transformers_name(DType type) {
  switch (type) {
    case DType::kF32: return "float32";
    case DType::kBf16: return "bfloat16";
    case DType::kF16: return "float16";
    case DType::kF64: return "float64";
    case DType::kI64: return "int64";
    case DType::kI32: return "int32";
    case DType::kI16: return "int16";
    case DType::kU8: return "uint8";
    case DType::kBool: return "bool";
  }
  return "?";
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DType type : kDTypes) {
    if (name == safetensors_name(type) || name == transformers_name(type)) return type;
  }
  return std::nullopt;
}

}  // namespace protrain
