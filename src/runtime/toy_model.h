// A model small enough to check by hand, for tests of what runs blocks: no LibTorch, same contracts as real blocks.
// Every block reads and writes every byte that it is given, its workspace included, and keeps its saved set in the
// bytes given for it: a transfer that comes late, or to the wrong place, changes the result. Results leave through
// asynchronous copies, so that a missing wait shows. Not thread-safe, like all blocks.
#pragma once
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "block/block.h"
#include "plan/profile.h"

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
    spec.blocks.push_back({BlockKind::kLayer, layer, layer % 2 == 0 ? "layer" : "odd layer", {}});
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

// What a call keeps and what it needs meanwhile: its CallMemory. All of it is fp32.
inline CallMemory call_memory(const BlockSpec& block, Pass pass, bool light, std::int64_t tokens) {
  const Bytes activations = 4 * tokens * kHidden;
  CallMemory memory;
  switch (block.kind) {
    case BlockKind::kEmbedding:
      memory.workspace = pass == Pass::kBackward ? 4 * kVocabulary * kHidden : activations;
      break;
    case BlockKind::kLayer:
      if (pass == Pass::kForwardKeep) memory.saved = light ? activations : 2 * activations;
      memory.workspace = (pass == Pass::kBackward ? 2 : 1) * activations + (block.layer % 2 == 0 ? 0 : activations);
      break;
    case BlockKind::kHead: memory.workspace = 4 * tokens + (pass == Pass::kBackward ? activations : 0); break;
  }
  memory.workspace_bound = memory.workspace;
  return memory;
}

inline Profile make_profile(const ModelSpec& spec, const std::vector<BatchShape>& train_shapes,
                            const std::vector<BatchShape>& eval_shapes) {
  Profile profile;
  profile.library_workspace = 700;
  profile.tables = 1300;
  const auto add = [&](const BlockSpec& block, const BatchShape& shape, bool training) {
    for (const Pass pass : {Pass::kForward, Pass::kForwardKeep, Pass::kBackward}) {
      for (const bool light : {false, true}) {
        profile.calls.push_back(
            {{block.trace, pass, light, shape, training}, call_memory(block, pass, light, shape.tokens())});
      }
    }
  };
  for (const BlockSpec& block : spec.blocks) {
    for (const BatchShape& shape : train_shapes) add(block, shape, true);
    for (const BatchShape& shape : eval_shapes) add(block, shape, false);
  }
  return profile;
}

class ToyBlock : public Block {
 public:
  ToyBlock(const BlockSpec& spec, DType compute) : spec_(spec), compute_(compute) {}
  const BlockSpec& spec() const override { return spec_; }

 protected:
  // Runs the call's work when the stream has come to it, and checks that it has used its whole workspace.
  template <typename Fn>
  void run(const BlockCall& call, const Fn& fn) {
    call.stream->call([&] {
      retire();
      used_ = 0;
      fn(call.context->shape.tokens() * kHidden);
      const Bytes all = call_memory(spec_, call.what.pass, call.what.light, call.context->shape.tokens()).workspace;
      PROTRAIN_CHECK(used_ == all, "{} of {} bytes of workspace were used", used_, all);
    });
  }
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
  // The values, after a stay in the next bytes of the workspace.
  std::vector<float> through_workspace(const BlockCall& call, const std::vector<float>& values) {
    std::byte* const at = call.workspace + used_;
    used_ += static_cast<Bytes>(4 * values.size());
    emit(*call.stream, at, DType::kF32, values);
    call.stream->call([] {});
    return floats(at, static_cast<std::int64_t>(values.size()));
  }
  static std::vector<float> floats(const std::byte* from, std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    std::memcpy(values.data(), from, 4 * values.size());
    return values;
  }

  static std::int32_t token(const std::byte* batch, Bytes array, std::int64_t t) {
    std::int32_t value;
    std::memcpy(&value, batch + array + 4 * t, 4);
    return value;
  }

  const BlockSpec spec_;
  const DType compute_;

 private:
  void retire() { pending_.clear(); }  // inside Stream::call: earlier work is done

  std::vector<std::vector<std::byte>> pending_;
  Bytes used_ = 0;
};

// y[t] = table[token[t]], plus a "dropout" that depends on the key.
class Embedding final : public ToyBlock {
 public:
  using ToyBlock::ToyBlock;
  std::unique_ptr<SavedGraph> forward(const BlockCall& call) override {
    run(call, [&](std::int64_t n) {
      std::vector<float> y(n);
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t t = i / kHidden, position = call.what.micro_batch * n / kHidden + t;
        const std::int32_t id = token(call.context->batch, 0, t);
        const bool bump = call.context->training && ((call.context->dropout_key >> (position % 64)) & 1) != 0;
        y[i] = load(call.parameters[0].weight, compute_, id * kHidden + i % kHidden) + (bump ? 0.125f : 0.0f);
      }
      emit(*call.stream, call.output, compute_, through_workspace(call, y));
    });
    return nullptr;
  }
  void backward(const BlockCall& call, std::unique_ptr<SavedGraph>) override {
    run(call, [&](std::int64_t n) {
      std::vector<float> gradient(kVocabulary * kHidden);
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int32_t id = token(call.context->batch, 0, i / kHidden);
        gradient[id * kHidden + i % kHidden] += load(call.output_gradient, compute_, i);
      }
      emit_gradient(*call.stream, call.parameters[0], through_workspace(call, gradient));
    });
  }
};

