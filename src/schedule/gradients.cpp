// What happens to a gradient once it is complete, and the updates.
#include <utility>

#include "base/error.h"
#include "schedule/expansion.h"

namespace protrain {

namespace {

Task chunk_task(Op op, Lane lane, Id chunk) {
  Task task;
  task.op = op;
  task.lane = lane;
  task.chunk = chunk;
  task.name = fmt::format("{} chunk {}", op_name(op), chunk);
  return task;
}

void add_update(Expansion& expansion, Task task, const Touch& control, const Touch& gradient) {
  std::vector<Touch> touches = {control, gradient};
  for (const Part part : {Part::kWeight, Part::kResidual, Part::kM, Part::kV}) {
    if (part == Part::kResidual && expansion.facts.shape.compute == DType::kF32) continue;
    touches.push_back(expansion.state(task.chunk, part, true));
  }
  expansion.sketch.add(std::move(task), touches);
}

}  // namespace

void add_finished_gradient(Expansion& expansion, Id chunk) {
  const Facts& facts = expansion.facts;
  const auto& [sum, wire, sum_dtype] = facts.gradients[chunk];
  const std::int64_t elements = facts.chunks[chunk].elements;
  const Bytes bytes = elements * facts.element(Part::kGradient);
  if (!(sum == wire)) {
    expansion.sketch.add(
        chunk_task(Op::kRound, Lane::kGpuUpdate, chunk),
        {expansion.part(sum, 0, elements * size_of(sum_dtype), false), expansion.part(wire, 0, bytes, true, true)});
  }
  const Touch gradient = expansion.part(wire, 0, bytes, false);
  std::vector<Touch> touches = {gradient, expansion.whole(Region::kNorms, 1, true)};
  for (const Id id : facts.chunks[chunk].parameters) {
    touches.push_back(expansion.part(Region::kNorms, 0, id * Bytes{sizeof(double)}, sizeof(double), true));
  }
  expansion.sketch.add(chunk_task(Op::kNorm, Lane::kGpuUpdate, chunk), touches);
  if (!facts.on_host(chunk)) return;
  expansion.copy(Lane::kD2h, chunk, gradient, expansion.state(chunk, Part::kGradient, true),
                 fmt::format("gradient of chunk {} to host", chunk));
  if (!expansion.step.clip) add_host_update(expansion, chunk, false);
}

void add_control(Expansion& expansion, bool losses_alone) {
  const Id control = losses_alone ? 1 : 0;
  Task task;
  task.op = Op::kFinishNorm;
  task.lane = Lane::kGpuUpdate;
  task.name = losses_alone ? "finish losses" : std::string(op_name(task.op));
  std::vector<Touch> touches = {expansion.loss(0, expansion.step.micro_batches, false),
                                expansion.whole(Region::kControl, control, true)};
  if (!losses_alone && expansion.step.graph == Graph::kTrain) {
    touches.push_back(expansion.whole(Region::kNorms, 0, false));
  }
  expansion.sketch.add(std::move(task), touches);
  expansion.copy(Lane::kD2h, -1, expansion.whole(Region::kControl, control, false),
                 expansion.whole(Region::kResults, losses_alone ? 2 : expansion.step.batch_slot, true),
                 losses_alone ? "download losses" : "download results");
}

void add_resident_updates(Expansion& expansion) {
  const Facts& facts = expansion.facts;
  for (Id chunk = 0; chunk < static_cast<Id>(facts.chunks.size()); ++chunk) {
    if (facts.on_host(chunk)) continue;
    const Bytes bytes = facts.chunks[chunk].elements * facts.element(Part::kGradient);
    add_update(expansion, chunk_task(Op::kUpdate, Lane::kGpuUpdate, chunk), expansion.whole(Region::kControl, 0, false),
               expansion.part(facts.gradients[chunk].wire, 0, bytes, false));
  }
}

void add_host_update(Expansion& expansion, Id chunk, bool pending) {
  Task task = chunk_task(Op::kUpdate, Lane::kCpuUpdate, chunk);
  task.pending = pending;
  if (pending) {
    task.name += " of the step before";
    expansion.pending_updated[chunk] = true;
  }
  add_update(expansion, std::move(task),
             expansion.whole(Region::kResults, pending ? expansion.step.pending_slot : 2, false),
             expansion.state(chunk, Part::kGradient, false));
}

}  // namespace protrain
