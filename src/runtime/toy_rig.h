// A whole run of the toy model: plan, arenas, store, runner on a CPU device with faults. For tests.
#pragma once
#include <functional>
#include <random>

#include "device/faulty_device.h"
#include "runtime/step_runner.h"
#include "runtime/toy_reference.h"

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

inline constexpr BatchShape kTrainShape{2, 5, 2, false};
inline constexpr BatchShape kEvalShape{3, 7, 3, false};
inline constexpr std::int64_t kEvalMicroBatches = 2;
inline constexpr unsigned kSeed = 20261129;

enum class Modes { kKeep, kRecompute, kMixed };

struct RigOptions {
  DType compute = DType::kF32;
  bool tied = false;
  Id layers = 3;
  std::int64_t accumulation = 1;
  Bytes chunk_bytes = kMiB;
  Modes modes = Modes::kKeep;
  DeviceFaults faults;
};

inline std::string describe(const RigOptions& o) {
  return fmt::format("{} tied {} layers {} accumulation {} chunk_bytes {} modes {} delay {}",
                     transformers_name(o.compute), o.tied, o.layers, o.accumulation, o.chunk_bytes,
                     static_cast<int>(o.modes), o.faults.longest_delay_seconds);
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

inline StepInputs inputs_of(const Batch& batch, std::int64_t step) {
  StepInputs inputs;
  inputs.host_batch = batch.bytes.data();
  inputs.supervised_tokens = batch.supervised;
  inputs.dropout_key = 0x9e3779b97f4a7c15u * static_cast<std::uint64_t>(step + 1);
  inputs.learning_rate = 0.01;
  inputs.weight_decay = 0.1;
  inputs.max_norm = step % 2 == 0 ? 0.05 : 0;
  inputs.update = step + 1;
  return inputs;
}

// Every part of a run, on arenas that start as NaN wherever nothing is written.
struct Rig {
  explicit Rig(const RigOptions& o) : options(o), spec(make_spec(o.layers, o.tied)), pool(2) {
    shape.compute = o.compute;
    shape.accumulation = o.accumulation;
    shape.train_shapes = {kTrainShape};
    shape.eval_shapes = {kEvalShape};
    shape.eval_micro_batches = kEvalMicroBatches;
    plan.chunk_bytes = o.chunk_bytes;
    for (std::size_t i = 0; i < spec.blocks.size(); ++i) {
      const bool recompute = o.modes == Modes::kRecompute || (o.modes == Modes::kMixed && i % 2 == 1);
      plan.activation.push_back(recompute ? Activation::kRecompute : Activation::kKeep);
    }
    chunks = make_chunks(spec, plan.chunk_bytes, o.compute);
    bytes = layout(spec, chunks, shape, plan);
    device = make_faulty_device(make_cpu_device(), o.faults);
    std::byte* arena = device->arena(Tier::kDevice, bytes.bytes(Tier::kDevice));
    std::byte* pinned = device->arena(Tier::kPinned, bytes.bytes(Tier::kPinned));
    std::memset(arena, 0xff, static_cast<std::size_t>(bytes.bytes(Tier::kDevice)));
    std::memset(pinned, 0xff, static_cast<std::size_t>(bytes.bytes(Tier::kPinned)));
    store = std::make_unique<ChunkStore>(spec, chunks, bytes, shape, *device, arena);
    const auto masters = random_masters(spec);
    for (Id id = 0; id < static_cast<Id>(masters.size()); ++id) {
      store->write_master(id, 0, static_cast<std::int64_t>(masters[id].size()), masters[id].data());
    }
    store->zero_moments();
    kernels = make_cpu_kernels(pool);
    std::vector<std::unique_ptr<Block>> blocks;
    for (auto& block : make_blocks(spec, o.compute)) {
      blocks.push_back(std::make_unique<Spy>(std::move(block), before_call));
    }
    runner = std::make_unique<StepRunner>(*store, chunks, shape, plan, bytes, *device, std::move(blocks), *kernels,
                                          AdamWOptions{}, pinned);
  }

  StepShape train_shape(std::int64_t step, std::int64_t micro_batches) const {
    return {Graph::kTrain, kTrainShape, micro_batches, static_cast<int>(step % 2)};
  }

  StepOutputs train(std::int64_t step, const Batch& batch, const RunOptions& run = {}) {
    return runner->step(train_shape(step, batch.micro_batches), inputs_of(batch, step), run);
  }

  const RigOptions options;
  const ModelSpec spec;
  // Before every block's forward and backward.
  std::function<void(const BlockCall&)> before_call = [](const BlockCall&) {};
  ThreadPool pool;
  RunShape shape;
  Plan plan;
  std::vector<Chunk> chunks;
  Layout bytes;
  std::unique_ptr<Device> device;
  std::unique_ptr<ChunkStore> store;
  std::unique_ptr<UpdateKernels> kernels;
  std::unique_ptr<StepRunner> runner;
};

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

// All states of all parameters, in model order.
inline std::vector<std::byte> all_state(const Rig& rig) {
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
