// Families as blocks made of arch + ops.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "arch/architecture.h"
#include "block/block.h"

namespace protrain {

struct ModelOptions {
  DType compute = DType::kF32;
  DeviceKind device = DeviceKind::kCpu;
  bool deterministic = false;
};

// One block per ModelSpec::blocks entry. `spec` outlives them.
std::vector<std::unique_ptr<Block>> make_blocks(const Architecture&, const ModelSpec& spec, const ModelOptions&);

// The head's logits of given hidden states, for tests and small evaluations: [T, vocabulary] fp32, whole.
void head_logits(Block& head, const BlockCall&, float* logits);

}  // namespace protrain
