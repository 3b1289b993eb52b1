#include "model/rope_tables.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tensor/replay.h"
#include "tensor/tensor.h"

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

Bytes RopeTables::bytes() const {
  return rope_.cos.defined() ? 2 * round_up(static_cast<Bytes>(rope_.cos.nbytes()), kAlignment) : 0;
}

void RopeTables::place(std::byte* memory, Stream& stream) {
  if (!rope_.cos.defined()) return;
  const auto one = static_cast<Bytes>(rope_.cos.nbytes());
  std::byte* const second = memory + round_up(one, kAlignment);
  stream.copy(memory, static_cast<const std::byte*>(rope_.cos.const_data_ptr()), one);
  stream.copy(second, static_cast<const std::byte*>(rope_.sin.const_data_ptr()), one);
  stream.synchronize();
  rope_ = {view(memory, rope_.cos.sizes(), DType::kF32, device_),
           view(second, rope_.sin.sizes(), DType::kF32, device_)};
  placed_ = true;
  release_plain_memory(device_);
}

void RopeTables::make(std::int64_t positions) {
  PROTRAIN_CHECK(!placed_, "rotary tables of {} positions are wanted, planned were {}", positions, rope_.cos.size(0));
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
