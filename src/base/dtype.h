// Element types of tensors in files, on the host and on the device.
#pragma once
#include <optional>
#include <string_view>

#include "base/units.h"

namespace protrain {

enum class DType : std::uint8_t { kF32, kBf16, kF16, kF64, kI64, kI32, kI16, kU8, kBool };
inline constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF16, DType::kF64, DType::kI64,
                                    DType::kI32, DType::kI16,  DType::kU8,  DType::kBool};

constexpr Bytes size_of(DType type) {
  switch (type) {
    case DType::kF64:
    case DType::kI64: return 8;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kBf16:
    case DType::kF16:
    case DType::kI16: return 2;
    case DType::kU8:
    case DType::kBool: return 1;
  }
  return 0;
}

std::string_view safetensors_name(DType);                // "F32", "BF16", ...
std::string_view transformers_name(DType);               // "float32", "bfloat16", "float16"
std::optional<DType> dtype_from_name(std::string_view);  // either spelling, exact case

}  // namespace protrain
