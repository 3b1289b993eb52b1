// A model small enough to check by hand, for tests of what runs blocks: no LibTorch, same contracts as real blocks.
// Every block reads and writes every byte that it is given. Results leave through asynchronous copies, so that a
// missing wait shows. Not thread-safe, like all blocks.
#pragma once
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "block/block.h"

namespace protrain::toy {

inline constexpr std::int64_t kHidden = 6;
inline constexpr std::int64_t kVocabulary = 13;
inline constexpr std::int64_t kWide = 5000;  // more than one norm tile

inline float load(const std::byte* from, DType type, std::int64_t i) {
  if (type == DType::kF32) {
    float value;
    std::memcpy(&value, from + 4 * i, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, from + 2 * i, 2);
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Round to nearest even; NaN to 0x7fc0.
inline std::uint16_t bf16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline void store(std::byte* to, DType type, std::int64_t i, float value) {
  if (type == DType::kF32) {
    std::memcpy(to + 4 * i, &value, 4);
  } else {
    const std::uint16_t bits = bf16_bits(value);
    std::memcpy(to + 2 * i, &bits, 2);
  }
}

inline ModelSpec make_spec(Id layers, bool tied) {
  ModelSpec spec;
  spec.hidden = kHidden;
  spec.vocabulary = kVocabulary;
  spec.tied = tied;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape, bool decay, bool joins_last) {
    ParameterSpec parameter;
    const auto id = static_cast<Id>(spec.parameters.size());
    parameter.name = name;
    parameter.shape = std::move(shape);
    parameter.decay = decay;
    parameter.group = joins_last ? spec.parameters.back().group : id;
    spec.parameters.push_back(parameter);
    spec.blocks.back().parameters.push_back(id);
    return id;
  };
  spec.blocks.push_back({BlockKind::kEmbedding, -1, "embedding", {}});
  const Id table = add("table", {kVocabulary, kHidden}, true, false);
  for (Id layer = 0; layer < layers; ++layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    spec.blocks.push_back({BlockKind::kLayer, layer, "layer", {}});
    add(prefix + "scale", {kHidden}, false, false);
    add(prefix + "shift", {kHidden}, false, true);
    add(prefix + "wide", {kWide}, true, false);
  }
  spec.blocks.push_back({BlockKind::kHead, -1, "head", {}});
  add("gain", {kHidden}, false, false);
  if (tied) {
    spec.blocks.back().parameters.push_back(table);
  } else {
    add("output", {kVocabulary, kHidden}, true, false);
  }
  return spec;
}

class ToyBlock : public Block {
 public:
  ToyBlock(const BlockSpec& spec, DType compute) : spec_(spec), compute_(compute) {}
  const BlockSpec& spec() const override { return spec_; }

 protected:
  // Issues a copy of these values; the buffer lives until the stream is known to be past it.
  void emit(Stream& stream, std::byte* to, DType type, const std::vector<float>& values) {
    std::vector<std::byte>& bytes = pending_.emplace_back(values.size() * static_cast<std::size_t>(size_of(type)));
    for (std::size_t i = 0; i < values.size(); ++i) store(bytes.data(), type, static_cast<std::int64_t>(i), values[i]);
    stream.copy(to, bytes.data(), static_cast<Bytes>(bytes.size()));
  }
  void emit_gradient(Stream& stream, const ParameterBytes& parameter, std::vector<float> values) {
    PROTRAIN_CHECK(parameter.first || parameter.gradient_dtype == DType::kF32, "a sum in {}",
                   transformers_name(parameter.gradient_dtype));
    if (!parameter.first) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = load(parameter.gradient, DType::kF32, static_cast<std::int64_t>(i)) + values[i];
      }
    }
    emit(stream, parameter.gradient, parameter.gradient_dtype, values);
  }
  void retire() { pending_.clear(); }  // inside Stream::call: earlier work is done

  static std::int32_t token(const std::byte* batch, Bytes array, std::int64_t t) {
    std::int32_t value;
    std::memcpy(&value, batch + array + 4 * t, 4);
    return value;
  }

  const BlockSpec spec_;
  const DType compute_;

 private:
  std::vector<std::vector<std::byte>> pending_;
};

// y[t] = table[token[t]], plus a "dropout" that depends on the key.
class Embedding final : public ToyBlock {
 public:
  using ToyBlock::ToyBlock;
  std::unique_ptr<SavedGraph> forward(const BlockCall& call) override {
    call.stream->call([&] {
      retire();
      const std::int64_t tokens = call.context->shape.tokens();
      std::vector<float> y(tokens * kHidden);
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int32_t id = token(call.context->batch, 0, t);
        const std::int64_t position = call.what.micro_batch * tokens + t;
        const bool bump = call.context->training && ((call.context->dropout_key >> (position % 64)) & 1) != 0;
        for (std::int64_t j = 0; j < kHidden; ++j) {
          y[t * kHidden + j] = load(call.parameters[0].weight, compute_, id * kHidden + j) + (bump ? 0.125f : 0.0f);
        }
      }
      emit(*call.stream, call.output, compute_, y);
    });
    return nullptr;
  }
  void backward(const BlockCall& call, std::unique_ptr<SavedGraph>) override {
    call.stream->call([&] {
      retire();
      std::vector<float> gradient(kVocabulary * kHidden);
      for (std::int64_t t = 0; t < call.context->shape.tokens(); ++t) {
        const std::int32_t id = token(call.context->batch, 0, t);
        for (std::int64_t j = 0; j < kHidden; ++j) {
          gradient[id * kHidden + j] += load(call.output_gradient, compute_, t * kHidden + j);
        }
      }
      emit_gradient(*call.stream, call.parameters[0], std::move(gradient));
    });
  }
};

