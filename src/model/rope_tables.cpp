#include "model/rope_tables.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace protrain::model {

RopeTables::RopeTables(const Architecture& arch, DeviceKind device, std::int64_t positions)
    : rotary_(arch.rotary), device_(device) {
  if (!rotary_) return;
  table_ = rope_table(arch.rope, arch.head_dim);
  if (positions > 0) make(positions);
}

const ops::Rope& RopeTables::at_least(std::int64_t positions) {
  if (rotary_ && (!rope_.cos.defined() || rope_.cos.size(0) < positions)) make(positions);
  return rope_;
}

void RopeTables::make(std::int64_t positions) {
  const auto half = static_cast<std::int64_t>(table_.inverse_frequency.size());
  at::Tensor cos = at::empty({positions, half}, at::kFloat), sin = at::empty({positions, half}, at::kFloat);
  for (std::int64_t p = 0; p < positions; ++p) {
    for (std::int64_t i = 0; i < half; ++i) {
      // The angle is an fp32 product of an fp32 frequency, as in the reference: models were trained with those angles.
      const float frequency = static_cast<float>(table_.inverse_frequency[static_cast<std::size_t>(i)]);
      const double angle = static_cast<float>(p) * frequency;
      cos.mutable_data_ptr<float>()[p * half + i] = static_cast<float>(std::cos(angle) * table_.attention_factor);
      sin.mutable_data_ptr<float>()[p * half + i] = static_cast<float>(std::sin(angle) * table_.attention_factor);
    }
  }
  const at::DeviceType to = device_ == DeviceKind::kCuda ? at::kCUDA : at::kCPU;
  rope_ = {cos.to(to), sin.to(to)};
}

}  // namespace protrain::model
