// Tasks that run a block, the copies of what it keeps, and what its mode does to it besides.
#include <utility>

#include "base/error.h"
#include "schedule/expansion.h"

namespace protrain {

namespace {

// One call of a block: collects what it touches.
class Call {
 public:
  Call(Expansion& expansion, const Visit& visit, Pass pass, std::string_view verb)
      : expansion_(expansion), visit_(visit), block_(visit.block), training_(expansion.step.graph == Graph::kTrain) {
    task_.what = {block_, visit.micro_batch, pass, pass != Pass::kForward && expansion.facts.mode(block_).light};
    // Of all passes alike: the graph of a kept forward holds where its backward's gradients go.
    const bool layer = expansion.facts.plan.order == Order::kLayer;
    task_.first = visit.micro_batch == (layer ? static_cast<Id>(expansion.step.micro_batches) - 1 : 0);
    task_.name = fmt::format("{} {} micro-batch {}", verb, block_name(expansion.facts.spec, block_), visit.micro_batch);
    task_.block.batch = take(expansion.batch(Region::kBatch, visit.micro_batch, 1, false));
    task_.block.host_batch = take(expansion.batch(Region::kBatchStaging, visit.micro_batch, 1, false));
    const CallMemory& memory = expansion.facts.memory(block_, pass, expansion.step.batch, training_);
    const int kind = training_ ? static_cast<int>(pass) : 3;
    task_.block.workspace = take(expansion.touch(Region::kWorkspace, expansion.facts.workspace_index(block_, kind), 0,
                                                 memory.workspace, true, true));
  }

  void input() {
    if (block_ > 0) task_.block.input = take(activation(Region::kBlockInput, block_, false));
  }
  void output() {
    if (block_ + 1 < expansion_.facts.blocks) {
      task_.block.output = take(activation(Region::kBlockInput, block_ + 1, true));
    } else {
      task_.block.output = take(expansion_.loss(visit_.micro_batch, 1, true));
    }
  }
  // Written by a forward, read by its backward.
  void saved(bool writes) {
    if (block_ + 1 == expansion_.facts.blocks) return;
    const Bytes bytes = expansion_.facts.memory(block_, Pass::kForwardKeep, expansion_.step.batch, true).saved;
    task_.block.saved = take(expansion_.touch(
        Region::kSaved, expansion_.facts.activation_index(block_, visit_.micro_batch), 0, bytes, writes, writes));
  }
  void activation_gradients() {
    if (block_ + 1 < expansion_.facts.blocks) {
      task_.block.output_gradient = take(activation(Region::kInputGradient, block_ + 1, false));
    }
    if (block_ > 0) task_.block.input_gradient = take(activation(Region::kInputGradient, block_, true));
  }
  void weights() {
    const Facts& facts = expansion_.facts;
    const Bytes element = facts.element(Part::kWeight);
    for (const auto& [chunk, offset, elements] : facts.uses[block_]) {
      take(
          expansion_.touch(weight_region(facts.plan, facts.slots, chunk), offset * element, elements * element, false));
    }
  }
  void weight_gradients() {
    const Facts& facts = expansion_.facts;
    for (const auto& [chunk, offset, elements] : facts.uses[block_]) {
      const GradientRegions& regions = facts.gradients[chunk];
      const Bytes element = size_of(regions.sum_dtype);
      const bool fresh = !expansion_.gradient_begun[chunk];
      expansion_.gradient_begun[chunk] = true;
      take(expansion_.touch(regions.sum, offset * element, elements * element, true, fresh));
    }
  }
  void add() { expansion_.sketch.add(std::move(task_), touches_); }

 private:
  std::optional<Touch> activation(Region region, Id block, bool writes) const {
    const Facts& facts = expansion_.facts;
    const Id index = training_ ? facts.activation_index(block, visit_.micro_batch)
                               : facts.evaluation_index(block, visit_.micro_batch);
    return expansion_.touch(region, index, 0, expansion_.activation_bytes, writes, writes);
  }
  Range take(const std::optional<Touch>& touch) {
    if (touch) touches_.push_back(*touch);
    return expansion_.range(touch);
  }

