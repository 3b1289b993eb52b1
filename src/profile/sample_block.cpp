#include "profile/sample_block.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/error.h"
#include "tensor/tensor.h"

namespace protrain::profile {
namespace {

constexpr std::int64_t kPattern = 1 << 16;

// `elements` of a dtype at `to`: a pattern of normal values over and over. The host holds the pattern alone; what is
// there is copied behind itself.
void fill(std::byte* to, std::int64_t elements, DType type, float scale, Stream& stream) {
  std::mt19937 random(17);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> wide(static_cast<std::size_t>(std::min(elements, kPattern)));
  for (float& value : wide) value = normal(random);
  const auto* bytes = reinterpret_cast<const std::byte*>(wide.data());
  const at::Tensor pattern =
      view(bytes, {static_cast<std::int64_t>(wide.size())}, DType::kF32, DeviceKind::kCpu).to(scalar_type(type));
  const auto* from = static_cast<const std::byte*>(pattern.const_data_ptr());
  const auto whole = static_cast<std::int64_t>(wide.size());
  stream.copy(to, from, whole * size_of(type));
  for (std::int64_t done = whole; done < elements; done *= 2) {
    stream.copy(to + done * size_of(type), to, std::min(done, elements - done) * size_of(type));
  }
  stream.synchronize();
}

// Offsets of chunks: multiples of this many elements (Chunk in plan/plan.h), so that groups lie as in a chunk.
constexpr std::int64_t kChunkElements = 256;

}  // namespace

DeviceBytes::DeviceBytes(Bytes bytes, DeviceKind kind) {
  if (bytes == 0) return;
  const at::DeviceType device = kind == DeviceKind::kCuda ? at::kCUDA : at::kCPU;
  memory_ = at::empty({bytes + kAlignment}, at::TensorOptions(at::kByte).device(device));
  auto* const start = static_cast<std::byte*>(memory_.mutable_data_ptr());
  at_ = start + (kAlignment - reinterpret_cast<std::uintptr_t>(start) % kAlignment) % kAlignment;
}

SampleWeights::SampleWeights(const ModelSpec& spec, const RunShape& shape, Id block, DeviceKind device,
                             Stream& stream) {
  const BlockSpec& about = spec.blocks.at(static_cast<std::size_t>(block));
  Bytes weights = 0, gradients = 0;
  for (const Id id : about.parameters) {
    const std::int64_t elements = spec.parameters.at(static_cast<std::size_t>(id)).elements();
    Part part;
    part.weight = weights;
    part.gradient = gradients;
    part.gradient_dtype = accumulates(spec, shape, id) ? DType::kF32 : shape.compute;
    for (Id later = block + 1; later < static_cast<Id>(spec.blocks.size()); ++later) {
      const auto& others = spec.blocks[static_cast<std::size_t>(later)].parameters;
      part.adds = part.adds || std::find(others.begin(), others.end(), id) != others.end();
    }
    weights += round_up(elements, kChunkElements) * size_of(shape.compute);
    gradients += round_up(elements, kChunkElements) * size_of(part.gradient_dtype);
    parts_.push_back(part);
  }
  weights_ = DeviceBytes(weights, device);
  gradients_ = DeviceBytes(gradients, device);
  fill(weights_.get(), weights / size_of(shape.compute), shape.compute, 0.02F, stream);
  if (gradients > 0) stream.zero(gradients_.get(), gradients);
  stream.synchronize();
}

std::vector<ParameterBytes> SampleWeights::bind(bool first, bool training) const {
  std::vector<ParameterBytes> bound;
  for (const Part& part : parts_) {
    bound.push_back({weights_.get() + part.weight, training ? gradients_.get() + part.gradient : nullptr,
                     part.gradient_dtype, first && !part.adds});
  }
  return bound;
}

SampleBatch::SampleBatch(const ModelSpec& spec, const BatchShape& shape, DType compute, DeviceKind device,
                         Stream& stream)
    : shape_(shape) {
  const BatchLayout layout = batch_layout(shape);
  host_.resize(static_cast<std::size_t>(layout.bytes + kAlignment));
  const auto start = reinterpret_cast<std::uintptr_t>(host_.data());
  host_batch_ = host_.data() + (kAlignment - start % kAlignment) % kAlignment;
  const auto array = [&](Bytes offset) { return reinterpret_cast<std::int32_t*>(host_batch_ + offset); };
  const std::int64_t tokens = shape.tokens();

  std::vector<std::int64_t> starts;
  const std::int64_t in_row =
      shape.packed ? std::clamp<std::int64_t>(shape.max_samples / (2 * shape.rows), 1, shape.row_tokens) : 1;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    // Lengths grow along the row: 1, 2, 3 .. parts of it.
    const std::int64_t parts = in_row * (in_row + 1) / 2;
    for (std::int64_t k = 0; k < in_row; ++k) {
      const std::int64_t start_of = row * shape.row_tokens + shape.row_tokens * (k * (k + 1) / 2) / parts;
      if (starts.empty() || starts.back() < start_of) starts.push_back(start_of);
    }
  }
  PROTRAIN_CHECK(static_cast<std::int64_t>(starts.size()) <= shape.max_samples, "{} samples in a shape of {}",
                 starts.size(), shape.max_samples);
  for (std::int64_t i = 0; i <= shape.max_samples; ++i) {
    const auto at = static_cast<std::size_t>(i);
    array(layout.sample_starts)[i] = static_cast<std::int32_t>(at < starts.size() ? starts[at] : tokens);
  }
  const std::int64_t vocabulary = spec.vocabulary;
  std::size_t sample = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (sample + 1 < starts.size() && starts[sample + 1] == t) ++sample;
    array(layout.tokens)[t] = static_cast<std::int32_t>(t * 7919 % vocabulary);
    array(layout.labels)[t] = t % 5 == 4 ? kIgnoredLabel : static_cast<std::int32_t>((t + 1) * 7919 % vocabulary);
    array(layout.positions)[t] = static_cast<std::int32_t>(t - starts[sample]);
  }
  batch_ = DeviceBytes(layout.bytes, device);
  stream.copy(batch_.get(), host_batch_, layout.bytes);

  const std::int64_t elements = tokens * spec.hidden;
  const Bytes bytes = round_up(elements * size_of(compute), kAlignment);
  for (DeviceBytes* each : {&input_, &output_, &output_gradient_, &input_gradient_}) {
    *each = DeviceBytes(bytes, device);
    fill(each->get(), elements, compute, each == &output_gradient_ ? 1e-3F : 1.0F, stream);
  }
}

Context SampleBatch::context(bool training) const {
  Context context;
  context.shape = shape_;
  context.batch = batch_.get();
  context.host_batch = host_batch_;
  context.dropout_key = 0x9e3779b97f4a7c15U;
  context.loss_scale = 1.0 / static_cast<double>(shape_.tokens());
  context.training = training;
  return context;
}

}  // namespace protrain::profile
