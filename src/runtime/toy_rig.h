// A whole run of the toy model: plan, arenas, store, runner on a CPU device with faults. For tests.
#pragma once
#include <algorithm>
#include <array>
#include <functional>
#include <random>

#include "device/faulty_device.h"
#include "memory/arena.h"
#include "runtime/step_runner.h"
#include "runtime/toy_reference.h"
#include "schedule/layout.h"

namespace protrain::toy {

// Wraps a block; a test may act before its calls.
class Spy final : public Block {
 public:
  Spy(std::unique_ptr<Block> inner, const std::function<void(const BlockCall&)>& before)
      : inner_(std::move(inner)), before_(before) {}
  const BlockSpec& spec() const override { return inner_->spec(); }
  std::unique_ptr<SavedGraph> forward(const BlockCall& call) override {
    before_(call);
    return inner_->forward(call);
  }
  void backward(const BlockCall& call, std::unique_ptr<SavedGraph> saved) override {
    before_(call);
    inner_->backward(call, std::move(saved));
  }

 private:
  std::unique_ptr<Block> inner_;
  const std::function<void(const BlockCall&)>& before_;
};

inline constexpr BatchShape kTrainShape{3, 16, 3, false};
inline constexpr BatchShape kEvalShape{2, 31, 2, false};
inline constexpr std::int64_t kEvalMicroBatches = 2;
inline constexpr unsigned kSeed = 20261129;

enum class Modes { kKeep, kKeepLight, kSwap, kRecompute, kRecomputeHost, kMixed };
enum class Persist { kAll, kHalf, kNone };
// kResident: what may be; streamed chunks are kCpu.
enum class Places { kResident, kCpu, kMixed };

// All have a value, so that a test names those that it is about.
struct RigOptions {
  DType compute = DType::kF32;
  bool tied = false;
  Id layers = 3;
  std::int64_t accumulation = 1;
  Order order = Order::kMicroBatch;
  Bytes chunk_bytes = kMiB;
  Persist persist = Persist::kAll;
  int more_slots = 0;  // than the fewest, of both kinds
  Modes modes = Modes::kKeep;
  Places places = Places::kResident;
  int offload_distance = 1;
  Tier state_tier = Tier::kPageable;
  bool poison = true;  // what is not in use holds NaN
  DeviceFaults faults = {};
};

inline std::string describe(const RigOptions& o) {
  return fmt::format(
      "{} tied {} layers {} accumulation {} order {} chunk_bytes {} persist {} more slots {} modes {} places {} "
      "distance "
      "{} delay {} seed {}",
      transformers_name(o.compute), o.tied, o.layers, o.accumulation, static_cast<int>(o.order), o.chunk_bytes,
      static_cast<int>(o.persist), o.more_slots, static_cast<int>(o.modes), static_cast<int>(o.places),
      o.offload_distance, o.faults.longest_delay_seconds, o.faults.seed);
}

inline RunShape make_shape(const RigOptions& o) {
  RunShape shape;
  shape.compute = o.compute;
  shape.accumulation = o.accumulation;
  shape.train_shapes = {kTrainShape};
  shape.eval_shapes = {kEvalShape};
  shape.eval_micro_batches = kEvalMicroBatches;
  return shape;
}

inline Activation mode_of(Modes modes, std::size_t block) {
  return modes == Modes::kMixed ? static_cast<Activation>((block + 1) % kActivations) : static_cast<Activation>(modes);
}

inline Plan make_plan(const ModelSpec& spec, const RigOptions& o) {
  Plan plan;
  plan.chunk_bytes = o.chunk_bytes;
  plan.offload_distance = o.offload_distance;
  plan.order = o.order;
  plan.state_tier = o.state_tier;
  for (std::size_t i = 0; i < spec.blocks.size(); ++i) plan.activation.push_back(mode_of(o.modes, i));
  const std::vector<Chunk> chunks = make_chunks(spec, plan.chunk_bytes, o.compute);
  const auto body = static_cast<int>(
      std::count_if(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.kind == BlockKind::kLayer; }));
  plan.n_persist = o.persist == Persist::kAll ? body : o.persist == Persist::kHalf ? body / 2 : 0;
  int number = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const bool streamed = chunks[i].kind == BlockKind::kLayer && number++ >= plan.n_persist;
    const bool host = streamed || o.places == Places::kCpu || (o.places == Places::kMixed && i % 2 == 0);
    plan.place.push_back(host ? UpdatePlace::kCpu : UpdatePlace::kResident);
  }
  const SlotNeed need = slot_need(spec, chunks, plan);
  if (need.buffer > 0) plan.n_buffer = need.buffer + o.more_slots;
  if (need.gradient > 0) plan.gradient_slots = need.gradient + o.more_slots;
  return plan;
}

