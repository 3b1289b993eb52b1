// A block's parameters as tensors for one call, and the linear layers over them. Private to model/.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "block/block.h"
#include "ops/ops.h"

namespace protrain::model {

// One parameter of a block: where it stands in BlockSpec::parameters, and its shape.
struct Slot {
  std::size_t index = 0;
  std::vector<std::int64_t> shape;

  std::int64_t elements() const;
};

// Finds a block's parameters by the end of their HF names ("self_attn.q_proj.weight").
class Slots {
 public:
  Slots(const ModelSpec& spec, const BlockSpec& block) : spec_(spec), block_(block) {}
  bool has(std::string_view name) const;
  Slot at(std::string_view name) const;  // InternalError when absent
  Slot last() const;

 private:
  const ModelSpec& spec_;
  const BlockSpec& block_;
};

// The parameters of one call.
class Weights {
 public:
  Weights(std::span<const ParameterBytes> bytes, DType compute, DeviceKind device)
      : bytes_(bytes), compute_(compute), device_(device) {}
  ops::Parameter get(const Slot&) const;
  // Slots that lie side by side as one parameter: rows one after the other.
  ops::Parameter joined(const std::vector<Slot>&) const;

 private:
  ops::Parameter make(const ParameterBytes&, at::IntArrayRef shape) const;

  std::span<const ParameterBytes> bytes_;
  DType compute_;
  DeviceKind device_;
};

struct Norm {
  Slot weight, bias;  // bias unused by RMS norms
  Norm() = default;
  Norm(const Slots&, const std::string& name);
};

// One linear layer, or several of one input whose outputs stand side by side ([T, out of all]).
//
// Note [One GEMM for a group]: chunks keep a group's parameters together, and without gaps where all members but the
// last are multiples of 256 elements. Then one product serves the group. Where shapes do not allow it, each member has
// a product of its own. Shapes alone decide, so the bits do not depend on where chunks are cut.
class Linear {
 public:
  Linear() = default;
  Linear(const Slots&, const std::vector<std::string>& names,
         ops::WeightLayout layout = ops::WeightLayout::kOutIn);  // names without ".weight"; bias if there is one
  // y = x W^T + b (+ residual). A group takes no residual and never skips.
  at::Tensor operator()(const Weights&, const ops::Source& x, const at::Tensor& residual = {},
                        bool skip_value = false) const;

 private:
  at::Tensor one(const Weights&, std::size_t member, const ops::Source& x, const at::Tensor& residual,
                 bool skip_value) const;

  std::vector<Slot> weights_, biases_;
  bool fused_ = false;
  ops::WeightLayout layout_ = ops::WeightLayout::kOutIn;
};

}  // namespace protrain::model
