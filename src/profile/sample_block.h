// One block with made-up weights and inputs, for running it outside a model. Private to profile/.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "plan/plan.h"

namespace protrain::profile {

// Plain device memory, kAlignment aligned, held while it lives.
class DeviceBytes {
 public:
  DeviceBytes() = default;
  DeviceBytes(Bytes, DeviceKind);
  std::byte* get() const { return at_; }

 private:
  at::Tensor memory_;
  std::byte* at_ = nullptr;
};

// Weights and gradients of a block, values of about 0.02.
class SampleWeights {
 public:
  SampleWeights(const ModelSpec&, const RunShape&, Id block, DeviceKind, Stream&);
  // As ChunkStore::bind(): `first` of a micro-batch that overwrites; null gradients in evaluation.
  std::vector<ParameterBytes> bind(bool first, bool training) const;

 private:
  struct Part {
    Bytes weight = 0, gradient = 0;
    DType gradient_dtype = DType::kF32;
    bool adds = false;  // a tied matrix, whose gradient the head has begun
  };
  std::vector<Part> parts_;
  DeviceBytes weights_, gradients_;
};

// A micro-batch of valid tokens and labels; packed: about half as many samples as there may be, of unequal lengths, the
// rest are empty. And activations for a block: input, output and their gradients.
class SampleBatch {
 public:
  SampleBatch(const ModelSpec&, const BatchShape&, DType compute, DeviceKind, Stream&);
  Context context(bool training) const;
  std::byte* input() const { return input_.get(); }
  std::byte* output() const { return output_.get(); }
  std::byte* output_gradient() const { return output_gradient_.get(); }
  std::byte* input_gradient() const { return input_gradient_.get(); }

 private:
  BatchShape shape_;
  std::vector<std::byte> host_;
  std::byte* host_batch_ = nullptr;
  DeviceBytes batch_, input_, output_, output_gradient_, input_gradient_;
};

}  // namespace protrain::profile
