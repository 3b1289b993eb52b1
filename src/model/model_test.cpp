// What the parity tests cannot see from outside: dropout, recompute, the joining of groups.
#include "model/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/error.h"

namespace protrain {
namespace {

constexpr std::int64_t kRows = 2, kRowTokens = 6;

std::string gpt2(double dropout) {
  return fmt::format(
      R"({{"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 31,
    "attn_pdrop": 0, "resid_pdrop": {0}, "embd_pdrop": {0}}})",
      dropout);
}
std::string opt(double dropout, bool norm_before) {
  return fmt::format(R"({{"model_type": "opt", "hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "max_position_embeddings": 8, "vocab_size": 31, "dropout": {}, "do_layer_norm_before": {}}})",
                     dropout, norm_before);
}

// Bytes that start at a multiple of kAlignment.
class Buffer {
 public:
  explicit Buffer(Bytes bytes) : memory_(static_cast<std::size_t>(bytes + kAlignment)) {}
  std::byte* get() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    return memory_.data() + (kAlignment - address % kAlignment) % kAlignment;
  }
  float* floats() { return reinterpret_cast<float*>(get()); }

 private:
  std::vector<std::byte> memory_;
};

// A model in fp32 with random weights, run block by block.
class Rig {
 public:
  explicit Rig(const std::string& config, std::uint32_t seed = 5)
      : arch(parse_architecture(config, "config.json")), spec(make_spec(arch)), device(make_cpu_device()) {
    stream = device->stream("compute");
    blocks = make_blocks(arch, spec, {});
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 0.2f);
    for (const ParameterSpec& parameter : spec.parameters) {
      weights.emplace_back(parameter.elements() * 4);
      gradients.emplace_back(parameter.elements() * 4);
      for (std::int64_t i = 0; i < parameter.elements(); ++i) {
        weights.back().floats()[i] = normal(random) + (parameter.fill == Fill::kOnes ? 1 : 0);
      }
    }
    for (int i = 0; i < kRows * kRowTokens; ++i) tokens.push_back(static_cast<std::int32_t>(2 + random() % 29));
  }

  // Loss sum of rows [first, first + rows) as micro-batch number `micro_batch`; gradients of the sum when asked.
  double run(std::int64_t first, std::int64_t rows, Id micro_batch, bool training, bool with_gradients,
             bool recompute = false, std::uint64_t key = 77) {
    Context context;
    context.shape = {rows, kRowTokens, rows, false};
    const BatchLayout layout = batch_layout(context.shape);
    Buffer batch(layout.bytes);
    fill_batch(batch, layout, first, rows);
    context.batch = context.host_batch = batch.get();
    context.dropout_key = key;
    context.loss_scale = 1;
    context.training = training;

    const Bytes activation = context.shape.tokens() * spec.hidden * 4;
    const std::size_t head = blocks.size() - 1;
    std::vector<std::unique_ptr<SavedGraph>> graphs(blocks.size());
    std::vector<Buffer> inputs;
    std::vector<ParameterBytes> bound;
    const auto call = [&](std::size_t block, Pass pass) {
      bound = bind(block);
      BlockCall one;
      one.what = {static_cast<Id>(block), micro_batch, pass};
      one.context = &context;
      one.parameters = bound;
      one.stream = stream.get();
      one.input = block == 0 ? nullptr : inputs[block - 1].get();
      return one;
    };
    for (std::size_t block = 0; block < head; ++block) {
      inputs.emplace_back(activation);
      const bool keep = with_gradients && !recompute && block > 0;
      BlockCall one = call(block, keep ? Pass::kForwardKeep : Pass::kForward);
      one.output = inputs[block].get();
      graphs[block] = blocks[block]->forward(one);
    }
    Buffer loss(8), a(activation), b(activation);
    BlockCall one = call(head, with_gradients ? Pass::kBackward : Pass::kForward);
    one.output = loss.get();
    one.input_gradient = a.get();
    if (with_gradients) {
      blocks[head]->backward(one, nullptr);
    } else {
      blocks[head]->forward(one);
    }
    for (std::size_t block = head; with_gradients && block-- > 0;) {
      one = call(block, Pass::kForwardKeep);
      if (recompute && block > 0) graphs[block] = blocks[block]->forward(one);
      one.what.pass = Pass::kBackward;
      one.output_gradient = a.get();
      one.input_gradient = block == 0 ? nullptr : b.get();
      blocks[block]->backward(one, std::move(graphs[block]));
      std::swap(a, b);
    }
    double sum = 0;
    std::memcpy(&sum, loss.get(), sizeof(sum));
    return sum;
  }

  std::vector<std::vector<float>> copy_gradients() {
    std::vector<std::vector<float>> copies;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      copies.emplace_back(gradients[i].floats(), gradients[i].floats() + spec.parameters[i].elements());
    }
    return copies;
  }

  std::vector<ParameterBytes> bind(std::size_t block) {
    std::vector<ParameterBytes> bound;
    for (const Id id : spec.blocks[block].parameters) {
      const bool tied_again = block == 0 && id == 0 && spec.tied;  // the head has written it
      bound.push_back({weights[static_cast<std::size_t>(id)].get(), gradients[static_cast<std::size_t>(id)].get(),
                       DType::kF32, !tied_again});
    }
    return bound;
  }

  Architecture arch;
  ModelSpec spec;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<Buffer> weights, gradients;
  std::vector<std::int32_t> tokens;

 private:
  void fill_batch(Buffer& batch, const BatchLayout& layout, std::int64_t first, std::int64_t rows) {
    auto* ids = reinterpret_cast<std::int32_t*>(batch.get() + layout.tokens);
    auto* labels = reinterpret_cast<std::int32_t*>(batch.get() + layout.labels);
    auto* positions = reinterpret_cast<std::int32_t*>(batch.get() + layout.positions);
    auto* starts = reinterpret_cast<std::int32_t*>(batch.get() + layout.sample_starts);
    for (std::int64_t t = 0; t < rows * kRowTokens; ++t) {
      const auto at = static_cast<std::size_t>(first * kRowTokens + t);
      ids[t] = tokens[at];
      labels[t] = t % kRowTokens == kRowTokens - 1 ? kIgnoredLabel : tokens[at + 1];
      positions[t] = static_cast<std::int32_t>(t % kRowTokens);
    }
    for (std::int64_t row = 0; row <= rows; ++row) starts[row] = static_cast<std::int32_t>(row * kRowTokens);
  }
};

