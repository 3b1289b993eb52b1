// The loops of one instruction set, as a table. Private to the optimizer layer; all functions are thread-safe.
#pragma once
#include <cstdint>

#include "optimizer/adamw.h"

namespace protrain {

struct SimdKernels {
  void (*adamw_bf16)(const AdamWStep&, float clip_scale, const StateBytes&) noexcept;
  void (*adamw_f32)(const AdamWStep&, float clip_scale, const StateBytes&) noexcept;
  void (*split)(const float* master, std::uint16_t* weight, std::int16_t* residual, std::int64_t n) noexcept;
  void (*join)(const std::uint16_t* weight, const std::int16_t* residual, float* master, std::int64_t n) noexcept;
  void (*round_to_bf16)(const float* from, std::uint16_t* to, std::int64_t n) noexcept;
  // Sum of squares of one norm tile (kernels.h), n <= kNormTile.
  double (*tile_bf16)(const std::uint16_t*, std::int64_t n) noexcept;
  double (*tile_f32)(const float*, std::int64_t n) noexcept;
};

extern const SimdKernels kScalarKernels, kAvx2Kernels, kAvx512Kernels;
const SimdKernels& simd_kernels(Simd);

}  // namespace protrain
