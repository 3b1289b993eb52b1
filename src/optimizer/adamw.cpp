#include "optimizer/adamw.h"

#include <cmath>

#include "base/error.h"
#include "optimizer/scalar_lanes.h"
#include "optimizer/simd_kernels.h"

namespace protrain {

AdamWStep make_adamw_step(const AdamWOptions& options, double learning_rate, double weight_decay, std::int64_t t) {
  PROTRAIN_CHECK(t >= 1, "t = {}", t);
  const auto updates = static_cast<double>(t);
  AdamWStep step;
  step.rate = static_cast<float>(learning_rate / (1 - std::pow(options.beta1, updates)));
  step.beta1 = static_cast<float>(options.beta1);
  step.one_minus_beta1 = static_cast<float>(1 - options.beta1);
  step.beta2 = static_cast<float>(options.beta2);
  step.one_minus_beta2 = static_cast<float>(1 - options.beta2);
  step.inverse_bias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2, updates)));
  step.epsilon = static_cast<float>(options.epsilon);
  step.keep = static_cast<float>(1 - learning_rate * weight_decay);
  return step;
}

Simd best_simd() {
  static const Simd best = [] {
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx512 && avx2) return Simd::kAvx512;
    return avx2 ? Simd::kAvx2 : Simd::kScalar;
  }();
  return best;
}

const SimdKernels& simd_kernels(Simd simd) {
  switch (simd) {
    case Simd::kScalar: return kScalarKernels;
    case Simd::kAvx2: return kAvx2Kernels;
    case Simd::kAvx512: return kAvx512Kernels;
  }
  return kScalarKernels;
}

void adamw_bf16(const AdamWStep& step, float clip_scale, const StateBytes& state, Simd simd) noexcept {
  simd_kernels(simd).adamw_bf16(step, clip_scale, state);
}

void adamw_f32(const AdamWStep& step, float clip_scale, const StateBytes& state, Simd simd) noexcept {
  simd_kernels(simd).adamw_f32(step, clip_scale, state);
}

SplitMaster split_master(float master) noexcept {
  return arithmetic::split(arithmetic::representable<arithmetic::ScalarLanes>(master));
}

float join_master(SplitMaster parts) noexcept { return arithmetic::join(parts.weight, parts.residual); }

void split_masters(const float* master, std::uint16_t* weight, std::int16_t* residual, std::int64_t n) noexcept {
  simd_kernels(best_simd()).split(master, weight, residual, n);
}

void join_masters(const std::uint16_t* weight, const std::int16_t* residual, float* master, std::int64_t n) noexcept {
  simd_kernels(best_simd()).join(weight, residual, master, n);
}

}  // namespace protrain
