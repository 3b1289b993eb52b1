#include "profile/block_rig.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace protrain::profile {
namespace {

const BlockSpec& about(const RigModel& model, const RigKind& kind) {
  return model.spec.blocks.at(static_cast<std::size_t>(kind.block));
}

// Training before evaluation; full before light; forwards before their backwards, the plain forward last.
int rank(const CallKey& key) {
  const int pass = key.pass == Pass::kForward ? 2 : key.pass == Pass::kForwardKeep ? 0 : 1;
  return (key.training ? 0 : 6) + (key.pass == Pass::kForward ? 4 : key.light ? 2 : 0) + pass % 2;
}

std::vector<CallKey> keys_of(const RigModel& model, const RigKind& kind) {
  const BlockSpec& block = about(model, kind);
  std::vector<CallKey> keys;
  for (const Profile::Call& call : model.memory.calls) {
    if (call.key.trace != block.trace || call.key.shape != kind.shape) continue;
    if (block.kind == BlockKind::kEmbedding && call.key.pass == Pass::kForwardKeep) continue;
    keys.push_back(call.key);
  }
  std::stable_sort(keys.begin(), keys.end(), [](const CallKey& a, const CallKey& b) { return rank(a) < rank(b); });
  return keys;
}

std::vector<RigCall> calls_of(const RigModel& model, const RigKind& kind) {
  std::vector<RigCall> calls;
  for (const CallKey& key : keys_of(model, kind)) {
    if (key.pass == Pass::kForwardKeep) calls.push_back({key, /*result=*/false});
    calls.push_back({key});
  }
  return calls;
}

// The largest of a figure over the calls.
Bytes most(const RigModel& model, const RigKind& kind, Bytes CallMemory::* figure) {
  Bytes bytes = 0;
  for (const CallKey& key : keys_of(model, kind)) bytes = std::max(bytes, model.memory.find(key).*figure);
  return bytes;
}

}  // namespace

std::vector<RigKind> rig_kinds(const RigModel& model) {
  std::vector<RigKind> kinds;
  for (const Profile::Call& call : model.memory.calls) {
    const auto block = std::find_if(model.spec.blocks.begin(), model.spec.blocks.end(),
                                    [&](const BlockSpec& one) { return one.trace == call.key.trace; });
    PROTRAIN_CHECK(block != model.spec.blocks.end(), "no block of the model is a \"{}\"", call.key.trace);
    const RigKind kind{static_cast<Id>(block - model.spec.blocks.begin()), call.key.shape};
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  }
  return kinds;
}

BatchShape busiest_shape(const RunShape& shape) {
  PROTRAIN_CHECK(!shape.train_shapes.empty());
  return *std::ranges::max_element(shape.train_shapes, {}, &BatchShape::tokens);
}

RigKind busiest_kind(const RigModel& model) {
  const auto layer = std::find_if(model.spec.blocks.begin(), model.spec.blocks.end(),
                                  [](const BlockSpec& one) { return one.kind == BlockKind::kLayer; });
  PROTRAIN_CHECK(layer != model.spec.blocks.end());
  return {static_cast<Id>(layer - model.spec.blocks.begin()), busiest_shape(model.shape)};
}

Bytes rig_bytes(const RigModel& model, const RigKind& kind) {
  Bytes bytes = most(model, kind, &CallMemory::saved) + most(model, kind, &CallMemory::workspace);
  for (const Id id : about(model, kind).parameters) {
    const Bytes gradient = accumulates(model.spec, model.shape, id) ? 4 : size_of(model.shape.compute);
    bytes +=
        model.spec.parameters.at(static_cast<std::size_t>(id)).elements() * (size_of(model.shape.compute) + gradient);
  }
  constexpr Bytes kActivations = 4;  // of SampleBatch
  return bytes + batch_layout(kind.shape).bytes +
         kActivations * kind.shape.tokens() * model.spec.hidden * size_of(model.shape.compute);
}

void give_back(const RigModel& model, DeviceKind device) {
  release_plain_memory(device);
  model.book.place_library(nullptr, 0);  // the libraries' workspaces went too: they are made anew with the next call
}

BlockRig::BlockRig(const RigModel& model, const RigKind& kind, DeviceKind device, Stream& stream)
    : model_(model),
      kind_(kind),
      stream_(stream),
      calls_(calls_of(model, kind)),
      saved_bytes_(most(model, kind, &CallMemory::saved)),
      workspace_bytes_(most(model, kind, &CallMemory::workspace)),
      weights_(model.spec, model.shape, kind.block, device, stream),
      sample_(model.spec, kind.shape, model.shape.compute, device, stream),
      saved_(saved_bytes_, device),
      workspace_(workspace_bytes_, device) {}

void BlockRig::run(const RigCall& one) {
  const CallKey& key = one.key;
  const BlockKind kind = about(model_, kind_).kind;
  const Context context = sample_.context(key.training);
  const std::vector<ParameterBytes> bound =
      weights_.bind(!key.training || micro_batch_ % model_.shape.accumulation == 0, key.training);
  BlockCall call;
  call.what = {kind_.block, 0, key.pass, key.light};
  call.context = &context;
  call.parameters = bound;
  call.stream = &stream_;
  call.input = kind == BlockKind::kEmbedding ? nullptr : sample_.input();
  call.saved = saved_.get();
  call.workspace = workspace_.get();
  if (one.result && (key.pass != Pass::kBackward || kind == BlockKind::kHead)) call.output = sample_.output();
  Block& block = *model_.blocks[static_cast<std::size_t>(kind_.block)];
  if (key.pass != Pass::kBackward) {
    graph_ = nullptr;
    graph_ = block.forward(call);
    return;
  }
  call.output_gradient = kind == BlockKind::kHead ? nullptr : sample_.output_gradient();
  call.input_gradient = kind == BlockKind::kEmbedding ? nullptr : sample_.input_gradient();
  block.backward(call, std::exchange(graph_, nullptr));
}

void BlockRig::forward_backward() {
  for (const Pass pass : {Pass::kForwardKeep, Pass::kBackward}) {
    run({{about(model_, kind_).trace, pass, false, kind_.shape, true}});
  }
  next_micro_batch();
}

}  // namespace protrain::profile
