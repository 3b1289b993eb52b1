// Families as blocks made of arch + ops.
#pragma once
#include <memory>
#include <vector>

#include "arch/architecture.h"
#include "block/block.h"

namespace protrain {

struct ModelOptions {
  DType compute = DType::kF32;
  DeviceKind device = DeviceKind::kCpu;
  bool deterministic = false;
  // Longest planned row (training and evaluation): rotary tables are made for it once. A longer row makes them grow.
  std::int64_t positions = 0;
};

// One block per ModelSpec::blocks entry, all used by one thread at a time. `spec` outlives them. They share the rotary
// tables, which are memory of LibTorch's, not of the plan: 4 x positions x head_dim bytes. Work is issued through
// BlockCall::stream. The embedding's backward needs no SavedGraph; neither it nor the head returns one.
std::vector<std::unique_ptr<Block>> make_blocks(const Architecture&, const ModelSpec& spec, const ModelOptions&);

// The head's logits of given hidden states, for tests and small evaluations: [T, vocabulary] fp32, whole, host or
// device memory as the blocks' device.
void head_logits(Block& head, const BlockCall&, float* logits);

}  // namespace protrain