inline std::vector<std::vector<float>> random_masters(const ModelSpec& spec) {
  std::mt19937 random(kSeed);
  std::uniform_real_distribution<float> uniform(-0.5f, 0.5f);
  std::vector<std::vector<float>> masters;
  for (const ParameterSpec& parameter : spec.parameters) {
    auto& master = masters.emplace_back(parameter.elements());
    for (float& value : master) value = uniform(random);
  }
  return masters;
}

// Micro-batches one after the other, random tokens, about a third of the labels ignored.
struct Batch {
  BatchShape shape;
  std::int64_t micro_batches = 0;
  std::vector<std::byte> bytes;
  std::int64_t supervised = 0;

  Batch(const BatchShape& shape_in, std::int64_t micro_batches_in, unsigned seed)
      : shape(shape_in), micro_batches(micro_batches_in) {
    std::mt19937 random(seed);
    const BatchLayout parts = batch_layout(shape);
    bytes.resize(static_cast<std::size_t>(parts.bytes * micro_batches));
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      for (std::int64_t t = 0; t < shape.tokens(); ++t) {
        const auto token = static_cast<std::int32_t>(random() % kVocabulary);
        const std::int32_t label =
            random() % 3 == 0 ? kIgnoredLabel : static_cast<std::int32_t>(random() % kVocabulary);
        supervised += label != kIgnoredLabel ? 1 : 0;
        std::memcpy(bytes.data() + m * parts.bytes + parts.tokens + 4 * t, &token, 4);
        std::memcpy(bytes.data() + m * parts.bytes + parts.labels + 4 * t, &label, 4);
      }
    }
  }
};

inline StepInputs inputs_of(const Batch& batch, std::int64_t step, double max_norm) {
  StepInputs inputs;
  inputs.host_batch = batch.bytes.data();
  inputs.supervised_tokens = batch.supervised;
  inputs.dropout_key = 0x9e3779b97f4a7c15u * static_cast<std::uint64_t>(step + 1);
  inputs.learning_rate = 0.01;
  inputs.weight_decay = 0.1;
  inputs.max_norm = max_norm;
  inputs.update = step + 1;
  return inputs;
}
// Clips in every other step.
inline StepInputs inputs_of(const Batch& batch, std::int64_t step) {
  return inputs_of(batch, step, step % 2 == 0 ? 0.05 : 0);
}

// The arenas of a layout: books checked, and NaN wherever nothing is in use.
struct ToyArenas {
  ToyArenas(Device& device, const Layout& layout, bool poison) {
    for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kPageable}) {
      if (layout.bytes(tier) == 0) continue;
      auto& own = owned[static_cast<std::size_t>(tier)];
      own = std::make_unique<Arena>(device, tier, layout.bytes(tier), ArenaOptions{true, poison});
      all[static_cast<std::size_t>(tier)] = own.get();
    }
  }
  std::array<std::unique_ptr<Arena>, 4> owned;
  Arenas all{};
};

// Every part of a run.
struct Rig {
  explicit Rig(const RigOptions& o) : Rig(o, make_plan(make_spec(o.layers, o.tied), o)) {}
  Rig(const RigOptions& o, const Plan& plan_in)
      : options(o),
        spec(make_spec(o.layers, o.tied)),
        shape(make_shape(o)),
        profile(make_profile(spec, shape.train_shapes, shape.eval_shapes)),
        plan(plan_in),
        chunks(make_chunks(spec, plan.chunk_bytes, o.compute)),
        bytes(layout(spec, chunks, shape, profile, plan)),
        device(make_faulty_device(make_cpu_device(), o.faults)),
        arenas(*device, bytes, o.poison),
        store(std::make_unique<ChunkStore>(spec, chunks, bytes, shape, plan, *device, arenas.all)),
        kernels(make_cpu_kernels(pool)),
        host_kernels(make_cpu_kernels(host_pool)) {
    const auto masters = random_masters(spec);
    for (Id id = 0; id < static_cast<Id>(masters.size()); ++id) {
      store->write_master(id, 0, static_cast<std::int64_t>(masters[id].size()), masters[id].data());
    }
    store->zero_moments();
    runner = std::make_unique<StepRunner>(*store, chunks, shape, profile, plan, bytes, *device, spied_blocks(),
                                          *kernels, host_kernels.get(), AdamWOptions{}, arenas.all);
  }

