// Small questions about tensors that the operators ask. Internal to ops/.
#pragma once
#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "ops/kernels.h"
#include "tensor/tensor.h"

namespace protrain::ops {

inline cuda::Element element_of(const at::Tensor& tensor) {
  PROTRAIN_CHECK(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16, "fp32 or bf16");
  return tensor.scalar_type() == at::kFloat ? cuda::Element::kF32 : cuda::Element::kBf16;
}

inline cuda::StreamHandle launch_stream() { return static_cast<cuda::StreamHandle>(current_stream()); }

inline const void* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

}  // namespace protrain::ops