  Expansion& expansion_;
  const Visit& visit_;
  const Id block_;
  const bool training_;
  Task task_;
  std::vector<Touch> touches_;
};

// The regions of a block that leave the device for a while, with what they are called.
struct Away {
  Region device, host;
  Bytes bytes;
  std::string_view what;
};

Bytes saved_bytes(const Expansion& expansion, Id block) {
  return expansion.facts.memory(block, Pass::kForwardKeep, expansion.step.batch, true).saved;
}

std::vector<Away> away(const Expansion& expansion, Id block) {
  const ActivationTraits& mode = expansion.facts.mode(block);
  std::vector<Away> result;
  if (mode.offload_saved) {
    const Bytes bytes = saved_bytes(expansion, block);
    if (bytes > 0) result.push_back({Region::kSaved, Region::kHostSaved, bytes, "saved set"});
  }
  if (mode.offload_input) {
    result.push_back({Region::kBlockInput, Region::kHostInput, expansion.activation_bytes, "input"});
  }
  return result;
}

// The mode's own work on the saved set between a forward and its backward.
void add_mode_task(Expansion& expansion, const Visit& visit, Pass pass, const std::optional<ActivationTask>& wanted) {
  const Bytes bytes = wanted ? saved_bytes(expansion, visit.block) : 0;
  if (!wanted || bytes == 0) return;
  const Facts& facts = expansion.facts;
  Task task;
  task.op = wanted->op;
  task.lane = wanted->lane;
  task.what = {visit.block, visit.micro_batch, pass, facts.mode(visit.block).light};
  task.name = fmt::format("{} {} micro-batch {} {}", op_name(task.op), block_name(facts.spec, visit.block),
                          visit.micro_batch, pass == Pass::kForwardKeep ? "after forward" : "before backward");
  const Id index = facts.activation_index(visit.block, visit.micro_batch);
  expansion.sketch.add(std::move(task), {expansion.part(Region::kSaved, index, 0, bytes, true)});
}

}  // namespace

void add_upload(Expansion& expansion) {
  const std::int64_t count = expansion.step.micro_batches;
  expansion.copy(Lane::kH2d, -1, expansion.batch(Region::kBatchStaging, 0, count, false),
                 expansion.batch(Region::kBatch, 0, count, true), "upload batch");
}

void add_evaluation(Expansion& expansion, const Visit& visit) {
  Call call(expansion, visit, Pass::kForward, "forward");
  call.input();
  call.output();
  call.weights();
  call.add();
}

void add_forward(Expansion& expansion, const Visit& visit) {
  const ActivationTraits& mode = expansion.facts.mode(visit.block);
  const bool keeps = !mode.recompute;
  Call call(expansion, visit, keeps ? Pass::kForwardKeep : Pass::kForward, "forward");
  call.input();
  call.output();
  if (keeps) call.saved(true);
  call.weights();
  call.add();
  add_mode_task(expansion, visit, Pass::kForwardKeep, mode.after_forward);
}

void add_backward(Expansion& expansion, const Visit& visit) {
  const ActivationTraits& mode = expansion.facts.mode(visit.block);
  if (mode.recompute) {
    Call again(expansion, visit, Pass::kForwardKeep, "recompute");
    again.input();
    again.saved(true);
    again.weights();
    again.add();
  }
  add_mode_task(expansion, visit, Pass::kBackward, mode.before_backward);
  Call call(expansion, visit, Pass::kBackward, "backward");
  call.input();
  if (visit.block + 1 == expansion.facts.blocks) call.output();
  call.saved(false);
  call.activation_gradients();
  call.weights();
  call.weight_gradients();
  call.add();
}

void add_copy_out(Expansion& expansion, Id block, Id micro_batch) {
  const Id index = expansion.facts.activation_index(block, micro_batch);
  for (const auto& [device, host, bytes, what] : away(expansion, block)) {
    expansion.copy(
        Lane::kD2h, -1, expansion.part(device, index, 0, bytes, false),
        expansion.part(host, index, 0, bytes, true, true),
        fmt::format("{} of {} micro-batch {} to host", what, block_name(expansion.facts.spec, block), micro_batch));
  }
}

void add_copy_in(Expansion& expansion, Id block, Id micro_batch) {
  const Id index = expansion.facts.activation_index(block, micro_batch);
  for (const auto& [device, host, bytes, what] : away(expansion, block)) {
    expansion.copy(
        Lane::kH2d, -1, expansion.part(host, index, 0, bytes, false),
        expansion.part(device, index, 0, bytes, true, true),
        fmt::format("{} of {} micro-batch {} to device", what, block_name(expansion.facts.spec, block), micro_batch));
  }
}

}  // namespace protrain
