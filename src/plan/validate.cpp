#include "plan/validate.h"

#include <algorithm>

#include "base/error.h"

namespace protrain {

namespace {

// Of one step: planning holds each of them.
constexpr std::int64_t kMostBlockCalls = 200'000;
// In kLayer order, where each has regions of its own: packing them takes time and memory by the square.
constexpr std::int64_t kMostBlockCallsByLayer = 12'000;

void check_shapes(const ModelSpec& spec, const std::vector<BatchShape>& shapes, std::string_view use) {
  for (const BatchShape& shape : shapes) {
    if (shape.rows < 1 || shape.row_tokens < 1) {
      fail(ExitCode::kConfig, "{} shape {} x {} tokens: both must be at least 1", use, shape.rows, shape.row_tokens);
    }
    if (spec.max_positions > 0 && shape.row_tokens > spec.max_positions && !shape.packed) {
      fail(ExitCode::kConfig, "cutoff_len: {} tokens, but this model takes at most {} positions", shape.row_tokens,
           spec.max_positions);
    }
    if (shape.max_samples < shape.rows || (!shape.packed && shape.max_samples != shape.rows)) {
      fail(ExitCode::kConfig, "{} shape of {} rows: {} samples do not fit it", use, shape.rows, shape.max_samples);
    }
  }
}

void check_run(const ModelSpec& spec, const RunShape& shape) {
  if (shape.compute != DType::kF32 && shape.compute != DType::kBf16) {
    fail(ExitCode::kConfig, "compute dtype {}: must be float32 or bfloat16", transformers_name(shape.compute));
  }
  if (shape.accumulation < 1) {
    fail(ExitCode::kConfig, "gradient_accumulation_steps: {}, must be at least 1", shape.accumulation);
  }
  if (const std::int64_t most = most_accumulation(spec, Order::kMicroBatch); shape.accumulation > most) {
    fail(ExitCode::kConfig,
         "gradient_accumulation_steps: {}, must be at most {} for a model of {} blocks: a step has {} block calls "
         "at most (more rows a micro-batch, or a smaller train_batch_size)",
         shape.accumulation, most, spec.blocks.size(), kMostBlockCalls);
  }
  if (shape.eval_micro_batches < 1) {
    fail(ExitCode::kConfig, "evaluation micro-batches: {}, must be at least 1", shape.eval_micro_batches);
  }
  if (shape.train_shapes.empty() && shape.eval_shapes.empty()) {
    fail(ExitCode::kConfig, "no batch shape is planned, neither for training nor for evaluation");
  }
  check_shapes(spec, shape.train_shapes, "training");
  check_shapes(spec, shape.eval_shapes, "evaluation");
}

std::string name_of(const BlockSpec& block) {
  return block.kind == BlockKind::kLayer  ? fmt::format("layer {}", block.layer)
         : block.kind == BlockKind::kHead ? "the head"
                                          : "the embedding";
}

void check_places(const std::vector<Chunk>& chunks, const Plan& plan) {
  if (plan.place.size() != chunks.size()) {
    fail(ExitCode::kConfig, "plan: place has {} entries, chunk_bytes {} makes {} chunks of this model",
         plan.place.size(), plan.chunk_bytes, chunks.size());
  }
  const auto body = static_cast<int>(
      std::count_if(chunks.begin(), chunks.end(), [](const Chunk& chunk) { return chunk.kind == BlockKind::kLayer; }));
  if (plan.n_persist < 0 || plan.n_persist > body) {
    fail(ExitCode::kConfig, "plan: n_persist {}, must be 0 to {}: so many body chunks does chunk_bytes {} make",
         plan.n_persist, body, plan.chunk_bytes);
  }
  int number = 0;
  for (std::size_t id = 0; id < chunks.size(); ++id) {
    if (chunks[id].kind != BlockKind::kLayer) continue;
    const bool streams = number++ >= plan.n_persist;
    if (streams && plan.place[id] == UpdatePlace::kResident) {
      fail(
          ExitCode::kConfig,
          "plan: place of chunk {} is resident, but it streams (body chunk {}, n_persist {}): its state cannot stay on "
          "the device; \"cpu\", or n_persist of at least {}",
          id, number - 1, plan.n_persist, number);
    }
  }
}

void check_slots(const ModelSpec& spec, const std::vector<Chunk>& chunks, const Plan& plan) {
  if (plan.n_buffer < 0) fail(ExitCode::kConfig, "plan: n_buffer {}, must be at least 0", plan.n_buffer);
  if (plan.gradient_slots < 0) {
    fail(ExitCode::kConfig, "plan: gradient_slots {}, must be at least 0", plan.gradient_slots);
  }
  const SlotNeed need = slot_need(spec, chunks, plan);  // names a block where it is more than 0
  if (plan.n_buffer < need.buffer) {
    fail(ExitCode::kConfig, "plan: n_buffer {}, must be at least {}: {} touches {} streamed chunks (chunk_bytes {})",
         plan.n_buffer, need.buffer, name_of(spec.blocks[need.buffer_block]), need.buffer, plan.chunk_bytes);
  }
  if (plan.gradient_slots < need.gradient) {
    fail(ExitCode::kConfig,
         "plan: gradient_slots {}, must be at least {}: {} touches {} body chunks of place cpu (chunk_bytes {})",
         plan.gradient_slots, need.gradient, name_of(spec.blocks[need.gradient_block]), need.gradient,
         plan.chunk_bytes);
  }
}

void check_order(const ModelSpec& spec, const RunShape& shape, Order order) {
  const std::int64_t most = most_accumulation(spec, order);
  if (order != Order::kLayer || shape.accumulation <= most) return;
  fail(ExitCode::kConfig,
       "plan: order layer with gradient_accumulation_steps {}, must be at most {} for a model of {} blocks: by layers, "
       "planning holds {} block calls at most (order: micro_batch, or more rows a micro-batch)",
       shape.accumulation, most, spec.blocks.size(), kMostBlockCallsByLayer);
}

}  // namespace

std::int64_t most_accumulation(const ModelSpec& spec, Order order) {
  const std::int64_t calls = order == Order::kLayer ? kMostBlockCallsByLayer : kMostBlockCalls;
  return std::max<std::int64_t>(1, calls / static_cast<std::int64_t>(spec.blocks.size()));
}

void validate(const ModelSpec& spec, const std::vector<Chunk>& chunks, const RunShape& shape, const Plan& plan) {
  PROTRAIN_CHECK(spec.blocks.size() >= 2 && spec.blocks.front().kind == BlockKind::kEmbedding &&
                     spec.blocks.back().kind == BlockKind::kHead,
                 "a model is an embedding, layers and a head");
  check_run(spec, shape);
  check_order(spec, shape, plan.order);
  if (plan.schema != 2) fail(ExitCode::kConfig, "plan: schema {}, this program reads schema 2", plan.schema);
  if (plan.chunk_bytes < 1) fail(ExitCode::kConfig, "plan: chunk_bytes {}, must be at least 1", plan.chunk_bytes);
  if (plan.activation.size() != spec.blocks.size()) {
    fail(ExitCode::kConfig,
         "plan: activation has {} entries, this model has {} blocks ({} layers between embedding and head)",
         plan.activation.size(), spec.blocks.size(), spec.blocks.size() - 2);
  }
  if (plan.offload_distance < 1) {
    fail(ExitCode::kConfig, "plan: offload_distance {}, must be at least 1: a transfer needs a block's time",
         plan.offload_distance);
  }
  if (plan.state_tier != Tier::kPageable && plan.state_tier != Tier::kPinned) {
    fail(ExitCode::kConfig, "plan: state_tier {}, must be \"pageable\" or \"pinned\"",
         plan.state_tier == Tier::kDisk ? "disk" : "device");
  }
  check_places(chunks, plan);
  check_slots(spec, chunks, plan);
}

}  // namespace protrain
