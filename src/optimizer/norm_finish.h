// The last arithmetic of a norm, once for CPU and CUDA. IEEE in double; NaNs are stored as one pattern.
#pragma once
#include "optimizer/adamw_arithmetic.h"

namespace protrain {

PROTRAIN_HOST_DEVICE inline bool is_finite(double x) { return x - x == 0; }

PROTRAIN_HOST_DEVICE inline double canonical(double x) {
  return x == x ? x : __builtin_bit_cast(double, 0x7ff8000000000000ull);
}

// `norm` is the square root of the sum of squared norms.
PROTRAIN_HOST_DEVICE inline StepControl make_step_control(double norm, double loss_sum, double max_norm) {
  StepControl control;
  control.gradient_norm = canonical(norm);
  control.loss_sum = canonical(loss_sum);
  control.skip = is_finite(norm) && is_finite(loss_sum) ? 0 : 1;
  if (!control.skip && max_norm > 0) {
    const double scale = max_norm / (norm + 1e-6);
    control.clip_scale = scale < 1 ? static_cast<float>(scale) : 1.0f;
  }
  return control;
}

}  // namespace protrain