// u = x * scale + shift + wide[...]; y = x + u^2 / 8.
class Layer final : public ToyBlock {
 public:
  using ToyBlock::ToyBlock;
  struct Saved final : SavedGraph {
    std::vector<float> x, u;
  };
  std::unique_ptr<SavedGraph> forward(const BlockCall& call) override {
    auto saved = std::make_unique<Saved>();
    call.stream->call([&] {
      retire();
      const std::int64_t n = call.context->shape.tokens() * kHidden;
      std::vector<float> y(n);
      for (std::int64_t i = 0; i < n; ++i) {
        const float x = load(call.input, compute_, i);
        const float u = x * load(call.parameters[0].weight, compute_, i % kHidden) +
                        load(call.parameters[1].weight, compute_, i % kHidden) +
                        load(call.parameters[2].weight, compute_, i % kWide);
        saved->x.push_back(x);
        saved->u.push_back(u);
        y[i] = x + u * u * 0.125f;
      }
      if (call.output != nullptr) emit(*call.stream, call.output, compute_, y);
    });
    if (call.what.pass != Pass::kForwardKeep) return nullptr;
    return saved;
  }
  void backward(const BlockCall& call, std::unique_ptr<SavedGraph> graph) override {
    PROTRAIN_CHECK(graph != nullptr, "a layer's backward needs its forward");
    const auto& saved = static_cast<const Saved&>(*graph);
    call.stream->call([&] {
      retire();
      const std::int64_t n = call.context->shape.tokens() * kHidden;
      std::vector<float> dx(n), scale(kHidden), shift(kHidden), wide(kWide);
      for (std::int64_t i = 0; i < n; ++i) {
        // A real saved set points at the block's input: it must still be there.
        const float x = load(call.input, compute_, i);
        PROTRAIN_CHECK(x == saved.x[i] || std::isnan(x), "the input changed before its backward");
        const float dy = load(call.output_gradient, compute_, i);
        const float du = dy * saved.u[i] * 0.25f;
        scale[i % kHidden] += du * x;
        shift[i % kHidden] += du;
        wide[i % kWide] += du;
        dx[i] = dy + du * load(call.parameters[0].weight, compute_, i % kHidden);
      }
      emit(*call.stream, call.input_gradient, compute_, dx);
      emit_gradient(*call.stream, call.parameters[0], std::move(scale));
      emit_gradient(*call.stream, call.parameters[1], std::move(shift));
      emit_gradient(*call.stream, call.parameters[2], std::move(wide));
    });
  }
};

// For each label l: d = sum(x * gain * output[l]) - 1, loss d^2 / 2.
class Head final : public ToyBlock {
 public:
  using ToyBlock::ToyBlock;
  std::unique_ptr<SavedGraph> forward(const BlockCall& call) override {
    run(call, false);
    return nullptr;
  }
  void backward(const BlockCall& call, std::unique_ptr<SavedGraph>) override { run(call, true); }

 private:
  void run(const BlockCall& call, bool gradients) {
    call.stream->call([&] {
      retire();
      const Context& context = *call.context;
      const Bytes labels = batch_layout(context.shape).labels;
      const auto scale = static_cast<float>(context.loss_scale);
      const std::int64_t tokens = context.shape.tokens();
      std::vector<float> dx(tokens * kHidden), gain(kHidden), output(kVocabulary * kHidden);
      double loss = 0;
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int32_t label = token(context.batch, labels, t);
        PROTRAIN_CHECK(label == token(context.host_batch, labels, t), "the host's batch is another one");
        if (label == kIgnoredLabel) continue;
        float sum = -1;
        for (std::int64_t j = 0; j < kHidden; ++j) {
          sum += load(call.input, compute_, t * kHidden + j) * load(call.parameters[0].weight, compute_, j) *
                 load(call.parameters[1].weight, compute_, label * kHidden + j);
        }
        loss += 0.5 * static_cast<double>(sum) * static_cast<double>(sum);
        for (std::int64_t j = 0; j < kHidden; ++j) {
          const float x = load(call.input, compute_, t * kHidden + j), g = load(call.parameters[0].weight, compute_, j);
          const float w = load(call.parameters[1].weight, compute_, label * kHidden + j);
          dx[t * kHidden + j] = scale * sum * g * w;
          gain[j] += scale * sum * x * w;
          output[label * kHidden + j] += scale * sum * x * g;
        }
      }
      loss_ = loss;
      call.stream->copy(call.output, reinterpret_cast<const std::byte*>(&loss_), sizeof loss_);
      if (!gradients) return;
      emit(*call.stream, call.input_gradient, compute_, dx);
      emit_gradient(*call.stream, call.parameters[0], std::move(gain));
      emit_gradient(*call.stream, call.parameters[1], std::move(output));
    });
  }

  double loss_ = 0;
};

inline std::vector<std::unique_ptr<Block>> make_blocks(const ModelSpec& spec, DType compute) {
  std::vector<std::unique_ptr<Block>> blocks;
  for (const BlockSpec& block : spec.blocks) {
    switch (block.kind) {
      case BlockKind::kEmbedding: blocks.push_back(std::make_unique<Embedding>(block, compute)); break;
      case BlockKind::kLayer: blocks.push_back(std::make_unique<Layer>(block, compute)); break;
      case BlockKind::kHead: blocks.push_back(std::make_unique<Head>(block, compute)); break;
    }
  }
  return blocks;
}

}  // namespace protrain::toy
