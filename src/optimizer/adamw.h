// AdamW with decoupled weight decay (Loshchilov & Hutter 2019, Algorithm 2) over the exact 12-byte state.
//
// State of a parameter, bf16 compute: bf16 weight + int16 residual + fp32 m + fp32 v. master = bits(weight) << 16 plus
// the signed residual, as a bit pattern; the weight is the master rounded to nearest, ties away from zero. Any NaN is
// weight 0x7fc0, residual 0; a finite master whose rounding would overflow keeps weight +-0x7f7f and the largest
// residual. fp32 compute: the weight is the master, there is no residual.
//
// One arithmetic (adamw_arithmetic.h) on every back end (scalar, AVX2, AVX-512, CUDA), bit-equal: explicit fused
// multiply-adds, IEEE division and square root, no contraction, no flush to zero; a NaN in a state is stored as
// 0x7fc00000. Elementwise: any cut of the arrays gives the same bits. Pointers need their type's alignment only. All
// functions are thread-safe on disjoint data; pointers are owned by the caller.
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace protrain {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
};

// Scalars of one update, made once on the host in double. `decay` is per call: lr x wd, or 0 for norms and biases.
struct AdamWStep {
  float rate = 0;  // lr / (1 - beta1^t)
  float beta1 = 0, one_minus_beta1 = 0;
  float beta2 = 0, one_minus_beta2 = 0;
  float inverse_bias2 = 0;  // 1 / sqrt(1 - beta2^t)
  float epsilon = 0;
  float keep = 1;  // 1 - lr x weight_decay
};
// t >= 1 counts applied updates (a skipped one does not advance it); 0 <= beta1, beta2 < 1.
AdamWStep make_adamw_step(const AdamWOptions&, double learning_rate, double weight_decay, std::int64_t t);

// Written by the norm, read by every update of the step, in the memory of the side that updates.
struct StepControl {
  double gradient_norm = 0;  // before clipping
  double loss_sum = 0;       // unscaled, over the step
  float clip_scale = 1;      // min(1, max_norm / (norm + 1e-6)); 1 when clipping is off
  std::int32_t skip = 0;     // 1: loss or norm is not finite, every update of the step does nothing
};

// Arrays of n elements. bf16 compute: weight and gradient are bf16 bits. fp32 compute: both fp32, residual null.
struct StateBytes {
  void* weight = nullptr;
  std::int16_t* residual = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  const void* gradient = nullptr;
  std::int64_t n = 0;
};

enum class Simd : std::uint8_t { kScalar, kAvx2, kAvx512 };
Simd best_simd();  // the widest that this processor runs; a wider one must not be asked for

void adamw_bf16(const AdamWStep&, float clip_scale, const StateBytes&, Simd) noexcept;
void adamw_f32(const AdamWStep&, float clip_scale, const StateBytes&, Simd) noexcept;

// master <-> (weight, residual); see the rule above. join_master takes any pair.
struct SplitMaster {
  std::uint16_t weight;
  std::int16_t residual;
};
SplitMaster split_master(float master) noexcept;
float join_master(SplitMaster) noexcept;
void split_masters(const float* master, std::uint16_t* weight, std::int16_t* residual, std::int64_t n) noexcept;
void join_masters(const std::uint16_t* weight, const std::int16_t* residual, float* master, std::int64_t n) noexcept;

}  // namespace protrain
