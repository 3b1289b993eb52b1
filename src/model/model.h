// Families as blocks made of arch + ops.
#pragma once
#include <memory>
#include <vector>

#include "arch/architecture.h"
#include "block/block.h"
#include "model/rope_tables.h"
#include "tensor/trace_book.h"

namespace protrain {

struct ModelOptions {
  DType compute = DType::kF32;
  DeviceKind device = DeviceKind::kCpu;
  bool deterministic = false;
  // Longest planned row (training and evaluation): rotary tables are made for it once. A longer row makes them grow.
  std::int64_t positions = 0;
  // Null: LibTorch allocates as it likes, BlockCall::saved and workspace are not used.
  std::shared_ptr<TraceBook> traces = {};
  // Null: blocks have tables of their own. Else shared with the caller, who gives them their place in the plan.
  std::shared_ptr<model::RopeTables> tables = {};
};

// One block per ModelSpec::blocks entry, all used by one thread at a time. `spec` outlives them. They share the rotary
// tables. A run: make_blocks() with a book and tables; record_memory() (profile/); lay out, with RopeTables::bytes() as
// Profile::tables; then RopeTables::place(), TraceBook::place_library() and set_mode(kReplay): from there on nothing is
// allocated on the device. Work is issued through
// BlockCall::stream. The embedding's backward needs no SavedGraph; neither it nor the head returns one.
std::vector<std::unique_ptr<Block>> make_blocks(const Architecture&, const ModelSpec& spec, const ModelOptions&);

// The head's logits of given hidden states, for tests and small evaluations: [T, vocabulary] fp32, whole, host or
// device memory as the blocks' device.
void head_logits(Block& head, const BlockCall&, float* logits);

}  // namespace protrain