class Dropout : public testing::TestWithParam<std::string> {
 protected:
  std::string config(double dropout) const {
    return GetParam() == "gpt2" ? gpt2(dropout) : opt(dropout, GetParam() == "opt");
  }
};

TEST_P(Dropout, EvaluationHasNone) {
  Rig with(config(0.5)), without(config(0.0));
  EXPECT_EQ(with.run(0, kRows, 0, false, false), without.run(0, kRows, 0, false, false));
  EXPECT_NE(with.run(0, kRows, 0, true, false), without.run(0, kRows, 0, true, false));
}

TEST_P(Dropout, MasksFollowTheKey) {
  Rig rig(config(0.5));
  const double once = rig.run(0, kRows, 0, true, false, false, 1);
  EXPECT_EQ(once, rig.run(0, kRows, 0, true, false, false, 1));
  EXPECT_NE(once, rig.run(0, kRows, 0, true, false, false, 2));
}

TEST_P(Dropout, MasksDoNotDependOnTheCutIntoMicroBatches) {
  Rig rig(config(0.5));
  const double whole = rig.run(0, kRows, 0, true, false);
  const double cut = rig.run(0, 1, 0, true, false) + rig.run(1, 1, 1, true, false);
  EXPECT_NEAR(cut, whole, 1e-5 * whole);
  const double same_masks = rig.run(0, 1, 0, true, false) + rig.run(1, 1, 0, true, false);
  EXPECT_GT(std::abs(same_masks - whole), 1e-4 * whole);
}

TEST_P(Dropout, RecomputeMeetsTheSameMasksBitForBit) {
  Rig rig(config(0.5));
  const double kept = rig.run(0, kRows, 0, true, true, false);
  const auto gradients = rig.copy_gradients();
  EXPECT_EQ(kept, rig.run(0, kRows, 0, true, true, true));
  EXPECT_EQ(gradients, rig.copy_gradients());
}

TEST_P(Dropout, GradientsAreThoseOfTheMaskedLoss) {
  constexpr std::uint32_t kSeed = 3;
  SCOPED_TRACE(kSeed);
  Rig rig(config(0.25), kSeed);
  rig.run(0, kRows, 0, true, true);
  const auto gradients = rig.copy_gradients();
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  constexpr float kStep = 1e-3f;
  double expected = 0;
  std::vector<std::vector<float>> direction(gradients.size());
  const auto move = [&](float by) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      for (std::size_t k = 0; k < gradients[i].size(); ++k) rig.weights[i].floats()[k] += by * direction[i][k];
    }
  };
  double length = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    for (const float g : gradients[i]) {
      // Along the gradient and a little beside it: the difference is large against fp32's noise.
      direction[i].push_back(g + 0.1f * normal(random));
      expected += double{g} * direction[i].back();
      length += double{direction[i].back()} * direction[i].back();
    }
  }
  const auto step = static_cast<float>(kStep / std::sqrt(length));
  move(step);
  const double above = rig.run(0, kRows, 0, true, false);
  move(-2 * step);
  const double below = rig.run(0, kRows, 0, true, false);
  EXPECT_NEAR((above - below) / (2 * step), expected, 0.02 * std::abs(expected));
}

INSTANTIATE_TEST_SUITE_P(Families, Dropout, testing::Values("gpt2", "opt", "opt_post_norm"),
                         [](const auto& info) { return info.param; });

TEST(Groups, AGapWhereShapesPromiseNoneIsAnInternalError) {
  // 16 x 16 = 256 elements: shapes say that q, k, v are one product; the rig gives each a place of its own.
  Rig rig(R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
              "num_attention_heads": 2, "vocab_size": 31})");
  EXPECT_THROW(rig.run(0, kRows, 0, false, false), InternalError);
}

TEST(HeadLogits, RefusesABlockThatIsNoHead) {
  Rig rig(gpt2(0));
  EXPECT_THROW(head_logits(*rig.blocks[1], {}, nullptr), InternalError);
}

}  // namespace
}  // namespace protrain
