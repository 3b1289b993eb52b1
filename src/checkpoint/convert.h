// Element conversion between the dtypes of weight files and fp32. Pure; thread-safe on disjoint data.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace protrain {

constexpr bool is_weight_dtype(DType type) {
  return type == DType::kF32 || type == DType::kBf16 || type == DType::kF16;
}

// n elements of a weight dtype (little endian, any alignment) to fp32. Exact.
void to_float(DType from, const std::byte* bytes, float* to, std::int64_t n);
// fp32 to a weight dtype, round to nearest, ties to even. Beyond the largest finite value: infinity. A NaN stays one.
void from_float(DType to, const float* from, std::byte* bytes, std::int64_t n);

// Index of the first NaN or infinity; of the first that is such or negative (-0 is not); -1 when there is none.
std::int64_t first_non_finite(const float*, std::int64_t n);
std::int64_t first_non_finite_or_negative(const float*, std::int64_t n);

}  // namespace protrain