// u = x * scale + shift + wide[...]; y = x + u^2 / 8. Saved: u, and unless light, u / 4.
class Layer final : public ToyBlock {
 public:
  using ToyBlock::ToyBlock;
  // As an autograd graph: addresses.
  struct Saved final : SavedGraph {
    const std::byte *saved = nullptr, *input = nullptr;
    bool light = false;
  };
  std::unique_ptr<SavedGraph> forward(const BlockCall& call) override {
    run(call, [&](std::int64_t n) {
      std::vector<float> u(n), slope(n), y(n);
      for (std::int64_t i = 0; i < n; ++i) {
        u[i] = load(call.input, compute_, i) * load(call.parameters[0].weight, compute_, i % kHidden) +
               load(call.parameters[1].weight, compute_, i % kHidden) +
               load(call.parameters[2].weight, compute_, i % kWide);
      }
      u = through_workspace(call, u);
      for (std::int64_t i = 0; i < n; ++i) {
        slope[i] = u[i] * 0.25f;
        y[i] = load(call.input, compute_, i) + u[i] * u[i] * 0.125f;
      }
      if (spec_.layer % 2 != 0) y = through_workspace(call, y);
      if (call.output != nullptr) emit(*call.stream, call.output, compute_, y);
      if (call.what.pass != Pass::kForwardKeep) return;
      emit(*call.stream, call.saved, DType::kF32, u);
      if (!call.what.light) emit(*call.stream, call.saved + 4 * n, DType::kF32, slope);
    });
    if (call.what.pass != Pass::kForwardKeep) return nullptr;
    auto graph = std::make_unique<Saved>();
    graph->saved = call.saved;
    graph->input = call.input;
    graph->light = call.what.light;
    return graph;
  }
  void backward(const BlockCall& call, std::unique_ptr<SavedGraph> graph) override {
    PROTRAIN_CHECK(graph != nullptr, "a layer's backward needs its forward");
    const auto& saved = static_cast<const Saved&>(*graph);
    PROTRAIN_CHECK(saved.saved == call.saved && saved.input == call.input && saved.light == call.what.light,
                   "a saved set or an input has moved");
    run(call, [&](std::int64_t n) {
      const std::vector<float> u = floats(call.saved, n);
      std::vector<float> slope(n), du(n), dx(n), scale(kHidden), shift(kHidden), wide(kWide);
      if (!call.what.light) slope = floats(call.saved + 4 * n, n);
      for (std::int64_t i = 0; i < n; ++i) {
        if (call.what.light) slope[i] = u[i] * 0.25f;
        du[i] = load(call.output_gradient, compute_, i) * slope[i];
      }
      du = through_workspace(call, du);
      for (std::int64_t i = 0; i < n; ++i) {
        scale[i % kHidden] += du[i] * load(call.input, compute_, i);
        shift[i % kHidden] += du[i];
        wide[i % kWide] += du[i];
        dx[i] =
            load(call.output_gradient, compute_, i) + du[i] * load(call.parameters[0].weight, compute_, i % kHidden);
      }
      dx = through_workspace(call, dx);
      if (spec_.layer % 2 != 0) dx = through_workspace(call, dx);
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
    compute(call, false);
    return nullptr;
  }
  void backward(const BlockCall& call, std::unique_ptr<SavedGraph>) override { compute(call, true); }

 private:
  void compute(const BlockCall& call, bool gradients) {
    run(call, [&](std::int64_t n) {
      const Context& context = *call.context;
      const Bytes labels = batch_layout(context.shape).labels;
      const auto scale = static_cast<float>(context.loss_scale);
      const std::int64_t tokens = n / kHidden;
      const auto x = [&](std::int64_t t, std::int64_t j) { return load(call.input, compute_, t * kHidden + j); };
      const auto g = [&](std::int64_t j) { return load(call.parameters[0].weight, compute_, j); };
      const auto w = [&](std::int32_t label, std::int64_t j) {
        return load(call.parameters[1].weight, compute_, label * kHidden + j);
      };
      std::vector<float> sums(tokens), dx(n), gain(kHidden), output(kVocabulary * kHidden);
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int32_t label = token(context.batch, labels, t);
        PROTRAIN_CHECK(label == token(context.host_batch, labels, t), "the host's batch is another one");
        if (label == kIgnoredLabel) continue;
        sums[t] = -1;
        for (std::int64_t j = 0; j < kHidden; ++j) sums[t] += x(t, j) * g(j) * w(label, j);
      }
      sums = through_workspace(call, sums);
      loss_ = 0;
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int32_t label = token(context.batch, labels, t);
        if (label == kIgnoredLabel) continue;
        loss_ += 0.5 * static_cast<double>(sums[t]) * static_cast<double>(sums[t]);
        for (std::int64_t j = 0; j < kHidden; ++j) {
          dx[t * kHidden + j] = scale * sums[t] * g(j) * w(label, j);
          gain[j] += scale * sums[t] * x(t, j) * w(label, j);
          output[label * kHidden + j] += scale * sums[t] * x(t, j) * g(j);
        }
      }
      call.stream->copy(call.output, reinterpret_cast<const std::byte*>(&loss_), sizeof loss_);
      if (!gradients) return;
      emit(*call.stream, call.input_gradient, compute_, through_workspace(call, dx));
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
