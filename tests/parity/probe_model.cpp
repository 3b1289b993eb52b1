#include "probe_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "checkpoint/model_files.h"
#include "model/model.h"
#include "plan/plan.h"
#include "runtime/chunk_store.h"
#include "tensor/tensor.h"

namespace protrain::probe {
namespace {

// Zeroed bytes that start at a multiple of kAlignment.
class Buffer {
 public:
  explicit Buffer(Bytes bytes) : memory_(static_cast<std::size_t>(bytes + kAlignment)) {
    void* start = memory_.data();
    std::size_t space = memory_.size();
    start_ = static_cast<std::byte*>(std::align(kAlignment, static_cast<std::size_t>(bytes), start, space));
  }
  std::byte* get() const { return start_; }

 private:
  std::vector<std::byte> memory_;
  std::byte* start_;
};

void write_batch(const MicroBatch& batch, std::byte* to) {
  const BatchLayout layout = batch_layout(batch.shape);
  const auto put = [&](Bytes offset, const std::vector<std::int32_t>& values, std::int64_t count) {
    PROTRAIN_CHECK(std::ssize(values) == count, "{} values, {} wanted", values.size(), count);
    std::memcpy(to + offset, values.data(), values.size() * sizeof(std::int32_t));
  };
  put(layout.tokens, batch.tokens, batch.shape.tokens());
  put(layout.labels, batch.labels, batch.shape.tokens());
  put(layout.positions, batch.positions, batch.shape.tokens());
  put(layout.sample_starts, batch.sample_starts, batch.shape.max_samples + 1);
}

float bf16_value(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

float rounded_to_bf16(float value) {  // to nearest, ties to even
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return bf16_value(static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
}

// The store of one model with the layout of a run, and its blocks.
class Run {
 public:
  explicit Run(const Options& options)
      : options_(options),
        arch_(read_architecture(options.model)),
        spec_(make_spec(arch_)),
        shape_(run_shape(options)),
        chunks_(make_chunks(spec_, options.chunk_bytes, options.compute)),
        plan_(resident_plan(spec_, shape_, options.chunk_bytes)),
        layout_(parts_layout(chunks_, options.compute,
                             std::array{Part::kWeight, Part::kResidual, Part::kGradient, Part::kAccumulator})),
        device_(make_cpu_device()),
        arena_(*device_, Tier::kDevice, layout_.bytes(Tier::kDevice)),
        store_(spec_, chunks_, layout_, shape_, plan_, *device_, Arenas{&arena_}),
        stream_(device_->stream("compute")) {
    if (options.random_seed) {
      fill_random(store_, *options.random_seed);
    } else {
      ModelFolder(real_files(), options.model, spec_).load(store_);
    }
    ModelOptions model;
    model.compute = options.compute;
    for (const BatchShape& shape : shape_.train_shapes) model.positions = std::max(model.positions, shape.row_tokens);
    blocks_ = make_blocks(arch_, spec_, model);
  }

  Result result() {
    std::int64_t supervised = 0;
    for (const MicroBatch& batch : options_.micro_batches) {
      supervised += std::ranges::count_if(batch.labels, [](std::int32_t label) { return label != kIgnoredLabel; });
    }
    Result result;
    for (std::size_t i = 0; i < options_.micro_batches.size(); ++i) {
      step(static_cast<Id>(i), 1.0 / static_cast<double>(supervised), result);
    }
    for (std::size_t id = 0; id < spec_.parameters.size(); ++id) {
      const ParameterSpec& parameter = spec_.parameters[id];
      NamedTensor weight{"weight." + parameter.name, parameter.shape, {}};
      weight.values.resize(static_cast<std::size_t>(parameter.elements()));
      store_.read_master(static_cast<Id>(id), 0, parameter.elements(), weight.values.data());
      result.weights.push_back(std::move(weight));
      if (!options_.micro_batches.empty()) result.gradients.push_back(gradient(static_cast<Id>(id)));
    }
    return result;
  }

 private:
  static RunShape run_shape(const Options& options) {
    RunShape shape;
    shape.compute = options.compute;
    shape.accumulation = std::max<std::int64_t>(1, std::ssize(options.micro_batches));
    for (const MicroBatch& batch : options.micro_batches) shape.train_shapes.push_back(batch.shape);
    if (shape.train_shapes.empty()) shape.train_shapes.push_back({1, 8, 1, false});
    return shape;
  }
  NamedTensor gradient(Id id) const {
    const ParameterSpec& parameter = spec_.parameters[static_cast<std::size_t>(id)];
    const std::int64_t elements = parameter.elements();
    NamedTensor tensor{"grad." + parameter.name, parameter.shape, {}};
    tensor.values.resize(static_cast<std::size_t>(elements));
    const bool bf16 = options_.compute == DType::kBf16;
    if (!bf16 || accumulates(spec_, shape_, id)) {
      const Part part = bf16 ? Part::kAccumulator : Part::kGradient;
      store_.read(id, part, 0, elements, reinterpret_cast<std::byte*>(tensor.values.data()));
      if (bf16) std::ranges::transform(tensor.values, tensor.values.begin(), rounded_to_bf16);
    } else {
      std::vector<std::uint16_t> wire(static_cast<std::size_t>(elements));
      store_.read(id, Part::kGradient, 0, elements, reinterpret_cast<std::byte*>(wire.data()));
      std::ranges::transform(wire, tensor.values.begin(), bf16_value);
    }
    return tensor;
  }

  // Forward and backward of one micro-batch, its gradients added to the earlier ones'.
  void step(Id index, double loss_scale, Result& result) {
    const MicroBatch& batch = options_.micro_batches[static_cast<std::size_t>(index)];
    const Buffer bytes(batch_layout(batch.shape).bytes);
    write_batch(batch, bytes.get());
    Context context;
    context.shape = batch.shape;
    context.batch = context.host_batch = bytes.get();
    context.dropout_key = options_.dropout_key;
    context.loss_scale = loss_scale;
    context.training = options_.training;

    const Bytes activation = batch.shape.tokens() * spec_.hidden * size_of(options_.compute);
    std::vector<Buffer> inputs;  // of blocks 1, 2, ...
    std::vector<std::unique_ptr<SavedGraph>> graphs(blocks_.size());
    const std::size_t head = blocks_.size() - 1;
    const auto call = [&](std::size_t block, Pass pass) {
      weights_ = store_.bind(static_cast<Id>(block), index == 0);
      BlockCall one;
      one.what = {static_cast<Id>(block), index, pass};
      one.context = &context;
      one.parameters = weights_;
      one.stream = stream_.get();
      one.input = block == 0 ? nullptr : inputs[block - 1].get();
      return one;
    };
    for (std::size_t block = 0; block < head; ++block) {
      inputs.emplace_back(activation);
      const bool keep = block > 0 && !options_.recompute;
      BlockCall one = call(block, keep ? Pass::kForwardKeep : Pass::kForward);
      one.output = inputs[block].get();
      graphs[block] = blocks_[block]->forward(one);
    }
    NamedTensor logits{"logits." + std::to_string(index), {batch.shape.tokens(), spec_.vocabulary}, {}};
    logits.values.resize(static_cast<std::size_t>(batch.shape.tokens() * spec_.vocabulary));
    head_logits(*blocks_[head], call(head, Pass::kForward), logits.values.data());
    result.logits.push_back(std::move(logits));

    const Buffer loss(sizeof(double)), even(activation), odd(activation);
    const auto read_loss = [&] { return *reinterpret_cast<const double*>(loss.get()); };
    BlockCall one = call(head, Pass::kForward);
    one.output = loss.get();
    blocks_[head]->forward(one);
    result.forward_losses.push_back(read_loss());
    for (std::size_t block = head + 1; block-- > 0;) {
      one = call(block, Pass::kForwardKeep);
      if (options_.recompute && block > 0 && block < head) graphs[block] = blocks_[block]->forward(one);
      one.what.pass = Pass::kBackward;
      one.output = block == head ? loss.get() : nullptr;
      one.output_gradient = block == head ? nullptr : (block % 2 == 0 ? odd : even).get();
      one.input_gradient = block == 0 ? nullptr : (block % 2 == 0 ? even : odd).get();
      blocks_[block]->backward(one, std::move(graphs[block]));
    }
    result.losses.push_back(read_loss());
  }

  const Options& options_;
  const Architecture arch_;
  const ModelSpec spec_;
  const RunShape shape_;
  const std::vector<Chunk> chunks_;
  const Plan plan_;
  const Layout layout_;
  std::unique_ptr<Device> device_;
  Arena arena_;
  ChunkStore store_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<ParameterBytes> weights_;
};

}  // namespace

Architecture read_architecture(const std::filesystem::path& model) {
  const std::filesystem::path file = model / "config.json";
  return parse_architecture(real_files().read_text(file), file);
}

Result run(const Options& options) { return Run(options).result(); }

}  // namespace protrain::probe
