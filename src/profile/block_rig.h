// A block at one planned shape with all that its calls need, at fixed addresses as in a run. Private to profile/.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "profile/sample_block.h"
#include "tensor/trace_book.h"

namespace protrain::profile {

// What a rig is made of. All outlive it; the book, which is the blocks' own, replays.
struct RigModel {
  const ModelSpec& spec;
  std::span<const std::unique_ptr<Block>> blocks;
  TraceBook& book;
  const RunShape& shape;
  const Profile& memory;
};

// One block stands for all of its trace.
struct RigKind {
  Id block = -1;
  BatchShape shape;
  bool operator==(const RigKind&) const = default;
};
// Every kind that `memory` has calls of.
std::vector<RigKind> rig_kinds(const RigModel&);
// The largest micro-batch of training of the first layer: what keeps a device busiest.
BatchShape busiest_shape(const RunShape&);  // with the most tokens
RigKind busiest_kind(const RigModel&);
Bytes rig_bytes(const RigModel&, const RigKind&);  // of the device; about
// What rigs that are gone have left in LibTorch's hands goes back to the device: the next may be cut otherwise. No work
// is under way.
void give_back(const RigModel&, DeviceKind);

// A call as a rig makes it.
struct RigCall {
  CallKey key;
  bool result = true;  // false: a layer's kForwardKeep whose graph alone is wanted, with no kBackward after it
  bool operator==(const RigCall&) const = default;
};

class BlockRig {
 public:
  BlockRig(const RigModel&, const RigKind&, DeviceKind, Stream&);

  // In an order in which they can run: a layer's kForwardKeep stands right before its kBackward, and before it the one
  // without a result. Without an embedding's kForwardKeep, which is its kForward.
  const std::vector<RigCall>& calls() const { return calls_; }
  const RigKind& kind() const { return kind_; }
  void run(const RigCall&);
  // The calls to come are those of the next micro-batch: of a step's, the first overwrites gradients and the rest add.
  void next_micro_batch() { ++micro_batch_; }
  // A training step's calls of a layer that keeps everything.
  void forward_backward();

 private:
  const RigModel& model_;
  const RigKind kind_;
  Stream& stream_;
  std::vector<RigCall> calls_;
  Bytes saved_bytes_ = 0, workspace_bytes_ = 0;
  SampleWeights weights_;
  SampleBatch sample_;
  DeviceBytes saved_, workspace_;
  std::int64_t micro_batch_ = 0;
  std::unique_ptr<SavedGraph> graph_;
};

}  // namespace protrain::profile
