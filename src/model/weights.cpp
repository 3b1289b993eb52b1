#include "model/weights.h"

#include <ATen/ops/cat.h>

#include <functional>
#include <numeric>

#include "base/error.h"
#include "tensor/tensor.h"

namespace protrain::model {
namespace {

// Offsets of tensors in a chunk are multiples of this many elements (see Chunk in plan/plan.h).
constexpr std::int64_t kChunkElements = 256;

bool without_gaps(const std::vector<Slot>& slots) {
  for (std::size_t i = 0; i + 1 < slots.size(); ++i) {
    if (slots[i].elements() % kChunkElements != 0) return false;
  }
  return true;
}

bool is_named(const std::string& full, std::string_view name) {
  return full == name ||
         (full.size() > name.size() && full.ends_with(name) && full[full.size() - name.size() - 1] == '.');
}

}  // namespace

std::int64_t Slot::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

bool Slots::has(std::string_view name) const {
  for (const Id id : block_.parameters) {
    if (is_named(spec_.parameters[static_cast<std::size_t>(id)].name, name)) return true;
  }
  return false;
}

Slot Slots::at(std::string_view name) const {
  for (std::size_t i = 0; i < block_.parameters.size(); ++i) {
    const ParameterSpec& parameter = spec_.parameters[static_cast<std::size_t>(block_.parameters[i])];
    if (is_named(parameter.name, name)) return {i, parameter.shape};
  }
  fail_check(__FILE__, __LINE__, "parameter of block", std::string(name));
}

Slot Slots::last() const {
  PROTRAIN_CHECK(!block_.parameters.empty());
  return {block_.parameters.size() - 1, spec_.parameters[static_cast<std::size_t>(block_.parameters.back())].shape};
}

ops::Parameter Weights::make(const ParameterBytes& bytes, at::IntArrayRef shape) const {
  ops::Parameter parameter;
  parameter.weight = view(bytes.weight, shape, compute_, device_);
  if (bytes.gradient != nullptr) parameter.gradient = view(bytes.gradient, shape, bytes.gradient_dtype, device_);
  parameter.first = bytes.first;
  return parameter;
}

ops::Parameter Weights::get(const Slot& slot) const {
  PROTRAIN_CHECK(slot.index < bytes_.size(), "parameter {} of {}", slot.index, bytes_.size());
  return make(bytes_[slot.index], slot.shape);
}

ops::Parameter Weights::joined(const std::vector<Slot>& slots) const {
  const ParameterBytes& first = bytes_[slots.front().index];
  std::vector<std::int64_t> shape = slots.front().shape;
  std::int64_t elements = slots.front().elements();
  for (std::size_t i = 1; i < slots.size(); ++i) {
    const ParameterBytes& next = bytes_[slots[i].index];
    PROTRAIN_CHECK(next.weight == first.weight + elements * size_of(compute_), "weights of a group have a gap");
    PROTRAIN_CHECK((next.gradient == nullptr) == (first.gradient == nullptr) && next.first == first.first &&
                       next.gradient_dtype == first.gradient_dtype,
                   "gradients of a group differ in kind");
    PROTRAIN_CHECK(
        first.gradient == nullptr || next.gradient == first.gradient + elements * size_of(first.gradient_dtype),
        "gradients of a group have a gap");
    shape[0] += slots[i].shape[0];
    elements += slots[i].elements();
  }
  return make(first, shape);
}

Norm::Norm(const Slots& slots, const std::string& name) : weight(slots.at(name + ".weight")) {
  if (slots.has(name + ".bias")) bias = slots.at(name + ".bias");
}

Linear::Linear(const Slots& slots, const std::vector<std::string>& names, ops::WeightLayout layout) : layout_(layout) {
  for (const std::string& name : names) {
    weights_.push_back(slots.at(name + ".weight"));
    if (slots.has(name + ".bias")) biases_.push_back(slots.at(name + ".bias"));
  }
  PROTRAIN_CHECK(biases_.empty() || biases_.size() == weights_.size());
  fused_ = without_gaps(weights_) && without_gaps(biases_);
}

at::Tensor Linear::one(const Weights& weights, std::size_t member, const ops::Source& x, const at::Tensor& residual,
                       bool skip_value) const {
  const ops::Parameter weight = weights.get(weights_[member]);
  if (biases_.empty()) return ops::linear(x, weight, nullptr, residual, layout_, skip_value);
  const ops::Parameter bias = weights.get(biases_[member]);
  return ops::linear(x, weight, &bias, residual, layout_, skip_value);
}

at::Tensor Linear::operator()(const Weights& weights, const ops::Source& x, const at::Tensor& residual,
                              bool skip_value) const {
  if (weights_.size() == 1) return one(weights, 0, x, residual, skip_value);
  PROTRAIN_CHECK(!residual.defined() && !skip_value && layout_ == ops::WeightLayout::kOutIn);
  if (fused_) {
    const ops::Parameter weight = weights.joined(weights_);
    if (biases_.empty()) return ops::linear(x, weight);
    const ops::Parameter bias = weights.joined(biases_);
    return ops::linear(x, weight, &bias);
  }
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < weights_.size(); ++i) parts.push_back(one(weights, i, x, {}, false));
  return at::cat(parts, 1);
}

}  // namespace protrain::model
