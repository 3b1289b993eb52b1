#include <algorithm>
#include <utility>

#include "base/error.h"
#include "schedule/builder.h"
#include "schedule/schedule.h"

namespace protrain {

namespace {

Range part_of(const Range& whole, Bytes offset, Bytes bytes) {
  PROTRAIN_CHECK(offset >= 0 && offset + bytes <= whole.bytes, "bytes {} to {} of a region of {}", offset,
                 offset + bytes, whole.bytes);
  return {whole.tier, whole.offset + offset, bytes};
}

class Expander {
 public:
  Expander(const ModelSpec& spec, const std::vector<Chunk>& chunks, const RunShape& shape, const Plan& plan,
           const Layout& layout, const StepShape& step)
      : spec_(spec),
        chunks_(chunks),
        shape_(shape),
        plan_(plan),
        layout_(layout),
        step_(step),
        places_(places(spec, chunks)),
        first_block_(chunks.size(), -1),
        blocks_(static_cast<Id>(spec.blocks.size())),
        activation_bytes_(step.batch.tokens() * spec.hidden * size_of(shape.compute)),
        batch_bytes_(batch_layout(step.batch).bytes) {
    PROTRAIN_CHECK(step.micro_batches >= 1 && step.batch.tokens() >= 1, "an empty step");
    for (Id block = blocks_ - 1; block >= 0; --block) {
      for (const Id id : spec.blocks[block].parameters) first_block_[places_.at(id).chunk] = block;
    }
  }

  Schedule train() {
    upload();
    for (Id micro_batch = 0; micro_batch < step_.micro_batches; ++micro_batch) {
      train_forward(micro_batch);
      train_backward(micro_batch);
    }
    finish_norm(static_cast<Id>(spec_.parameters.size()));
    for (Id chunk = 0; chunk < static_cast<Id>(chunks_.size()); ++chunk) update(chunk);
    return builder_.take();
  }

  Schedule evaluate() {
    upload();
    for (Id micro_batch = 0; micro_batch < step_.micro_batches; ++micro_batch) {
      for (Id block = 0; block < blocks_; ++block) {
        Task task = run_block({block, micro_batch, Pass::kForward}, "forward");
        if (block > 0) task.block.input = alternating_input(block);
        task.block.output = block + 1 < blocks_ ? alternating_input(block + 1) : loss(micro_batch);
        add_block(std::move(task));
      }
    }
    finish_norm(0);
    return builder_.take();
  }

 private:
  // --- what the tasks touch

  Range state(Id chunk, Part part) const {
    return layout_.find(Region::kState, chunk * kParts + static_cast<Id>(part));
  }

  Range parameter(Id id, Part part) const {
    const Bytes element = size_of(part_dtype(part, shape_.compute));
    const Place& place = places_[id];
    return part_of(state(place.chunk, part), place.offset * element, spec_.parameters[id].elements() * element);
  }

  Part gradient_part(Id parameter) const {
    return accumulates(spec_, shape_, parameter) ? Part::kAccumulator : Part::kGradient;
  }

  Range input_of(Id block) const { return part_of(layout_.find(Region::kBlockInput, block), 0, activation_bytes_); }
  // Nothing outlives its use without a backward: two buffers do.
  Range alternating_input(Id block) const { return input_of(1 + (block - 1) % 2); }
  Range input_gradient_of(Id block) const {
    return part_of(layout_.find(Region::kInputGradient, block % 2), 0, activation_bytes_);
  }
  Range loss(Id micro_batch) const {
    return part_of(layout_.find(Region::kLosses), micro_batch * Bytes{sizeof(double)}, sizeof(double));
  }
  Range batch(Region region, std::int64_t first, std::int64_t count) const {
    return part_of(layout_.find(region, step_.batch_slot), first * batch_bytes_, count * batch_bytes_);
  }

  // --- tasks

  void upload() {
    Task task;
    task.op = Op::kCopy;
    task.lane = Lane::kH2d;
    task.access = {{batch(Region::kBatchStaging, 0, step_.micro_batches), false},
                   {batch(Region::kBatch, 0, step_.micro_batches), true}};
    task.name = "upload batch";
    builder_.add(std::move(task));
  }

  std::string block_name(Id block) const {
    const BlockSpec& spec = spec_.blocks[block];
    switch (spec.kind) {
      case BlockKind::kEmbedding: return "embedding";
      case BlockKind::kHead: return "head";
      case BlockKind::kLayer: return fmt::format("layer {}", spec.layer);
    }
    return "?";
  }

  Task run_block(const Invocation& what, std::string_view verb) const {
    Task task;
    task.what = what;
    task.block.batch = batch(Region::kBatch, what.micro_batch, 1);
    task.block.host_batch = batch(Region::kBatchStaging, what.micro_batch, 1);
    task.name = fmt::format("{} {} micro-batch {}", verb, block_name(what.block), what.micro_batch);
    return task;
  }

  // Derives `access` from the ranges of the call and the block's parameters.
  void add_block(Task task) {
    const auto touch = [&](const Range& range, bool writes) {
      if (range.bytes > 0) task.access.push_back({range, writes});
    };
    touch(task.block.batch, false);
    touch(task.block.host_batch, false);
    touch(task.block.input, false);
    touch(task.block.output, true);
    touch(task.block.output_gradient, false);
    touch(task.block.input_gradient, true);
    for (const Id id : spec_.blocks[task.what.block].parameters) {
      touch(parameter(id, Part::kWeight), false);
      if (task.what.pass == Pass::kBackward) touch(parameter(id, gradient_part(id)), true);
    }
    builder_.add(std::move(task));
  }