  std::vector<std::unique_ptr<Block>> spied_blocks() const {
    std::vector<std::unique_ptr<Block>> blocks;
    for (auto& block : make_blocks(spec, options.compute)) {
      blocks.push_back(std::make_unique<Spy>(std::move(block), before_call));
    }
    return blocks;
  }

  StepRequest train_request(std::int64_t step, std::int64_t micro_batches) const {
    return {Graph::kTrain, kTrainShape, micro_batches, static_cast<int>(step % 2)};
  }
  StepOutputs train(std::int64_t step, const Batch& batch, const RunOptions& run = {}) {
    return runner->step(train_request(step, batch.micro_batches), inputs_of(batch, step), run);
  }
  StepOutputs evaluate(const Batch& batch, int slot = 0) {
    return runner->step({Graph::kEvaluate, batch.shape, batch.micro_batches, slot}, inputs_of(batch, 0));
  }
  Bytes high_water(Tier tier) const {
    const Arena* arena = arenas.all[static_cast<std::size_t>(tier)];
    return arena == nullptr ? 0 : arena->high_water();
  }

  const RigOptions options;
  const ModelSpec spec;
  // Before every block's forward and backward.
  std::function<void(const BlockCall&)> before_call = [](const BlockCall&) {};
  ThreadPool pool{2}, host_pool{2};
  const RunShape shape;
  const Profile profile;
  const Plan plan;
  const std::vector<Chunk> chunks;
  const Layout bytes;
  std::unique_ptr<Device> device;
  ToyArenas arenas;
  std::unique_ptr<ChunkStore> store;
  std::unique_ptr<UpdateKernels> kernels, host_kernels;
  std::unique_ptr<StepRunner> runner;
};

inline PlainLoop plain_loop(const ModelSpec& spec, const RigOptions& o) {
  return {spec, o.compute, o.accumulation, o.order, random_masters(spec)};
}

inline PlainStep plain_step(const Batch& batch, const StepInputs& inputs) {
  PlainStep step;
  for (Id m = 0; m < batch.micro_batches; ++m) {
    step.shapes.push_back(batch.shape);
    step.batches.push_back(batch.bytes.data() + m * batch_layout(batch.shape).bytes);
  }
  step.dropout_key = inputs.dropout_key;
  step.supervised_tokens = batch.supervised;
  step.learning_rate = inputs.learning_rate;
  step.weight_decay = inputs.weight_decay;
  step.max_norm = inputs.max_norm;
  step.update = inputs.update;
  return step;
}

inline std::vector<std::byte> part_bytes(const Rig& rig, Id id, Part part) {
  const std::int64_t n = rig.spec.parameters[id].elements();
  std::vector<std::byte> bytes(static_cast<std::size_t>(n * size_of(part_dtype(part, rig.options.compute))));
  rig.store->read(id, part, 0, n, bytes.data());
  return bytes;
}

// All states of all parameters, in model order; what is pending is done first.
inline std::vector<std::byte> all_state(const Rig& rig) {
  rig.runner->drain();
  std::vector<std::byte> all;
  for (Id id = 0; id < static_cast<Id>(rig.spec.parameters.size()); ++id) {
    for (const Part part : {Part::kWeight, Part::kResidual, Part::kM, Part::kV}) {
      if (part == Part::kResidual && rig.options.compute == DType::kF32) continue;
      const auto bytes = part_bytes(rig, id, part);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
  }
  return all;
}

inline std::vector<std::byte> all_state(const PlainLoop& loop, const ModelSpec& spec, DType compute) {
  std::vector<std::byte> all;
  const auto append = [&](const void* from, std::size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(from);
    all.insert(all.end(), begin, begin + bytes);
  };
  for (Id id = 0; id < static_cast<Id>(spec.parameters.size()); ++id) {
    const auto& tensor = loop.tensor(id);
    append(tensor.weight.data(), tensor.weight.size());
    if (compute == DType::kBf16) append(tensor.residual.data(), 2 * tensor.residual.size());
    append(tensor.m.data(), 4 * tensor.m.size());
    append(tensor.v.data(), 4 * tensor.v.size());
  }
  return all;
}

}  // namespace protrain::toy
