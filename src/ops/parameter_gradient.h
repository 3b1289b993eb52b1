// Writes or adds a parameter's gradient where Parameter says. Internal to ops/. No-ops when no gradient is wanted.
#pragma once
#include "ops/ops.h"

namespace protrain::ops {

// gradient (+)= a b. An fp32 gradient of bf16 matrices is summed in fp32 inside the product. a, b may be transposed
// views.
void add_product(const Parameter&, const at::Tensor& a, const at::Tensor& b);
// gradient (+)= column sums of x [T, n], in fp32, fixed order.
void add_column_sums(const Parameter&, const at::Tensor& x);
// gradient (+)= sum over rows of partials, fp32 [rows, n], contiguous, fixed order.
void add_partials(const Parameter&, const at::Tensor& partials);

}  // namespace protrain::ops