  bool recomputes(Id block) const {
    return spec_.blocks[block].kind == BlockKind::kLayer && plan_.activation[block] == Activation::kRecompute;
  }

  void train_forward(Id micro_batch) {
    for (Id block = 0; block + 1 < blocks_; ++block) {
      Task task = run_block({block, micro_batch, recomputes(block) ? Pass::kForward : Pass::kForwardKeep}, "forward");
      if (block > 0) task.block.input = input_of(block);
      task.block.output = input_of(block + 1);
      add_block(std::move(task));
    }
  }

  void train_backward(Id micro_batch) {
    for (Id block = blocks_ - 1; block >= 0; --block) {
      if (recomputes(block)) {
        Task again = run_block({block, micro_batch, Pass::kForwardKeep}, "recompute");
        again.block.input = input_of(block);
        add_block(std::move(again));
      }
      Task task = run_block({block, micro_batch, Pass::kBackward}, "backward");
      if (block > 0) {
        task.block.input = input_of(block);
        task.block.input_gradient = input_gradient_of(block);
      }
      if (block + 1 < blocks_) {
        task.block.output_gradient = input_gradient_of(block + 1);
      } else {
        task.block.output = loss(micro_batch);
      }
      add_block(std::move(task));
      if (micro_batch + 1 == step_.micro_batches) finish_chunks_of(block);
    }
  }

  // Backward visits blocks in reverse, so a chunk's gradient is complete after the backward of its first block.
  void finish_chunks_of(Id block) {
    for (Id chunk = static_cast<Id>(chunks_.size()) - 1; chunk >= 0; --chunk) {
      if (first_block_[chunk] != block) continue;
      if (gradient_part(chunks_[chunk].parameters.front()) == Part::kAccumulator) {
        add_chunk(Op::kRound, chunk,
                  {{state(chunk, Part::kAccumulator), false}, {state(chunk, Part::kGradient), true}});
      }
      std::vector<Access> access = {{state(chunk, Part::kGradient), false}, {layout_.find(Region::kNorms, 1), true}};
      for (const Id id : chunks_[chunk].parameters) {
        access.push_back({part_of(layout_.find(Region::kNorms, 0), id * Bytes{sizeof(double)}, sizeof(double)), true});
      }
      add_chunk(Op::kNorm, chunk, std::move(access));
    }
  }

  void add_chunk(Op op, Id chunk, std::vector<Access> access) {
    Task task;
    task.op = op;
    task.lane = Lane::kGpuUpdate;
    task.chunk = chunk;
    task.access = std::move(access);
    task.name = fmt::format("{} chunk {}", op_name(op), chunk);
    builder_.add(std::move(task));
  }

  void update(Id chunk) {
    std::vector<Access> access = {{state(chunk, Part::kGradient), false}, {layout_.find(Region::kControl), false}};
    for (const Part part : {Part::kWeight, Part::kResidual, Part::kM, Part::kV}) {
      if (layout_.contains(Region::kState, chunk * kParts + static_cast<Id>(part)))
        access.push_back({state(chunk, part), true});
    }
    add_chunk(Op::kUpdate, chunk, std::move(access));
  }

  // Of the first `tensors` squared norms and all losses; the control's copy to the host needs only that.
  void finish_norm(Id tensors) {
    Task task;
    task.op = Op::kFinishNorm;
    task.lane = Lane::kGpuUpdate;
    task.name = std::string(op_name(task.op));
    if (tensors > 0) {
      task.access.push_back({part_of(layout_.find(Region::kNorms, 0), 0, tensors * Bytes{sizeof(double)}), false});
    }
    task.access.push_back(
        {part_of(layout_.find(Region::kLosses), 0, step_.micro_batches * Bytes{sizeof(double)}), false});
    task.access.push_back({layout_.find(Region::kControl), true});
    builder_.add(std::move(task));

    Task back;
    back.op = Op::kCopy;
    back.lane = Lane::kD2h;
    back.access = {{layout_.find(Region::kControl), false}, {layout_.find(Region::kResults), true}};
    back.name = "download results";
    builder_.add(std::move(back));
  }

  const ModelSpec& spec_;
  const std::vector<Chunk>& chunks_;
  const RunShape& shape_;
  const Plan& plan_;
  const Layout& layout_;
  const StepShape& step_;
  const std::vector<Place> places_;
  std::vector<Id> first_block_;  // by chunk: the first block, in execution order, that uses it
  const Id blocks_;
  const Bytes activation_bytes_;
  const Bytes batch_bytes_;
  ScheduleBuilder builder_;
};

}  // namespace

std::string_view lane_name(Lane lane) {
  switch (lane) {
    case Lane::kCompute: return "compute";
    case Lane::kH2d: return "h2d";
    case Lane::kD2h: return "d2h";
    case Lane::kCpuUpdate: return "cpu_update";
    case Lane::kGpuUpdate: return "gpu_update";
    case Lane::kDiskRead: return "disk_read";
    case Lane::kDiskWrite: return "disk_write";
  }
  return "?";
}

std::string_view op_name(Op op) {
  switch (op) {
    case Op::kRunBlock: return "run block";
    case Op::kCopy: return "copy";
    case Op::kRound: return "round";
    case Op::kNorm: return "norm";
    case Op::kFinishNorm: return "finish norm";
    case Op::kUpdate: return "update";
  }
  return "?";
}

Schedule expand(const ModelSpec& spec, const std::vector<Chunk>& chunks, const RunShape& shape, const Plan& plan,
                const Layout& layout, const StepShape& step) {
  Expander expander(spec, chunks, shape, plan, layout, step);
  return step.graph == Graph::kTrain ? expander.train() : expander.evaluate();
}

}  // namespace protrain
